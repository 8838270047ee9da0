//! Unfinished files and folders: beside what they become, locked while their writer lives.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, TempPath};

/// What names of unfinished files begin with.
const FILE_PREFIX: &str = ".sandbar-";
/// What names of unfinished folders begin with.
const FOLDER_PREFIX: &str = ".sandbar-folder-";

/// The folder that `path` is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file, which anybody may read that may read files made the usual way. Locked for as long as it is open: an
/// unfinished file without a lock is one whose writer was killed.
pub(super) fn temporary_file(folder: &Path) -> io::Result<(File, TempPath)> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    remove_abandoned(folder);
    let permissions = fs::Permissions::from_mode(0o666);
    loop {
        let mut builder = tempfile::Builder::new();
        let (file, path) =
            builder.prefix(FILE_PREFIX).permissions(permissions.clone()).tempfile_in(folder)?.into_parts();
        // Where there are no locks, nothing is taken for abandoned.
        let _ = file.lock();
        // Another writer may have found it before it was locked.
        if file.metadata()?.nlink() > 0 {
            return Ok((file, path));
        }
    }
}

/// A new folder, locked for as long as it is open. Dropped, it vanishes with what is in it.
pub(super) struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Makes one in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<TemporaryFolder> {
        use std::os::unix::fs::PermissionsExt as _;
        remove_abandoned(folder);
        let permissions = fs::Permissions::from_mode(0o777);
        loop {
            let mut builder = tempfile::Builder::new();
            let made = builder.prefix(FOLDER_PREFIX).permissions(permissions.clone()).tempdir_in(folder)?;
            let lock = File::open(made.path())?;
            // Where there are no locks, nothing is taken for abandoned.
            let _ = lock.lock();
            // Another writer may have found it before it was locked.
            if made.path().exists() {
                return Ok(TemporaryFolder { folder: made, _lock: lock });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder its name: `path` is free, or an empty folder.
    pub(super) fn persist(self, path: &Path) -> io::Result<()> {
        fs::rename(self.folder.path(), path)?;
        // It is another's name now.
        let _: PathBuf = self.folder.keep();
        Ok(())
    }
}

/// Removes what writers left behind that were killed.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let begins = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        let kind = entry.file_type();
        // What can't be removed stays.
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

/// Locks what nobody has locked. It may have become something else since it was found, that is waited for or that leads
/// elsewhere.
fn try_lock_file(path: &Path, flag: libc::c_int) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = File::options().read(true).custom_flags(flag | libc::O_NOFOLLOW).open(path).ok()?;
    file.try_lock().ok().map(|()| file)
}
