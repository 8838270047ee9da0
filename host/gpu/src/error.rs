//! Errors of GPUs.

use sandbar_dense::{DenseError, Spec};

/// Error of a request to a GPU.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The GPU does not exist, or must not be used.
    #[error("{0}")]
    Unusable(String),
    /// The operation does not accept its inputs.
    #[error(transparent)]
    Dense(#[from] DenseError),
    /// The GPU does not support the operation; the processor does.
    #[error("the GPU does not support `{0}` for these tensors")]
    Unsupported(&'static str),
    /// A tensor exceeds the device's maximum size.
    #[error("{spec} takes {bytes} bytes, the GPU's maximum for one tensor is {max}")]
    Size {
        /// Tensor.
        spec: Spec,
        /// Bytes of the tensor.
        bytes: u64,
        /// Maximum bytes of a tensor.
        max: u64,
    },
    /// The memory limit or the device's memory is exhausted.
    #[error("{requested} more bytes exceed the GPU memory limit: {used} of {limit} bytes are in use")]
    Memory {
        /// Requested bytes.
        requested: u64,
        /// Bytes in use.
        used: u64,
        /// Limit in bytes.
        limit: u64,
    },
    /// A kernel is invalid, or exceeds a limit.
    #[error("{0}")]
    Kernel(String),
    /// The device and all of its tensors are lost.
    #[error("the GPU is lost: {0}")]
    Lost(String),
}
