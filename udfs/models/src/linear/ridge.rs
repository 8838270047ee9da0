use sandbar_guest::{Features, Groups};
use serde::{Deserialize, Serialize};

use super::moments::{MomentsOptions, Workspace};
use super::orthogonal::Factor;
use super::params::{checked_moments, fit_groups, not_negative, through_means};
use super::{LinearError, LinearModel, LinearParams, cholesky};

/// Parameters of a [`LinearModel`] with a penalty on the squares of its coefficients.
///
/// Minimises `‖y − Xw‖² + alpha · ‖w‖²`, the objective of scikit-learn's `Ridge` (sums, not means, over the rows); the
/// intercept is not penalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RidgeParams {
    /// Weight of the penalty, at least 0; 1 by default.
    pub alpha: f64,
    /// See [`LinearParams::fit_intercept`].
    pub fit_intercept: bool,
}

impl Default for RidgeParams {
    fn default() -> Self {
        RidgeParams { alpha: 1.0, fit_intercept: true }
    }
}

impl RidgeParams {
    /// Like [`LinearParams::fit_groups`]. With an invalid parameter, every group reports the error by itself.
    pub(crate) fn fit_groups(&self, groups: &Groups<'_>) -> Vec<Option<LinearModel>> {
        match not_negative("alpha", self.alpha) {
            Ok(()) => fit_groups(groups, self.fit_intercept, self.alpha),
            Err(_) => Vec::new(),
        }
    }

    /// Fits the coefficients that minimise the objective.
    ///
    /// # Errors
    /// The errors of [`LinearParams::fit_features`], and [`LinearError::Parameter`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<LinearModel, LinearError> {
        not_negative("alpha", self.alpha)?;
        if self.alpha == 0.0 {
            return LinearParams { fit_intercept: self.fit_intercept }.fit_features(features, target);
        }
        let mut workspace = Workspace::new();
        let moments = checked_moments(
            features,
            target,
            MomentsOptions { centred: self.fit_intercept, target_square: false },
            &mut workspace,
        )?;
        let mut coefficients = vec![0.0; features.width()];
        if cholesky::solve(&moments, self.alpha, &mut coefficients).is_none() {
            let mut factor = Factor::new(features, target, &moments);
            factor.fold_penalty(self.alpha);
            coefficients = factor.solve(target.len());
        }
        through_means(&moments, coefficients)
    }
}
