//! Folders for secrets: private to one user, with atomic file writes.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::IdentityError;

/// Maximum bytes of a file in such a folder.
const FILE_BYTES_MAX: u64 = 64 << 10;
const LOCK: &str = "lock";

/// A folder of mode 0700 with files of mode 0600.
#[derive(Debug)]
pub(super) struct SecretFolder {
    path: PathBuf,
}

/// Exclusive lock of a folder, held until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl SecretFolder {
    /// Creates the folder and its missing parents. An existing folder must have the right owner and mode.
    pub(super) fn create(path: &Path) -> Result<SecretFolder, IdentityError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|reason| IdentityError::Io { path: path.to_owned(), reason })?;
        SecretFolder::open(path)
    }

    pub(super) fn open(path: &Path) -> Result<SecretFolder, IdentityError> {
        let folder = SecretFolder { path: path.to_owned() };
        let metadata = fs::metadata(path).map_err(|reason| folder.io("", reason))?;
        check(path, &metadata)?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the folder for this process.
    pub(super) fn lock(&self) -> Result<Lock, IdentityError> {
        let path = self.path.join(LOCK);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = opened.map_err(|reason| self.io(LOCK, reason))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let _ = (&file).take(20).read_to_string(&mut process);
                let process = if process.is_empty() { "(unknown)".to_owned() } else { process };
                return Err(IdentityError::InUse { path: self.path.clone(), process });
            }
            Err(TryLockError::Error(reason)) => return Err(self.io(LOCK, reason)),
        }
        // The process id is for error messages; the lock itself decides.
        let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Lock { _file: file })
    }

    /// Reads a file; `None` if it does not exist.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, IdentityError> {
        let path = self.path.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(reason) => return Err(self.io(name, reason)),
        };
        let metadata = file.metadata().map_err(|reason| self.io(name, reason))?;
        check(&path, &metadata)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|reason| self.io(name, reason))?;
        Ok(Some(bytes))
    }

    /// Replaces a file atomically and durably.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), IdentityError> {
        self.try_write(name, bytes).map_err(|reason| self.io(name, reason))
    }

    fn try_write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.join(format!(".{name}.new"));
        // Left behind by a crash.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(e) = written.and_then(|()| fs::rename(&temporary, self.path.join(name))) {
            let _ = fs::remove_file(&temporary);
            return Err(e);
        }
        File::open(&self.path)?.sync_all()
    }

    fn io(&self, name: &str, reason: io::Error) -> IdentityError {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        IdentityError::Io { path, reason }
    }
}

/// Checks that the path belongs to this user and that no other user has access.
pub(super) fn check(path: &Path, metadata: &fs::Metadata) -> Result<(), IdentityError> {
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(IdentityError::Owner { path: path.to_owned(), owner, user });
    }
    match metadata.permissions().mode() & 0o7777 {
        mode if mode & 0o077 == 0 => Ok(()),
        mode => Err(IdentityError::Exposed { path: path.to_owned(), mode }),
    }
}
