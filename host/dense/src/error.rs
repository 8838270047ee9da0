//! Errors of dense operations.

/// Error of an operation: invalid inputs, or a failing device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DenseError {
    /// The shape is invalid.
    #[error("{0}")]
    Shape(String),
    /// The operation does not accept these tensors.
    #[error("`{operation}` {why}")]
    Inputs {
        /// Name of the operation.
        operation: &'static str,
        /// Reason.
        why: String,
    },
    /// The description of the operation is invalid.
    #[error("`{operation}` is invalid: {why}")]
    Operation {
        /// Name of the operation.
        operation: &'static str,
        /// Reason.
        why: String,
    },
    /// The tensor or kernel does not exist: it was dropped.
    #[error("tensor or kernel {0} does not exist: it was dropped")]
    NoTensor(u32),
    /// Memory for the outputs is missing.
    #[error("not enough memory for tensors: {0}")]
    Memory(String),
    /// The session has no GPU for a kernel.
    #[error("a kernel needs a GPU, and none is available; request one (`gpus`) on a node that has a GPU")]
    NoGpu,
    /// A kernel is invalid, or does not accept its arguments.
    #[error("{0}")]
    Kernel(String),
    /// Work on a GPU exceeded its time limit.
    #[error("{0}")]
    TimeOut(String),
    /// The caller does not want the result any longer.
    #[error("it was cancelled")]
    Cancelled,
    /// The GPU and all of its tensors are lost.
    #[error("{0}")]
    Lost(String),
}

impl DenseError {
    pub(crate) fn inputs(operation: &'static str, why: impl Into<String>) -> DenseError {
        DenseError::Inputs { operation, why: why.into() }
    }
}
