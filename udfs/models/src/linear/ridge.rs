use sandbar_guest::{Features, Groups};
use serde::{Deserialize, Serialize};

use super::params::{fit, fit_groups, not_negative};
use super::{LinearError, LinearModel};

/// Parameters of a [`LinearModel`] with a penalty on the squares of its coefficients.
///
/// Minimises `‖y − Xw‖² + alpha · ‖w‖²`, the objective of scikit-learn's `Ridge` (sums, not means, over the rows); the
/// intercept is not penalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RidgeParams {
    /// Weight of the penalty, at least 0; 1 by default.
    pub alpha: f64,
    /// See [`super::LinearParams::fit_intercept`].
    pub fit_intercept: bool,
}

impl Default for RidgeParams {
    fn default() -> Self {
        RidgeParams { alpha: 1.0, fit_intercept: true }
    }
}

impl RidgeParams {
    /// Like [`super::LinearParams::fit_groups`]. With an invalid parameter, every group reports the error by itself.
    pub(crate) fn fit_groups(&self, groups: &Groups<'_>) -> Vec<Option<LinearModel>> {
        match not_negative("alpha", self.alpha) {
            Ok(()) => fit_groups(groups, self.fit_intercept, self.alpha),
            Err(_) => Vec::new(),
        }
    }

    /// Fits the coefficients that minimise the objective.
    ///
    /// # Errors
    /// The errors of [`super::LinearParams::fit_features`], and [`LinearError::Parameter`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<LinearModel, LinearError> {
        not_negative("alpha", self.alpha)?;
        fit(features, target, self.fit_intercept, self.alpha)
    }
}
