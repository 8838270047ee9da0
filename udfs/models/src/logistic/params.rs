use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use super::newton::Objective;
use super::{LogisticError, LogisticModel};
use crate::linear::{LinearError, MomentsOptions, Workspace, checked_moments, not_negative, through};

/// Parameters of a [`LogisticModel`].
///
/// Minimises `Σ log-loss + alpha / 2 · ‖w‖²`; scikit-learn's `C` is `1 / alpha`. The intercept is not penalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogisticParams {
    /// Weight of the penalty, at least 0; 1 by default.
    pub alpha: f64,
    /// Whether to fit an intercept; otherwise the odds are even where all features are zero. True by default.
    pub fit_intercept: bool,
    /// Maximum number of steps, at least 1; 100 by default. Most fits need at most ten.
    pub max_iterations: u32,
    /// Share of the objective that a step must gain to continue; 10⁻⁹ by default.
    pub tolerance: f64,
}

impl Default for LogisticParams {
    fn default() -> Self {
        LogisticParams { alpha: 1.0, fit_intercept: true, max_iterations: 100, tolerance: 1e-9 }
    }
}

impl LogisticParams {
    /// Fits the model that minimises the objective; `target` is 0 or 1 in each row.
    ///
    /// # Errors
    /// [`LogisticError::NotBinary`], [`LogisticError::OneClass`], and, as [`LogisticError::Linear`], the errors of
    /// [`crate::linear::LinearParams::fit_features`] and [`LinearError::Parameter`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<LogisticModel, LogisticError> {
        self.check()?;
        let mut workspace = Workspace::new();
        let options = MomentsOptions { centred: self.fit_intercept, target_square: false };
        let moments = checked_moments(features, target, options, &mut workspace)?;
        let ones = count_ones(target)?;
        let mut weights = vec![0.0; features.width()];
        if self.fit_intercept {
            weights.push((ones as f64 / (target.len() - ones) as f64).ln());
        }
        let objective = Objective { features, target, moments: &moments, alpha: self.alpha };
        let mut found = objective.minimise(weights, self.max_iterations, self.tolerance);
        let at_means = if self.fit_intercept { found.weights.pop().unwrap_or(0.0) } else { 0.0 };
        let log_odds = through(&moments, at_means, found.weights)?;
        Ok(LogisticModel { log_odds, iterations: found.iterations, converged: found.converged })
    }

    fn check(&self) -> Result<(), LinearError> {
        not_negative("alpha", self.alpha)?;
        not_negative("tolerance", self.tolerance)?;
        match self.max_iterations {
            0 => Err(LinearError::Parameter { name: "max_iterations", value: "0".to_owned(), range: "at least 1" }),
            _ => Ok(()),
        }
    }
}

/// Counts the targets that are 1. Rejects targets of one class.
fn count_ones(target: &[f64]) -> Result<usize, LogisticError> {
    if let Some(row) = target.iter().position(|y| *y != 0.0 && *y != 1.0) {
        return Err(LogisticError::NotBinary { row, value: target[row] });
    }
    let ones = target.iter().filter(|y| **y == 1.0).count();
    match ones == 0 || ones == target.len() {
        true => Err(LogisticError::OneClass { value: target[0], rows: target.len() }),
        false => Ok(ones),
    }
}
