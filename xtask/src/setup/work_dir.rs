//! A temporary folder that is removed when its owner is dropped.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use crate::run::{Context as _, Result};

const PREFIX: &str = "sandbar-setup-";
/// Maximum time from the creation of a folder to its lock.
const LOCK_TIME_MAX: Duration = Duration::from_secs(60);

/// Temporary folder of more than a hundred megabytes. An interrupted process leaves its folder behind; the next process
/// removes folders without a lock, which a running owner holds.
pub struct WorkDir {
    path: PathBuf,
    _lock: File,
}

impl WorkDir {
    /// Creates a folder in `TMPDIR`, and removes those of processes that no longer run.
    pub fn new() -> Result<Self> {
        Self::named("work")
    }

    /// Like [`WorkDir::new`], for a process with several folders.
    pub fn named(name: &str) -> Result<Self> {
        let parent = env::temp_dir();
        remove_abandoned(&parent);
        // create_dir fails if the path exists, even as a link that another user created.
        let path = parent.join(format!("{PREFIX}{}-{name}", process::id()));
        fs::create_dir(&path).context(format_args!("create the temporary folder {}", path.display()))?;
        let lock = File::open(&path).context(format_args!("open {}", path.display()))?;
        lock.lock().context(format_args!("lock {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Creates the folder `name` in this folder.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).context(format_args!("create {}", path.display()))?;
        Ok(path)
    }

    /// Returns the path of this folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // The result is in place or reported; the system's own cleaning removes the rest if this fails.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_work_dir = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_work_dir && File::open(entry.path()).is_ok_and(|folder| is_abandoned(&folder)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(folder: &File) -> bool {
    let modified = folder.metadata().and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age > LOCK_TIME_MAX) && folder.try_lock().is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn it_is_removed_with_its_owner() {
        let abandoned = env::temp_dir().join(format!("{PREFIX}abandoned"));
        fs::create_dir_all(&abandoned).unwrap();
        // The owner of this one may not have locked it yet.
        remove_abandoned(&env::temp_dir());
        assert!(abandoned.is_dir());
        File::open(&abandoned).unwrap().set_modified(SystemTime::now() - 2 * LOCK_TIME_MAX).unwrap();
        let work = WorkDir::named("removed").unwrap();
        let path = work.folder("inner").unwrap();
        assert!(path.is_dir() && !abandoned.exists());
        remove_abandoned(&env::temp_dir());
        assert!(path.is_dir(), "the folder of a running owner stays");
        drop(work);
        assert!(!path.exists());
    }
}
