//! Why a job as a whole did not finish.

use std::io;
use std::path::{Path, PathBuf};

use sandbar_core::{Fault, TaskError};
use sandbar_dataset::DatasetError;
use sandbar_jobs::JobFailure;

use crate::build::BuildError;

/// Why a job as a whole did not finish. What happens to single groups is in the
/// summary.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The job contradicts itself.
    #[error("{0}")]
    Job(String),
    /// Something that the job or the command names is not there; what was looked for, and where.
    #[error("{0}")]
    NotFound(String),
    /// Reading, grouping or writing failed.
    #[error("{0} [{code}]", code = .0.code().as_str())]
    Data(#[from] DatasetError),
    /// A component can't be used, or a transform failed.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// A program's first task failed.
    #[error("{0}")]
    Task(TaskError),
    /// Somebody ended the job.
    #[error("stopped by `host jobs stop`")]
    Stopped,
    /// Its client, or its node, was dropped before it ended.
    #[error("its client let go of it, or ended")]
    Dropped,
    /// A crate can't be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A file can't be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// There is nothing to write, and something that it would replace.
    #[error("no model was trained: {reason}; {} is left as it was", output.display())]
    NoModel {
        /// What there was instead.
        reason: String,
        /// What an earlier job wrote.
        output: PathBuf,
    },
    /// Components, without which models can't be used, can't be kept.
    #[error("the cache folder {} can't be written ({reason}); set XDG_CACHE_HOME to a folder that can", folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// A part of the node panicked or was cancelled.
    #[error("a part of the node ended early: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

impl NodeError {
    /// Returns the error as a job's record has it.
    pub(crate) fn failure(&self) -> JobFailure {
        match self {
            NodeError::Task(TaskError { fault, chain }) => JobFailure::from_fault(fault, chain),
            NodeError::Fault(fault) => JobFailure::from_fault(fault, &[]),
            other => JobFailure::from_message(other.to_string()),
        }
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> NodeError + use<> {
        let path = path.to_owned();
        move |reason| NodeError::File { path, reason }
    }
}
