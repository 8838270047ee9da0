use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use crate::linear::LinearModel;

/// A fitted logistic model: predicts the probability that the target is 1.
///
/// Read back from bytes, its numbers must be finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogisticModel {
    /// The logarithm of the odds, which is linear in the features.
    pub log_odds: LinearModel,
    /// Steps taken.
    pub iterations: u32,
    /// Whether the last step gained less than the tolerance. It does not where the features tell the outcomes apart
    /// without error and nothing is penalised: then the best coefficients are infinite.
    pub converged: bool,
}

impl LogisticModel {
    /// Predicts each row of `features` into `out`.
    ///
    /// # Panics
    /// If `features` has another width than the model, or other rows than `out`.
    pub fn predict_into(&self, features: Features<'_>, out: &mut [f64]) {
        self.log_odds.predict_into(features, out);
        out.iter_mut().for_each(|odds| *odds = 1.0 / (1.0 + (-*odds).exp()));
    }
}
