//! Unfinished files and folders: next to their final path, and locked while their writer lives.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, TempPath};

/// Name prefix of unfinished files.
const FILE_PREFIX: &str = ".sandbar-";
/// Name prefix of unfinished folders.
const FOLDER_PREFIX: &str = ".sandbar-folder-";

/// Returns the parent folder of `path`.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a file with the default permissions. It is locked while it is open: an unfinished file without a lock
/// belonged to a killed writer.
pub(super) fn temporary_file(folder: &Path) -> io::Result<(File, TempPath)> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    remove_abandoned(folder);
    let permissions = fs::Permissions::from_mode(0o666);
    loop {
        let mut builder = tempfile::Builder::new();
        let (file, path) =
            builder.prefix(FILE_PREFIX).permissions(permissions.clone()).tempfile_in(folder)?.into_parts();
        // On file systems without locks no file is considered abandoned.
        let _ = file.lock();
        // Another writer may have removed the file before it was locked.
        if file.metadata()?.nlink() > 0 {
            return Ok((file, path));
        }
    }
}

/// New folder, locked while it is open. Removed with its content when dropped.
pub(super) struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Creates a temporary folder in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<TemporaryFolder> {
        use std::os::unix::fs::PermissionsExt as _;
        remove_abandoned(folder);
        let permissions = fs::Permissions::from_mode(0o777);
        loop {
            let mut builder = tempfile::Builder::new();
            let created = builder.prefix(FOLDER_PREFIX).permissions(permissions.clone()).tempdir_in(folder)?;
            let lock = File::open(created.path())?;
            // On file systems without locks no folder is considered abandoned.
            let _ = lock.lock();
            // Another writer may have removed the folder before it was locked.
            if created.path().exists() {
                return Ok(TemporaryFolder { folder: created, _lock: lock });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Renames the folder to `path`, which must not exist or be an empty folder.
    pub(super) fn persist(self, path: &Path) -> io::Result<()> {
        fs::rename(self.folder.path(), path)?;
        // The temporary name is free for others now, so it must not be removed on drop.
        let _: PathBuf = self.folder.keep();
        Ok(())
    }
}

/// Removes files and folders of killed writers.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let begins = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        let kind = entry.file_type();
        // Failed removals are ignored.
        if begins(FOLDER_PREFIX) && kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            if let Some(_lock) = try_lock_file(&path, libc::O_DIRECTORY) {
                let _ = fs::remove_dir_all(&path);
            }
        } else if begins(FILE_PREFIX)
            && kind.is_ok_and(|kind| kind.is_file())
            && let Some(_lock) = try_lock_file(&path, libc::O_NONBLOCK)
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Locks a file or folder if it is unlocked. The flags guard against its replacement since the listing: by a pipe,
/// whose opening blocks, or by a link.
fn try_lock_file(path: &Path, flag: libc::c_int) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = File::options().read(true).custom_flags(flag | libc::O_NOFOLLOW).open(path).ok()?;
    file.try_lock().ok().map(|()| file)
}
