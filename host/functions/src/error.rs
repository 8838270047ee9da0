//! Errors of finding, building and loading functions.

use std::io;
use std::path::{Path, PathBuf};

use sandbar_core::Fault;

use crate::build::BuildError;

/// Error while finding, building or loading a function.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// The job or the command names a function wrongly.
    #[error("{0}")]
    Invalid(String),
    /// A named component or crate does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A component is unusable.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// Building a crate failed.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Reading a file failed.
    #[error("{}: {reason}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// The cache, which keeps the components of models, is not writable.
    #[error("the cache folder {} can't be written ({reason}); set XDG_CACHE_HOME to a folder that can", folder.display())]
    Cache {
        /// Cache folder.
        folder: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
}

impl FunctionError {
    /// Returns a conversion from an I/O error of a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> FunctionError + use<> {
        let path = path.to_owned();
        move |reason| FunctionError::File { path, reason }
    }
}
