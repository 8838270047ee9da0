//! References to a job's files, as a program receives them. A guest may send any number; the node validates it.

use serde::{Deserialize, Serialize};

/// Number of file names in one object: a list of strings, in postcard.
pub const FILE_NAMES_PER_OBJECT: u64 = 1024;

/// A file of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a file: it is given as --arg NAME=@PATH")]
pub struct FileRef {
    /// Number by which the file is opened.
    pub number: u64,
    /// Path to display.
    pub name: String,
}

/// A list of files of a job, with consecutive numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "files: they are given as --arg NAME=@PATH, a folder or a glob")]
pub struct FileListRef {
    /// Number of the first file.
    pub first: u64,
    /// Number of files.
    pub count: u64,
    /// Number by which the first [`FILE_NAMES_PER_OBJECT`] names are opened. Each following number opens the next
    /// names, again [`FILE_NAMES_PER_OBJECT`] of them.
    pub names: u64,
}
