//! Errors of jobs and predictions.

use std::io;
use std::path::{Path, PathBuf};

use sandbar_core::Fault;
use sandbar_dataset::DatasetError;
use sandbar_functions::FunctionError;

/// Error of a whole job or prediction. Failures of single groups are in its summary.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The job is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A named file does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Reading, grouping or writing rows failed.
    #[error("{0} [{code}]", code = .0.code().as_str())]
    Data(#[from] DatasetError),
    /// A transform failed, or a component is unusable.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// Finding, building or loading a function failed.
    #[error(transparent)]
    Function(FunctionError),
    /// Reading or writing a file failed.
    #[error("{}: {reason}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// No model was trained, and the output of an earlier job exists.
    #[error("no model was trained: {reason}; {} is left as it was", output.display())]
    NoModel {
        /// Why no model was trained.
        reason: String,
        /// Output of the earlier job.
        output: PathBuf,
    },
    /// A task of the job panicked or was cancelled.
    #[error("a task of the job ended early: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

impl From<FunctionError> for TrainError {
    fn from(error: FunctionError) -> TrainError {
        match error {
            FunctionError::Invalid(message) => TrainError::Invalid(message),
            FunctionError::NotFound(message) => TrainError::NotFound(message),
            FunctionError::Fault(fault) => TrainError::Fault(fault),
            other => TrainError::Function(other),
        }
    }
}

impl TrainError {
    /// Returns a conversion from an I/O error of a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> TrainError + use<> {
        let path = path.to_owned();
        move |reason| TrainError::File { path, reason }
    }
}
