//! A temporary folder that goes away with its owner.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;

use crate::run::{Context as _, Result};

const PREFIX: &str = "sandbar-setup-";

/// A hundred megabytes and more come to lie here. An interrupted process leaves its folder behind, so the next one looks
/// for those: a living owner holds a lock on its folder.
pub struct WorkDir {
    path: PathBuf,
    _lock: File,
}

impl WorkDir {
    /// Makes a new folder under `TMPDIR`, and takes away those of processes that no longer run.
    pub fn new() -> Result<Self> {
        Self::named("work")
    }

    /// Like [`WorkDir::new`], for a process that has several.
    pub fn named(name: &str) -> Result<Self> {
        let parent = env::temp_dir();
        remove_abandoned(&parent);
        // create_dir fails on anything that is already there, a link planted by somebody else included.
        let path = parent.join(format!("{PREFIX}{}-{name}", process::id()));
        fs::create_dir(&path).context(format_args!("make the temporary folder {}", path.display()))?;
        let lock = File::open(&path).context(format_args!("open {}", path.display()))?;
        lock.lock().context(format_args!("lock {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Makes the folder `name` in it.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).context(format_args!("make {}", path.display()))?;
        Ok(path)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // The result is in place or reported by now: what cannot be removed is left to the system's own cleaning.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_away_with_its_owner() {
        let abandoned = env::temp_dir().join(format!("{PREFIX}abandoned"));
        fs::create_dir_all(&abandoned).unwrap();
        let work = WorkDir::named("goes-away").unwrap();
        let path = work.folder("inner").unwrap();
        assert!(path.is_dir() && !abandoned.exists());
        remove_abandoned(&env::temp_dir());
        assert!(path.is_dir(), "a living owner's folder stays");
        drop(work);
        assert!(!path.exists());
    }
}
