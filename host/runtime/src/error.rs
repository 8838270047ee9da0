//! Errors of programs.

use std::io;
use std::path::{Path, PathBuf};

use sandbar_core::{Fault, TaskError};
use sandbar_dataset::DatasetError;
use sandbar_functions::FunctionError;
use sandbar_jobs::JobFailure;

/// Error of a whole program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The arguments are invalid.
    #[error("{0}")]
    Invalid(String),
    /// A named component or crate does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Finding the files of an argument failed.
    #[error("{0} [{code}]", code = .0.code().as_str())]
    Data(#[from] DatasetError),
    /// The program's component is unusable, or the node can't run programs.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The program's first task failed.
    #[error("{0}")]
    Task(TaskError),
    /// The user stopped the job.
    #[error("stopped by `host jobs stop`")]
    Stopped,
    /// The client disconnected, or the node shut down.
    #[error("its client disconnected, or the node shut down")]
    Dropped,
    /// Building or loading the program failed.
    #[error(transparent)]
    Function(FunctionError),
    /// Reading a file failed.
    #[error("{}: {reason}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// A task of the node panicked or was cancelled.
    #[error("a task of the node panicked or was cancelled: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

impl From<FunctionError> for ProgramError {
    fn from(error: FunctionError) -> ProgramError {
        match error {
            FunctionError::Invalid(message) => ProgramError::Invalid(message),
            FunctionError::NotFound(message) => ProgramError::NotFound(message),
            FunctionError::Fault(fault) => ProgramError::Fault(fault),
            other => ProgramError::Function(other),
        }
    }
}

impl ProgramError {
    /// Returns the error for a job's record.
    pub fn failure(&self) -> JobFailure {
        match self {
            ProgramError::Task(TaskError { fault, chain }) => JobFailure::from_fault(fault, chain),
            ProgramError::Fault(fault) => JobFailure::from_fault(fault, &[]),
            other => JobFailure::from_message(other.to_string()),
        }
    }

    /// Returns a conversion from an I/O error of a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> ProgramError + use<> {
        let path = path.to_owned();
        move |reason| ProgramError::File { path, reason }
    }
}
