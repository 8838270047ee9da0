use sandbar_guest::dense::DenseError;

use crate::linear::LinearError;

/// The error of training a perceptron.
#[derive(Debug, thiserror::Error)]
pub enum MlpError {
    /// An error of linear models.
    #[error(transparent)]
    Data(#[from] LinearError),
    /// A parameter is out of range.
    #[error("{0}")]
    Parameter(String),
    /// An error of the host's dense algebra.
    #[error(transparent)]
    Dense(#[from] DenseError),
    /// The loss is no longer finite.
    #[error("the loss is not finite in epoch {0}: take a smaller learning_rate")]
    Diverged(u32),
}
