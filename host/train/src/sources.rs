//! Files that a job reads and writes instead of its paths.

use std::path::PathBuf;
use std::sync::Arc;

use sandbar_dataset::NamedFile;
use sandbar_functions::NamedComponent;

/// What a job reads and writes instead of its paths. The paths remain in messages and in the metadata of models.
#[derive(Debug, Clone)]
pub struct JobSources {
    /// Input files.
    pub inputs: Arc<[NamedFile]>,
    /// Components of its functions.
    pub components: Arc<[NamedComponent]>,
    /// Output file.
    pub output: PathBuf,
}
