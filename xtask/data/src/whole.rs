//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

/// A file under a temporary name beside its future one. Dropped without [`Whole::commit`], it goes away; what a killed
/// process left behind goes away when the next one begins the same file (living owners hold a lock).
pub struct Whole {
    path: PathBuf,
    temporary: PathBuf,
    lock: Option<File>,
}

impl Whole {
    /// Begins the file `path`, and makes its folder. Write through the returned file.
    pub fn create(path: &Path) -> io::Result<(Self, File)> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", path.display())));
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
        remove_abandoned(folder, name.to_string_lossy().as_ref());
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", process::id()));
        let temporary = folder.join(hidden);
        let file = File::create(&temporary).map_err(|error| named(&temporary, error))?;
        let lock = file.try_clone()?;
        lock.lock()?;
        Ok((Self { path: path.to_owned(), temporary, lock: Some(lock) }, file))
    }

    /// Gives the file its name. All of it must have been written.
    pub fn commit(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.temporary, &self.path).map_err(|error| named(&self.path, error))?;
        self.lock = None;
        Ok(self.path.clone())
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // Nothing more can be done about a temporary file that stays; the next writer tries again.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Puts the path in front of what the system says about it.
pub fn named(path: &Path, error: io::Error) -> io::Error {
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
    use crate::whole::tests_folder::TestFolder;

    #[test]
    fn a_file_appears_on_commit_only() {
        let folder = TestFolder::new("whole-commit");
        let path = folder.join("inner/file");
        let (whole, mut file) = Whole::create(&path).unwrap();
        file.write_all(b"all of it").unwrap();
        assert!(!path.exists());
        whole.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"all of it");
        assert_eq!(fs::read_dir(folder.join("inner")).unwrap().count(), 1);
    }

    #[test]
    fn an_abandoned_file_goes_away() {
        let folder = TestFolder::new("whole-abandoned");
        fs::create_dir_all(folder.join("")).unwrap();
        fs::write(folder.join(".file.1.partial"), b"half").unwrap();
        fs::write(folder.join(".other.1.partial"), b"half").unwrap();
        let begun = Whole::create(&folder.join("file")).unwrap();
        assert!(!folder.join(".file.1.partial").exists() && folder.join(".other.1.partial").exists());
        drop(begun);
        assert_eq!(fs::read_dir(folder.join("")).unwrap().count(), 1);
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        assert!(Whole::create(Path::new("/")).is_err());
    }
}

#[cfg(test)]
pub mod tests_folder {
    //! A folder for one test, gone when it ends.

    use std::env;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process;

    /// Under the system's temporary folder.
    pub struct TestFolder(PathBuf);

    impl TestFolder {
        /// `name` is the test's own.
        pub fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("sandbar-data-{}-{name}", process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        /// A path in it.
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
