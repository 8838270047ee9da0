//! Contents of a submission: components and files that a client sends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sandbar_core::ComponentId;
use sha2::{Digest as _, Sha256};

use crate::error::ClusterError;
use crate::files::{FileId, StoredFile};

/// Bytes that are hashed at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Components and files of a submission, on the client's machine. A node receives those that it lacks.
#[derive(Debug, Clone, Default)]
pub struct UploadContents {
    paths: BTreeMap<FileId, PathBuf>,
}

impl UploadContents {
    /// Adds a file. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if it can't be read.
    pub fn add(&mut self, path: &Path) -> Result<StoredFile, ClusterError> {
        let (digest, bytes) = hash(path).map_err(|e| ClusterError::Folder(path.to_owned(), e))?;
        let file = FileId::from(ComponentId::from_digest(digest));
        self.paths.insert(file, path.to_owned());
        Ok(StoredFile { file, bytes })
    }

    /// Adds a component. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if it can't be read.
    pub fn add_component(&mut self, path: &Path) -> Result<(ComponentId, u64), ClusterError> {
        let StoredFile { file, bytes } = self.add(path)?;
        Ok((file.component(), bytes))
    }

    /// Returns the path of a file that a node requests.
    pub(crate) fn path(&self, file: FileId) -> Option<&Path> {
        self.paths.get(&file).map(PathBuf::as_path)
    }
}

fn hash(path: &Path) -> io::Result<([u8; 32], u64)> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hash.finalize().into(), bytes)),
            read => {
                hash.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}
