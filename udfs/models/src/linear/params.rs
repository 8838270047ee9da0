use sandbar_guest::dense::Grouped;
use sandbar_guest::{Features, Groups};
use serde::{Deserialize, Serialize};

use super::moments::{Moments, Space, Wanted};
use super::orthogonal::Factor;
use super::{LinearError, LinearModel, cholesky};

/// How to fit a [`LinearModel`] by ordinary least squares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinearParams {
    /// Whether to fit an intercept; without one the model goes through the origin. True by default.
    pub fit_intercept: bool,
}

impl Default for LinearParams {
    fn default() -> Self {
        LinearParams { fit_intercept: true }
    }
}

impl LinearParams {
    /// Fits the coefficients of least squared error; of several, those of least norm.
    ///
    /// # Errors
    /// [`LinearError::NoRows`], [`LinearError::Ragged`], [`LinearError::NotFinite`], [`LinearError::TooLarge`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<LinearModel, LinearError> {
        let mut space = Space::new();
        let moments = checked_moments(
            features,
            target,
            Wanted { centred: self.fit_intercept, target_square: false },
            &mut space,
        )?;
        let mut coefficients = vec![0.0; features.width()];
        if cholesky::solve(&moments, 0.0, &mut coefficients).is_none() {
            coefficients = Factor::new(features, target, &moments).solve(target.len());
        }
        through_means(&moments, coefficients)
    }
}

impl LinearParams {
    /// Fits the groups whose features are well conditioned, all at once, by the host. The others are to be fitted one by one.
    pub(crate) fn fit_groups(&self, groups: &Groups<'_>) -> Vec<Option<LinearModel>> {
        fit_groups(groups, self.fit_intercept, 0.0)
    }
}

/// As [`LinearParams::fit_groups`], with a penalty on squares.
pub(crate) fn fit_groups(groups: &Groups<'_>, intercept: bool, ridge: f64) -> Vec<Option<LinearModel>> {
    // What the host has no room for is done here, one by one, as what a GPU has failed to do.
    let Ok(fit) = groups.least_squares(Grouped { intercept, ridge, pivot_min: cholesky::PIVOT_MIN }) else {
        return Vec::new();
    };
    let model = |(coefficients, intercept): (&[f64], f64)| LinearModel::new(intercept, coefficients.to_vec());
    (0..fit.len()).map(|group| fit.group(group).ok().map(model)).collect()
}

/// Sums over checked data.
pub(crate) fn checked_moments<'s>(
    features: Features<'_>,
    target: &[f64],
    wanted: Wanted,
    space: &'s mut Space,
) -> Result<Moments<'s>, LinearError> {
    if features.rows() != target.len() {
        return Err(LinearError::Ragged { expected: features.rows(), found: target.len() });
    }
    if target.is_empty() {
        return Err(LinearError::NoRows);
    }
    let moments = Moments::new(features, target, wanted, space);
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

/// The model of these coefficients that goes through the means of features and target.
pub(crate) fn through_means(moments: &Moments<'_>, coefficients: Vec<f64>) -> Result<LinearModel, LinearError> {
    through(moments, moments.mean(moments.width()), coefficients)
}

/// The model of these coefficients that is `value` at the means of the features.
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
            let what = if j < features.width() { format!("feature {j}") } else { "the target".to_owned() };
            return LinearError::NotFinite { what, row, value: column[row] };
        }
    }
    LinearError::TooLarge
}
