//! What can go wrong with dense work.

/// Why an operation does not take its inputs, or a device does not do it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DenseError {
    /// No tensor has such a shape.
    #[error("{0}")]
    Shape(String),
    /// The operation does not take these tensors.
    #[error("`{operation}` {why}")]
    Inputs {
        /// Its name.
        operation: &'static str,
        /// What is wrong with them.
        why: String,
    },
    /// What describes the operation is none.
    #[error("`{operation}` can't be: {why}")]
    Operation {
        /// Its name.
        operation: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// There is no tensor, or no kernel, of this number: it was dropped.
    #[error("there is no tensor or kernel {0}: it was dropped")]
    NoTensor(u32),
    /// There is no room for what should come of it.
    #[error("there is no room for tensors: {0}")]
    Memory(String),
    /// Kernels run on GPUs alone, and there is none for it.
    #[error("a kernel needs a GPU, and there is none for it: ask for one (`gpus`), on a node that has one")]
    NoGpu,
    /// A kernel is none, or does not take what it is given.
    #[error("{0}")]
    Kernel(String),
    /// What a GPU was given took too long.
    #[error("{0}")]
    TimeOut(String),
    /// The GPU is gone, with all that was on it.
    #[error("{0}")]
    Lost(String),
}

impl DenseError {
    pub(crate) fn inputs(operation: &'static str, why: impl Into<String>) -> DenseError {
        DenseError::Inputs { operation, why: why.into() }
    }
}
