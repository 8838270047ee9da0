use linfa::Dataset;
use linfa::traits::Fit;
use linfa_logistic::LogisticRegression;
use ndarray::{Array1, Array2, ShapeBuilder};
use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use super::model::probability;
use super::{LogisticError, LogisticModel};
use crate::linear::{LinearError, LinearModel, Wanted, checked_moments, not_negative};

/// How to fit a [`LogisticModel`].
///
/// Minimises `Σ log-loss + alpha / 2 · ‖w‖²`; scikit-learn's `C` is `1 / alpha`. The intercept is not penalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogisticParams {
    /// The weight of the penalty, at least 0; 1 by default.
    pub alpha: f64,
    /// Whether to fit an intercept; without one the odds are even where all features are zero. True by default.
    pub fit_intercept: bool,
    /// The most steps of the optimiser, at least 1; 100 by default.
    pub max_iterations: u64,
    /// It is done when the gradient's norm is below this; 0.0001 by default.
    pub tolerance: f64,
}

impl Default for LogisticParams {
    fn default() -> Self {
        LogisticParams { alpha: 1.0, fit_intercept: true, max_iterations: 100, tolerance: 1e-4 }
    }
}

impl LogisticParams {
    /// Fits the model that minimises the objective; `target` is 0 or 1 in each row.
    ///
    /// # Errors
    /// [`LogisticError::NotBinary`], [`LogisticError::OneClass`], [`LogisticError::Optimiser`], and as
    /// [`LogisticError::Linear`] those of [`crate::linear::LinearParams::fit_features`] and [`LinearError::Parameter`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<LogisticModel, LogisticError> {
        self.check()?;
        let moments = checked_moments(features, target, Wanted { centred: self.fit_intercept, target_square: false })?;
        let outcomes = outcomes(target)?;
        let (rows, width) = (features.rows(), features.width());
        let mut records = Vec::with_capacity(rows * width);
        (0..width).for_each(|j| moments.centre(j, features.column(j), &mut records));
        let records = Array2::from_shape_vec((rows, width).f(), records).map_err(|e| LinearError::Linfa(e.into()))?;
        let dataset = Dataset::new(records, outcomes);
        let fitted = LogisticRegression::default()
            .alpha(self.alpha)
            .with_intercept(self.fit_intercept)
            .max_iterations(self.max_iterations)
            .gradient_tolerance(self.tolerance)
            .fit(&dataset)?;
        // linfa predicts the class of more rows.
        let sign = if fitted.labels().pos.class { 1.0 } else { -1.0 };
        let coefficients: Vec<f64> = fitted.params().iter().map(|w| sign * w).collect();
        let at_means: f64 = coefficients.iter().enumerate().map(|(j, w)| w * moments.mean(j)).sum();
        let log_odds = LinearModel::new(sign * fitted.intercept() - at_means, coefficients);
        let gradient = self.gradient(&log_odds, features, target);
        match log_odds.intercept().is_finite() && gradient.is_finite() {
            true => Ok(LogisticModel { log_odds, gradient }),
            false => Err(LinearError::TooLarge.into()),
        }
    }

    fn check(&self) -> Result<(), LinearError> {
        let wrong = |name, value, range| Err(LinearError::Parameter { name, value, range });
        not_negative("alpha", self.alpha)?;
        if !self.tolerance.is_finite() || self.tolerance <= 0.0 {
            return wrong("tolerance", self.tolerance.to_string(), "more than 0 and finite");
        }
        match self.max_iterations {
            0 => wrong("max_iterations", "0".to_owned(), "at least 1"),
            _ => Ok(()),
        }
    }

    /// See [`LogisticModel::gradient`].
    fn gradient(&self, model: &LinearModel, features: Features<'_>, target: &[f64]) -> f64 {
        let mut errors = vec![0.0; target.len()];
        model.predict_into(features, &mut errors);
        errors.iter_mut().zip(target).for_each(|(error, y)| *error = probability(*error) - y);
        let along = |j: usize| features.column(j).iter().zip(&errors).map(|(x, error)| x * error).sum::<f64>();
        let of_weights = model.coefficients().iter().enumerate().map(|(j, w)| along(j) + self.alpha * w);
        let of_intercept = if self.fit_intercept { errors.iter().sum() } else { 0.0 };
        of_weights.chain([of_intercept]).fold(0.0_f64, |most, g| most.max(g.abs())) / target.len() as f64
    }
}

fn outcomes(target: &[f64]) -> Result<Array1<bool>, LogisticError> {
    if let Some(row) = target.iter().position(|y| *y != 0.0 && *y != 1.0) {
        return Err(LogisticError::NotBinary { row, value: target[row] });
    }
    match target.iter().all(|y| *y == target[0]) {
        true => Err(LogisticError::OneClass { value: target[0], rows: target.len() }),
        false => Ok(target.iter().map(|y| *y == 1.0).collect()),
    }
}
