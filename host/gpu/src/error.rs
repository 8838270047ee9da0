//! What can go wrong with a GPU.

use sandbar_dense::{DenseError, Spec};

/// Why a GPU does not do what it was asked to.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is none, or it may not be used.
    #[error("{0}")]
    Unusable(String),
    /// The operation does not take its inputs.
    #[error(transparent)]
    Dense(#[from] DenseError),
    /// It does not do this one: the processor does.
    #[error("the GPU does not do `{0}` of such tensors")]
    NotHere(&'static str),
    /// A tensor is larger than the device takes.
    #[error("{spec} takes {bytes} bytes, the GPU takes tensors of {most} at most")]
    Size {
        /// The tensor.
        spec: Spec,
        /// Its bytes.
        bytes: u64,
        /// Those of the largest.
        most: u64,
    },
    /// There is not enough memory: of what may be taken, or of what there is.
    #[error("{wanted} bytes more are over the GPU's memory for this tenant: {taken} of {limit} bytes are taken")]
    Memory {
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that are taken.
        taken: u64,
        /// Bytes that may be.
        limit: u64,
    },
    /// A kernel is none, or is over a limit.
    #[error("{0}")]
    Kernel(String),
    /// The device is lost: what was on it is gone.
    #[error("the GPU is lost: {0}")]
    Lost(String),
}
