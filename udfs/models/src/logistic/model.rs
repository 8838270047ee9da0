use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use crate::linear::LinearModel;

/// A fitted logistic model: predicts the probability that the target is 1.
///
/// Deserialised numbers must be finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogisticModel {
    /// The logarithm of the odds, linear in the features.
    pub log_odds: LinearModel,
    /// Number of steps.
    pub iterations: u32,
    /// Whether the last step gained less than the tolerance. False if the features separate the outcomes without error
    /// and nothing is penalised: the best coefficients are then infinite.
    pub converged: bool,
}

impl LogisticModel {
    /// Predicts each row of `features` into `out`.
    ///
    /// # Panics
    /// Panics if `features` and the model differ in width, or `features` and `out` in length.
    pub fn predict_into(&self, features: Features<'_>, out: &mut [f64]) {
        self.log_odds.predict_into(features, out);
        out.iter_mut().for_each(|odds| *odds = 1.0 / (1.0 + (-*odds).exp()));
    }
}
