use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use crate::linear::LinearModel;

/// A fitted logistic model: predicts the probability that the target is 1.
///
/// Read back from bytes, its numbers must be finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogisticModel {
    /// The logarithm of the odds, which is linear in the features.
    pub(super) log_odds: LinearModel,
    /// See [`LogisticModel::gradient`].
    pub(super) gradient: f64,
}

impl LogisticModel {
    /// The model of the logarithm of the odds.
    pub fn log_odds(&self) -> &LinearModel {
        &self.log_odds
    }

    /// The largest component of the objective's gradient where the optimiser ended, divided by the rows: near zero when it
    /// converged.
    pub fn gradient(&self) -> f64 {
        self.gradient
    }

    /// Predicts each row of `features` into `out`.
    ///
    /// # Panics
    /// If `features` has another width than the model, or other rows than `out`.
    pub fn predict_into(&self, features: Features<'_>, out: &mut [f64]) {
        self.log_odds.predict_into(features, out);
        out.iter_mut().for_each(|value| *value = probability(*value));
    }
}

/// The probability of these log odds.
pub(super) fn probability(log_odds: f64) -> f64 {
    1.0 / (1.0 + (-log_odds).exp())
}
