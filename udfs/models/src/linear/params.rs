use sandbar_guest::dense::GroupedOptions;
use sandbar_guest::{Features, Groups};
use serde::{Deserialize, Serialize};

use super::moments::{Moments, MomentsOptions, Workspace};
use super::orthogonal::Factor;
use super::{LinearError, LinearModel, cholesky};

/// Parameters of a [`LinearModel`] by ordinary least squares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinearParams {
    /// Whether to fit an intercept; otherwise the model passes through the origin. True by default.
    pub fit_intercept: bool,
}

impl Default for LinearParams {
    fn default() -> Self {
        LinearParams { fit_intercept: true }
    }
}

impl LinearParams {
    /// Fits the coefficients of least squared error, and among those the ones of least norm.
    ///
    /// # Errors
    /// [`LinearError::NoRows`], [`LinearError::Ragged`], [`LinearError::NotFinite`], [`LinearError::TooLarge`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<LinearModel, LinearError> {
        fit(features, target, self.fit_intercept, 0.0)
    }

    /// Fits all well-conditioned groups at once, on the host. Returns none for groups that must be fitted one by one.
    pub(crate) fn fit_groups(&self, groups: &Groups<'_>) -> Vec<Option<LinearModel>> {
        fit_groups(groups, self.fit_intercept, 0.0)
    }
}

/// Like [`LinearParams::fit_features`], with a penalty on squares.
pub(crate) fn fit(
    features: Features<'_>,
    target: &[f64],
    intercept: bool,
    ridge: f64,
) -> Result<LinearModel, LinearError> {
    let mut workspace = Workspace::new();
    let options = MomentsOptions { centred: intercept, target_square: false };
    let moments = checked_moments(features, target, options, &mut workspace)?;
    let mut coefficients = vec![0.0; features.width()];
    if cholesky::solve(&moments, ridge, &mut coefficients).is_none() {
        let mut factor = Factor::new(features, target, &moments);
        if ridge > 0.0 {
            factor.fold_penalty(ridge);
        }
        coefficients = factor.solve(target.len());
    }
    through_means(&moments, coefficients)
}

/// Like [`LinearParams::fit_groups`], with a penalty on squares.
pub(crate) fn fit_groups(groups: &Groups<'_>, intercept: bool, ridge: f64) -> Vec<Option<LinearModel>> {
    // After a failure of the host (exhausted memory, a GPU error), all groups are fitted one by one.
    let Ok(fit) = groups.least_squares(GroupedOptions { intercept, ridge, pivot_min: cholesky::PIVOT_MIN }) else {
        return Vec::new();
    };
    let model = |(coefficients, intercept): (&[f64], f64)| LinearModel::new(intercept, coefficients.to_vec());
    (0..fit.len()).map(|group| fit.group(group).ok().map(model)).collect()
}

/// Checks the data, and computes its moments.
pub(crate) fn checked_moments<'s>(
    features: Features<'_>,
    target: &[f64],
    options: MomentsOptions,
    workspace: &'s mut Workspace,
) -> Result<Moments<'s>, LinearError> {
    if features.rows() != target.len() {
        return Err(LinearError::Ragged { expected: features.rows(), found: target.len() });
    }
    if target.is_empty() {
        return Err(LinearError::NoRows);
    }
    let moments = Moments::new(features, target, options, workspace);
    if !moments.is_finite() {
        return Err(why_not_finite(features, target));
    }
    Ok(moments)
}

pub(crate) fn not_negative(name: &'static str, value: f64) -> Result<(), LinearError> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(LinearError::Parameter { name, value: value.to_string(), range: "at least 0 and finite" }),
    }
}

/// Returns the model with these coefficients that passes through the means of features and target.
pub(crate) fn through_means(moments: &Moments<'_>, coefficients: Vec<f64>) -> Result<LinearModel, LinearError> {
    through(moments, moments.mean(moments.width()), coefficients)
}

/// Returns the model with these coefficients that predicts `value` at the means of the features.
pub(crate) fn through(moments: &Moments<'_>, value: f64, coefficients: Vec<f64>) -> Result<LinearModel, LinearError> {
    let at_means: f64 = coefficients.iter().enumerate().map(|(j, c)| c * moments.mean(j)).sum();
    let intercept = value - at_means;
    match intercept.is_finite() && coefficients.iter().all(|c| c.is_finite()) {
        true => Ok(LinearModel::new(intercept, coefficients)),
        false => Err(LinearError::TooLarge),
    }
}

#[cold]
pub(crate) fn why_not_finite(features: Features<'_>, target: &[f64]) -> LinearError {
    let columns = (0..features.width()).map(|j| features.column(j)).chain([target]);
    for (j, column) in columns.enumerate() {
        if let Some(row) = column.iter().position(|v| !v.is_finite()) {
            let name = if j < features.width() { format!("feature {j}") } else { "the target".to_owned() };
            return LinearError::NotFinite { column: name, row, value: column[row] };
        }
    }
    LinearError::TooLarge
}
