//! Errors of the job store.

use std::io;
use std::path::PathBuf;

/// Error of the job store.
#[derive(Debug, thiserror::Error)]
pub enum JobStoreError {
    /// No job has this name.
    #[error("there is no job {0}; `host jobs list` lists them")]
    Unknown(String),
    /// Several jobs match.
    #[error("job {text} is ambiguous, it matches {}; give more of its digits", .names.join(", "))]
    Ambiguous {
        /// The name, or the first of its digits, that was searched.
        text: String,
        /// Short names of the matching jobs.
        names: Vec<String>,
    },
    /// The store has no jobs.
    #[error("there are no jobs yet")]
    Empty,
    /// The job is running and can't be removed.
    #[error("job {0} is running; stop it first")]
    Running(String),
    /// A file or folder can't be read or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
}
