//! Files that a program was given: how it is told of them. A guest may say any number; the node knows what each stands for.

use serde::{Deserialize, Serialize};

/// Names of so many files are read together, as one object: a list of texts, in postcard.
pub const FILE_NAMES_PER_OBJECT: u64 = 1024;

/// A file that a program was given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a file: it is given as --arg NAME=@PATH")]
pub struct FileRef {
    /// By which it is opened.
    pub number: u64,
    /// Its path, as it is shown.
    pub name: String,
}

/// Files that a program was given together, with numbers one behind another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "files: they are given as --arg NAME=@PATH, a folder or a glob")]
pub struct FileListRef {
    /// The number of the first.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// By this number the names of the first [`FILE_NAMES_PER_OBJECT`] are opened, by those behind it the names of as many
    /// more each.
    pub names: u64,
}
