//! Files that a job was given: what `@` in its arguments stands for.

use std::vec;

use sandbar_core::{FILE_NAMES_PER_OBJECT, FileListRef, FileRef, TaskError};
use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::call::Arg;
use super::object::{ObjectRef, release_many};
use crate::host;

/// A file that the job was given: `--arg data=@housing.csv` for a task that takes `data: File`.
///
/// It is a name and a number, and a value like any other: each task of the job that has it may open it.
///
/// ```
/// use sandbar_guest::prelude::*;
///
/// /// How many lines a file has.
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
    /// Its path, as the job was given it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Has the host read it. The bytes are an object, for whoever wants them: tasks are given them without that they pass
    /// through this one.
    pub fn open(&self) -> ObjectRef<Bytes> {
        release_many();
        ObjectRef::held(host::open(self.0.number))
    }

    /// What it holds.
    ///
    /// # Errors
    /// [`Code::Input`](crate::Code::Input) when it can't be read, or has changed since the job began.
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

/// Files that the job was given together, in the order of their names: `--arg files=@folder` or `--arg files=@folder/*.csv`
/// for a task that takes `files: Files`.
///
/// It is as small for a million of them as for one: names come as they are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Files(FileListRef);

impl Files {
    /// How many there are.
    pub fn len(&self) -> usize {
        usize::try_from(self.0.count).unwrap_or(usize::MAX)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// Each of them.
    ///
    /// # Panics
    /// Where names can't be read: the host has no memory for them.
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

/// Each of some [`Files`].
#[derive(Debug, Clone)]
pub struct FilesIter {
    files: FileListRef,
    next: u64,
    /// Of the next.
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
            release_many();
            let some: ObjectRef<Vec<String>> =
                ObjectRef::held(host::open(names.saturating_add(self.next / FILE_NAMES_PER_OBJECT)));
            let some = some.get().unwrap_or_else(|error| panic!("names of files can't be read: {error}"));
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
