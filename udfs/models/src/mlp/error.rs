use sandbar_guest::dense::DenseError;

use crate::linear::LinearError;

/// Why a perceptron can't be trained.
#[derive(Debug, thiserror::Error)]
pub enum MlpError {
    /// As for linear models.
    #[error(transparent)]
    Data(#[from] LinearError),
    /// A parameter outside its range.
    #[error("{0}")]
    Parameter(String),
    /// From the host's dense algebra.
    #[error(transparent)]
    Dense(#[from] DenseError),
    /// The loss is not a number any more.
    #[error("the loss is not finite in epoch {0}: take a smaller learning_rate")]
    Diverged(u32),
}
