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
    /// A place, a bin or an offset of a tensor is none.
    #[error("`{operation}`: {why}")]
    Value {
        /// Its name.
        operation: &'static str,
        /// Which value, and what it may be.
        why: String,
    },
}

impl DenseError {
    pub(crate) fn inputs(operation: &'static str, why: impl Into<String>) -> DenseError {
        DenseError::Inputs { operation, why: why.into() }
    }

    pub(crate) fn value(operation: &'static str, why: impl Into<String>) -> DenseError {
        DenseError::Value { operation, why: why.into() }
    }
}
