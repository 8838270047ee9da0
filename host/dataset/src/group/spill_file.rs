//! Files of spilled rows. They are unnamed: they vanish with the process, however it ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use arrow_buffer::{Buffer, MutableBuffer};

use crate::DatasetError;

/// Unnamed temporary file.
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
}

impl SpillFile {
    /// Creates an empty file in `folder`.
    pub(super) fn create(folder: &Path) -> io::Result<SpillFile> {
        Ok(SpillFile { file: tempfile::tempfile_in(folder)? })
    }

    /// Returns a writer that appends to the file.
    pub(super) fn writer(&self) -> &File {
        &self.file
    }

    /// Reads a range of the file.
    pub(super) fn read(&self, at: u64, len: usize, folder: &Path) -> Result<Buffer, DatasetError> {
        let mut buffer = MutableBuffer::from_len_zeroed(len);
        let read = self.file.read_exact_at(buffer.as_slice_mut(), at);
        read.map_err(|source| DatasetError::Io {
            action: "can't read spilled rows from",
            path: folder.to_owned(),
            source,
        })?;
        Ok(buffer.into())
    }
}
