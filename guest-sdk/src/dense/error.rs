//! Errors of dense operations.

use std::fmt;

use crate::bindings::dense as contract;

/// The error of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseError {
    /// The kind of error.
    pub kind: DenseErrorKind,
    /// The error as text.
    pub message: String,
}

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenseErrorKind {
    /// The operation does not accept these tensors, or a tensor's shape is invalid.
    Shape,
    /// Memory is exhausted.
    Memory,
    /// The kernel is invalid, or does not accept its arguments.
    Kernel,
    /// No GPU is available, and a kernel needs one.
    NoGpu,
    /// The GPU work exceeded its time limit.
    TimeOut,
    /// The GPU and all tensors on it were lost.
    Lost,
}

impl fmt::Display for DenseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DenseError {}

impl From<DenseError> for String {
    fn from(error: DenseError) -> String {
        error.message
    }
}

impl From<contract::Error> for DenseError {
    fn from(error: contract::Error) -> DenseError {
        let kind = match error.code {
            contract::ErrorCode::Shape => DenseErrorKind::Shape,
            contract::ErrorCode::Memory => DenseErrorKind::Memory,
            contract::ErrorCode::Kernel => DenseErrorKind::Kernel,
            contract::ErrorCode::NoGpu => DenseErrorKind::NoGpu,
            contract::ErrorCode::TimeOut => DenseErrorKind::TimeOut,
            contract::ErrorCode::Lost => DenseErrorKind::Lost,
        };
        DenseError { kind, message: error.message }
    }
}
