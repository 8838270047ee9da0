//! Receipt of content that a client or another node sends: into a temporary file, with a limit and a minimum rate.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sandbar_wire::Frames;
use sha2::{Digest as _, Sha256};

/// First character of the names of incomplete files and folders.
const INCOMPLETE: char = '.';
/// Time for an upload beside the time for its bytes.
const UPLOAD_TIME: Duration = Duration::from_secs(15);
/// Minimum rate of an upload, in bytes a second.
pub(crate) const UPLOAD_RATE_MIN: u64 = 128 << 10;

/// Why content is not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the {item} has {bytes} bytes, the limit of the tenant is {max}")]
    TooLarge { item: &'static str, bytes: u64, max: u64 },
    #[error("the {_0} did not arrive within {} s, which is less than {UPLOAD_RATE_MIN} bytes a second", _1.as_secs())]
    TooSlow(&'static str, Duration),
    #[error("the sent {_0} is not the announced one")]
    Other(&'static str),
    #[error("the upload was interrupted")]
    Interrupted,
    #[error(
        "the files of the tenant's unfinished jobs have {in_use} bytes on this node, {bytes} more exceed the limit of \
         {max}; wait for a job to end, or ask the cluster's operator (`host tenant set NAME --files-bytes-max SIZE`)"
    )]
    Quota { in_use: u64, bytes: u64, max: u64 },
    #[error("the disk of the node has no room for {_0} more bytes")]
    DiskFull(u64),
    #[error("{}: {_1}", _0.display())]
    File(PathBuf, io::Error),
}

/// A file or folder that is removed unless it is complete.
#[derive(Debug)]
pub(crate) struct IncompletePath {
    path: PathBuf,
    is_complete: bool,
}

impl IncompletePath {
    /// Returns a path in `folder` that does not exist, and creates the folder.
    ///
    /// # Errors
    /// Fails if the folder can't be created.
    pub(crate) fn new(folder: &Path) -> Result<IncompletePath, UploadError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        fs::DirBuilder::new().recursive(true).create(folder).map_err(|e| UploadError::File(folder.to_owned(), e))?;
        let number = NUMBERS.fetch_add(1, Relaxed);
        let path = folder.join(format!("{INCOMPLETE}incomplete-{}-{number}", std::process::id()));
        Ok(IncompletePath { path, is_complete: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the file.
    ///
    /// # Errors
    /// Fails if it can't be created.
    pub(crate) fn create_file(&self) -> Result<File, UploadError> {
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path);
        created.map_err(|e| UploadError::File(self.path.clone(), e))
    }

    /// Moves the file to its final path.
    ///
    /// # Errors
    /// Fails if it can't be moved.
    pub(crate) fn complete(mut self, path: &Path) -> Result<(), UploadError> {
        fs::rename(&self.path, path).map_err(|e| UploadError::File(path.to_owned(), e))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for IncompletePath {
    fn drop(&mut self) {
        if !self.is_complete && fs::remove_file(&self.path).is_err() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes what an earlier process left incomplete in the folders of all tenants in `folder`.
pub(crate) fn remove_incomplete(folder: &Path) {
    for tenant in fs::read_dir(folder).into_iter().flatten().flatten() {
        for entry in fs::read_dir(tenant.path()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(INCOMPLETE) && fs::remove_file(entry.path()).is_err() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Returns the time that content of `bytes` bytes may take to arrive.
pub(crate) fn upload_time(bytes: u64) -> Duration {
    UPLOAD_TIME + Duration::from_secs(bytes / UPLOAD_RATE_MIN)
}

/// Receives `bytes` bytes, and the empty frame after them, into `file` at `path`. Returns their hash.
///
/// # Errors
/// Fails if the sender is too slow or sends another number of bytes, or the file can't be written.
pub(crate) async fn receive(
    item: &'static str,
    mut file: File,
    path: &Path,
    bytes: u64,
    frames: &mut Frames,
) -> Result<Sha256, UploadError> {
    let time = upload_time(bytes);
    let upload = async {
        let (mut hash, mut received) = (Sha256::new(), 0);
        loop {
            let chunk = frames.recv().await.ok().flatten().ok_or(UploadError::Interrupted)?;
            if chunk.is_empty() {
                break;
            }
            received += chunk.len() as u64;
            if received > bytes {
                return Err(UploadError::Other(item));
            }
            // A slow disk must not block other requests.
            let written = tokio::task::spawn_blocking(move || {
                hash.update(&chunk);
                file.write_all(&chunk).map(|()| (hash, file))
            });
            let written = written.await.map_err(io::Error::other).flatten();
            (hash, file) = written.map_err(|e| UploadError::File(path.to_owned(), e))?;
        }
        if received == bytes { Ok(hash) } else { Err(UploadError::Other(item)) }
    };
    tokio::time::timeout(time, upload).await.map_err(|_| UploadError::TooSlow(item, time))?
}
