//! Errors of jobs and programs.

use std::io;
use std::path::{Path, PathBuf};

use sandbar_core::{Fault, TaskError};
use sandbar_dataset::DatasetError;
use sandbar_functions::FunctionError;
use sandbar_jobs::JobFailure;
use sandbar_train::TrainError;

/// Error of a whole job or program.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The job or the command is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A named file, component or crate does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Finding files of arguments failed.
    #[error("{0} [{code}]", code = .0.code().as_str())]
    Data(#[from] DatasetError),
    /// A component is unusable, or a transform failed.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// A program's first task failed.
    #[error("{0}")]
    Task(TaskError),
    /// The user stopped the job.
    #[error("stopped by `host jobs stop`")]
    Stopped,
    /// The client disconnected, or the node shut down.
    #[error("its client disconnected, or the node shut down")]
    Dropped,
    /// Finding, building or loading a function failed.
    #[error(transparent)]
    Function(FunctionError),
    /// A job file's job or a prediction failed.
    #[error(transparent)]
    Train(TrainError),
    /// Reading or writing a file failed.
    #[error("{}: {reason}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// A task of the node panicked or was cancelled.
    #[error("a part of the node ended early: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

impl From<FunctionError> for NodeError {
    fn from(error: FunctionError) -> NodeError {
        match error {
            FunctionError::Invalid(message) => NodeError::Invalid(message),
            FunctionError::NotFound(message) => NodeError::NotFound(message),
            FunctionError::Fault(fault) => NodeError::Fault(fault),
            other => NodeError::Function(other),
        }
    }
}

impl From<TrainError> for NodeError {
    fn from(error: TrainError) -> NodeError {
        match error {
            TrainError::Invalid(message) => NodeError::Invalid(message),
            TrainError::NotFound(message) => NodeError::NotFound(message),
            TrainError::Fault(fault) => NodeError::Fault(fault),
            other => NodeError::Train(other),
        }
    }
}

impl NodeError {
    /// Returns the error for a job's record.
    pub(crate) fn failure(&self) -> JobFailure {
        match self {
            NodeError::Task(TaskError { fault, chain }) => JobFailure::from_fault(fault, chain),
            NodeError::Fault(fault) => JobFailure::from_fault(fault, &[]),
            other => JobFailure::from_message(other.to_string()),
        }
    }

    /// Returns a conversion from an I/O error of a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> NodeError + use<> {
        let path = path.to_owned();
        move |reason| NodeError::File { path, reason }
    }
}
