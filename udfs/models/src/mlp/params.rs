use serde::{Deserialize, Serialize};

use super::MlpError;

/// Maximum number of neurons per layer, and of layers.
const NEURONS_MAX: u32 = 1 << 16;
const LAYERS_MAX: usize = 16;

/// Hyperparameters of a [`MlpModel`](super::MlpModel).
///
/// Minimises half the mean squared error, relative to a target of variance 1, plus `alpha / 2` times the sum of squared
/// weights, per row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MlpParams {
    /// Number of neurons of each hidden layer; `[100]` by default.
    pub hidden_layer_sizes: Vec<u32>,
    /// Weight of the penalty on squares, at least 0; 0.0001 by default.
    pub alpha: f64,
    /// Adam's initial step size, above 0; 0.001 by default.
    pub learning_rate: f64,
    /// Rows per step, at least 1; 200 by default.
    pub batch_size: u32,
    /// Maximum number of passes over the rows, at least 1; 200 by default.
    pub max_epochs: u32,
    /// Minimum decrease of the loss within `patience` epochs; training stops below it. 0.0001 by default.
    pub tolerance: f64,
    /// Number of epochs for `tolerance`; 10 by default.
    pub patience: u32,
}

impl Default for MlpParams {
    fn default() -> Self {
        MlpParams {
            hidden_layer_sizes: vec![100],
            alpha: 1e-4,
            learning_rate: 1e-3,
            batch_size: 200,
            max_epochs: 200,
            tolerance: 1e-4,
            patience: 10,
        }
    }
}

impl MlpParams {
    /// Checks the ranges of all parameters.
    pub(super) fn check(&self) -> Result<(), MlpError> {
        let wrong = |reason: &str| Err(MlpError::Parameter(reason.to_owned()));
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        let has_neurons = |size: &u32| (1..=NEURONS_MAX).contains(size);
        if !self.hidden_layer_sizes.iter().all(has_neurons) || self.hidden_layer_sizes.len() > LAYERS_MAX {
            return wrong("hidden_layer_sizes has up to 16 layers, each from 1 to 65536 neurons");
        }
        if !(self.alpha.is_finite() && self.alpha >= 0.0) {
            return wrong("alpha is at least 0 and finite");
        }
        if !is_positive(self.learning_rate) {
            return wrong("learning_rate is above 0 and finite");
        }
        if !(self.tolerance.is_finite() && self.tolerance >= 0.0) {
            return wrong("tolerance is at least 0 and finite");
        }
        if self.batch_size == 0 || self.max_epochs == 0 || self.patience == 0 {
            return wrong("batch_size, max_epochs and patience are at least 1");
        }
        Ok(())
    }
}
