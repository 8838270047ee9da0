//! Files that appear completely or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

/// A file under a temporary name in its final folder. Dropping it without [`AtomicFile::commit`] removes it; the next
/// creation of the same file removes what a killed process left behind (running owners hold a lock).
pub struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    lock: Option<File>,
}

impl AtomicFile {
    /// Creates the file `path` under a temporary name, and its folder. Write to the returned file.
    pub fn create(path: &Path) -> io::Result<(Self, File)> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", path.display())));
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|error| with_path(folder, error))?;
        remove_abandoned(folder, name.to_string_lossy().as_ref());
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", process::id()));
        let temporary = folder.join(hidden);
        let file = File::create(&temporary).map_err(|error| with_path(&temporary, error))?;
        let lock = file.try_clone()?;
        lock.lock()?;
        Ok((Self { path: path.to_owned(), temporary, lock: Some(lock) }, file))
    }

    /// Renames the file to its final name. Its content must be complete.
    pub fn commit(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.temporary, &self.path).map_err(|error| with_path(&self.path, error))?;
        self.lock = None;
        Ok(self.path.clone())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // The next writer removes the temporary file if this fails.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Adds the path to an I/O error.
pub fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn remove_abandoned(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        let owner =
            found.strip_prefix('.').and_then(|rest| rest.strip_prefix(name)).and_then(|rest| rest.strip_prefix('.'));
        let abandoned = owner.is_some_and(|owner| owner.ends_with(".partial"))
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if abandoned {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::atomic_file::test_folder::TestFolder;

    #[test]
    fn a_file_appears_on_commit_only() {
        let folder = TestFolder::new("atomic-file-commit");
        let path = folder.join("inner/file");
        let (target, mut file) = AtomicFile::create(&path).unwrap();
        file.write_all(b"all of it").unwrap();
        assert!(!path.exists());
        target.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"all of it");
        assert_eq!(fs::read_dir(folder.join("inner")).unwrap().count(), 1);
    }

    #[test]
    fn an_abandoned_file_goes_away() {
        let folder = TestFolder::new("atomic-file-abandoned");
        fs::create_dir_all(folder.join("")).unwrap();
        fs::write(folder.join(".file.1.partial"), b"half").unwrap();
        fs::write(folder.join(".other.1.partial"), b"half").unwrap();
        let file = AtomicFile::create(&folder.join("file")).unwrap();
        assert!(!folder.join(".file.1.partial").exists() && folder.join(".other.1.partial").exists());
        drop(file);
        assert_eq!(fs::read_dir(folder.join("")).unwrap().count(), 1);
    }

    #[test]
    fn a_path_without_a_name_is_rejected() {
        assert!(AtomicFile::create(Path::new("/")).is_err());
    }
}

#[cfg(test)]
pub mod test_folder {
    //! A temporary folder for one test, removed at its end.

    use std::env;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process;

    /// Folder in the system's temporary folder.
    pub struct TestFolder(PathBuf);

    impl TestFolder {
        /// Creates the folder; `name` must be unique to the test.
        pub fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("sandbar-data-{}-{name}", process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        /// Returns a path in the folder.
        pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
