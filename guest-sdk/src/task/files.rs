//! Input files of a job: the values of `@` arguments on the command line.

use std::vec;

use sandbar_core::{FILE_NAMES_PER_OBJECT, FileListRef, FileRef, TaskError};
use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::call_builder::Arg;
use super::object::{ObjectRef, release_if_many};
use crate::host;

/// An input file of the job: `--arg data=@housing.csv` for a task with the parameter `data: File`.
///
/// It consists of a name and a number. It is a value like any other: every task of the job that receives it can open
/// it.
///
/// ```
/// use sandbar_guest::prelude::*;
///
/// /// The number of lines of a file.
/// #[task]
/// fn lines(file: File) -> Result<usize, TaskError> {
///     Ok(file.bytes()?.split(|byte| *byte == b'\n').count())
/// }
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("data.csv");
/// # std::fs::write(&path, "a\nb").unwrap();
/// let file = sandbar_guest::testing::file(path);
/// assert_eq!(lines::submit(&file).get(), Ok(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct File(FileRef);

impl File {
    /// Path of the file, as written in the job's arguments.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Asks the host to read the file into an object. The object can be passed to other tasks without loading its bytes
    /// here.
    pub fn open(&self) -> ObjectRef<Bytes> {
        release_if_many();
        ObjectRef::from_number(host::open(self.0.number))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// [`Code::Input`](crate::Code::Input) when the file can't be read, or has changed since the job started.
    pub fn bytes(&self) -> Result<Bytes, TaskError> {
        self.open().get()
    }
}

#[cfg(not(target_family = "wasm"))]
impl From<FileRef> for File {
    fn from(file: FileRef) -> File {
        File(file)
    }
}

impl From<&File> for Arg<File> {
    fn from(file: &File) -> Self {
        Arg::from(file.clone())
    }
}

/// Several input files of the job, sorted by name: `--arg files=@folder` or `--arg files=@folder/*.csv` for a task with
/// the parameter `files: Files`.
///
/// Its size does not depend on the number of files: it loads names on demand.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Files(FileListRef);

impl Files {
    /// Number of files.
    pub fn len(&self) -> usize {
        usize::try_from(self.0.count).unwrap_or(usize::MAX)
    }

    /// Whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// Iterates over the files.
    ///
    /// # Panics
    /// Panics when the names can't be loaded, because the host has no memory for them.
    pub fn iter(&self) -> FilesIter {
        FilesIter { files: self.0.clone(), next: 0, names: Vec::new().into_iter() }
    }
}

#[cfg(not(target_family = "wasm"))]
impl From<FileListRef> for Files {
    fn from(files: FileListRef) -> Files {
        Files(files)
    }
}

impl From<&Files> for Arg<Files> {
    fn from(files: &Files) -> Self {
        Arg::from(files.clone())
    }
}

impl IntoIterator for Files {
    type Item = File;
    type IntoIter = FilesIter;

    fn into_iter(self) -> FilesIter {
        self.iter()
    }
}

impl IntoIterator for &Files {
    type Item = File;
    type IntoIter = FilesIter;

    fn into_iter(self) -> FilesIter {
        self.iter()
    }
}

/// An iterator over [`Files`].
#[derive(Debug, Clone)]
pub struct FilesIter {
    files: FileListRef,
    next: u64,
    /// Names of the next files.
    names: vec::IntoIter<String>,
}

impl Iterator for FilesIter {
    type Item = File;

    fn next(&mut self) -> Option<File> {
        let FileListRef { first, count, names } = self.files;
        if self.next >= count {
            return None;
        }
        if self.names.len() == 0 {
            release_if_many();
            let some: ObjectRef<Vec<String>> =
                ObjectRef::from_number(host::open(names.saturating_add(self.next / FILE_NAMES_PER_OBJECT)));
            let some = some.get().unwrap_or_else(|error| panic!("file names can't be loaded: {error}"));
            self.names = some.into_iter();
        }
        let (number, name) = (first.saturating_add(self.next), self.names.next()?);
        self.next += 1;
        Some(File(FileRef { number, name }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.files.count - self.next).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for FilesIter {}
