//! The files of a job's arguments. Each number refers to the content of one file, or to a list of file names.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandbar_core::{Code, FILE_NAMES_PER_OBJECT, Fault, FileListRef, FileRef, VALUE_INLINE_BYTES_MAX};
use sandbar_dataset::find_files;
use sandbar_store::SealedFile;

use crate::error::ProgramError;

/// Maximum number of files of one job.
const FILES_MAX: usize = 1 << 20;

/// Why a job of another node's or tenant's may not name files of this machine.
const REFUSED: &str = "a job of a cluster can't open files of its nodes: pass the data as an argument";

/// Files that the tasks of a job may open.
#[derive(Debug, Default)]
pub(crate) struct JobFiles {
    all: Vec<Entry>,
    files: usize,
    /// Whether the job may name no files of this machine.
    is_refusing: bool,
}

#[derive(Debug)]
enum Entry {
    File(PathBuf, Version),
    /// Names of these files.
    Names(Range<usize>),
}

/// Version of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    bytes: u64,
    /// Time of the last modification, in seconds and nanoseconds.
    modified_s: i64,
    modified_nanos: i64,
}

/// Content of a file.
#[derive(Debug)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Object(SealedFile),
}

impl JobFiles {
    /// Returns the files of a job of another node's or tenant's, which may name no files of this machine.
    pub(crate) fn refusing() -> JobFiles {
        JobFiles { is_refusing: true, ..JobFiles::default() }
    }

    /// Finds the files that a path, a folder or a glob matches, if the job may name files.
    fn find(&self, path: &str) -> Result<Vec<PathBuf>, ProgramError> {
        match self.is_refusing {
            true => Err(ProgramError::Invalid(REFUSED.to_owned())),
            false => Ok(find_files(path)?),
        }
    }

    /// Adds the file at `path`.
    ///
    /// # Errors
    /// Fails unless `path` matches exactly one regular file.
    pub(crate) fn file(&mut self, path: &str) -> Result<FileRef, ProgramError> {
        let files = self.find(path)?;
        let [file] = &files[..] else {
            let message = format!(
                "`{path}` matches {} files, the argument takes one: declare it as `Files` for several",
                files.len()
            );
            return Err(ProgramError::Invalid(message));
        };
        let (number, name) = (self.all.len() as u64, name(file));
        self.add(files)?;
        Ok(FileRef { number, name })
    }

    /// Adds all files that a path, a folder or a glob matches.
    ///
    /// # Errors
    /// Fails if no file matches, one is not a regular file, or the job has more than [`FILES_MAX`] files.
    pub(crate) fn files(&mut self, path: &str) -> Result<FileListRef, ProgramError> {
        let first = self.all.len();
        self.add(self.find(path)?)?;
        let names = self.all.len();
        let each = (first..names).step_by(FILE_NAMES_PER_OBJECT as usize);
        self.all.extend(each.map(|at| Entry::Names(at..names.min(at + FILE_NAMES_PER_OBJECT as usize))));
        Ok(FileListRef { first: first as u64, count: (names - first) as u64, names: names as u64 })
    }

    fn add(&mut self, files: Vec<PathBuf>) -> Result<(), ProgramError> {
        self.files += files.len();
        if self.files > FILES_MAX {
            let message = format!("the job has {} files, the limit is {FILES_MAX}", self.files);
            return Err(ProgramError::Invalid(message));
        }
        for path in files {
            let metadata = std::fs::metadata(&path).map_err(ProgramError::file(&path))?;
            if !metadata.is_file() {
                return Err(ProgramError::file(&path)(io::Error::other("not a regular file")));
            }
            self.all.push(Entry::File(path, Version::from_metadata(&metadata)));
        }
        Ok(())
    }

    /// Returns the number of files.
    pub(crate) fn count(&self) -> u64 {
        self.files as u64
    }

    /// Returns the approximate size of an entry, or `None` if it does not exist.
    pub(crate) fn bytes(&self, number: u64) -> Option<u64> {
        const NAME_BYTES: u64 = 64;
        match self.all.get(usize::try_from(number).ok()?)? {
            Entry::File(_, version) => Some(version.bytes),
            Entry::Names(files) => Some(files.len() as u64 * NAME_BYTES),
        }
    }

    /// Reads an entry of at most `bytes_max` bytes. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if the entry does not exist, is too large, can't be read, or has changed since it was added.
    pub(crate) fn read(&self, number: u64, bytes_max: u64) -> Result<Content, Fault> {
        let entry = usize::try_from(number).ok().and_then(|at| self.all.get(at));
        let (path, version) = match entry.ok_or_else(|| unknown(number))? {
            Entry::File(path, version) => (path, *version),
            Entry::Names(files) => return self.names(files.clone()),
        };
        if version.bytes > bytes_max {
            let (path, bytes) = (path.display(), version.bytes);
            let message = format!(
                "{path} has {bytes} bytes, the node's objects have {bytes_max} bytes of memory (--object-memory)"
            );
            return Err(Fault::new(Code::StoreFull, message));
        }
        let fault = |e: io::Error| Fault::new(Code::Input, format!("{}: {e}", path.display()));
        read(path, version).map_err(fault)
    }

    fn names(&self, files: Range<usize>) -> Result<Content, Fault> {
        let name_of = |entry: &Entry| if let Entry::File(path, _) = entry { Some(name(path)) } else { None };
        let names: Vec<String> = self.all[files].iter().filter_map(name_of).collect();
        let fault =
            |e: &dyn std::fmt::Display| Fault::new(Code::Host, format!("the list of file names can't be stored: {e}"));
        let bytes = postcard::to_stdvec(&names).map_err(|e| fault(&e))?;
        if bytes.len() <= VALUE_INLINE_BYTES_MAX {
            return Ok(Content::Bytes(bytes));
        }
        SealedFile::new(&bytes).map(Content::Object).map_err(|e| fault(&e))
    }
}

/// Returns the fault for a number without an entry.
pub(crate) fn unknown(number: u64) -> Fault {
    Fault::new(Code::BadRequest, format!("file {number} is not a file of the task's job"))
}

/// Formats a path without a leading `./`.
fn name(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.strip_prefix("./").unwrap_or(&text).to_owned()
}

impl Version {
    fn from_metadata(metadata: &Metadata) -> Version {
        Version { bytes: metadata.len(), modified_s: metadata.mtime(), modified_nanos: metadata.mtime_nsec() }
    }
}

/// Reads a file, and checks before and after that it has not changed.
fn read(path: &Path, version: Version) -> io::Result<Content> {
    let changed = || io::Error::other("changed since its job started");
    // Opening a pipe that has replaced the file would block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(changed());
    }
    let file = File::open(path)?;
    let is_same = |file: &File| Ok::<_, io::Error>(Version::from_metadata(&file.metadata()?) == version);
    if !is_same(&file)? {
        return Err(changed());
    }
    let content = if version.bytes <= VALUE_INLINE_BYTES_MAX as u64 {
        let mut bytes = Vec::with_capacity(version.bytes as usize + 1);
        // Some of the kernel's files report no length.
        (&file).take(version.bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != version.bytes {
            return Err(changed());
        }
        Content::Bytes(bytes)
    } else {
        let end = |e: io::Error| if e.kind() == io::ErrorKind::UnexpectedEof { changed() } else { e };
        Content::Object(SealedFile::of_file(file.as_fd(), version.bytes).map_err(end)?)
    };
    if !is_same(&file)? {
        return Err(changed());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn bytes(content: Content) -> Vec<u8> {
        match content {
            Content::Bytes(bytes) => bytes,
            Content::Object(object) => {
                let mut bytes = vec![0; object.bytes() as usize];
                File::from(object.as_fd().try_clone_to_owned().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
                bytes
            }
        }
    }

    #[test]
    fn numbers_refer_to_files_and_to_lists_of_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        (0..1500).for_each(|i| fs::write(path(&format!("{i:04}.csv")), format!("{i}")).unwrap());
        fs::write(path(".hidden"), "").unwrap();
        let large = vec![7; VALUE_INLINE_BYTES_MAX + 1];
        fs::write(path("large"), &large).unwrap();
        let mut files = JobFiles::default();
        let one = files.file(&path("large")).unwrap();
        assert_eq!(one, FileRef { number: 0, name: path("large") });
        let many = files.files(&path("*.csv")).unwrap();
        assert_eq!(many, FileListRef { first: 1, count: 1500, names: 1501 });
        assert_eq!(files.files(folder.path().to_str().unwrap()).unwrap().count, 1501);
        let read = |number, max| files.read(number, max).map(bytes);
        assert_eq!(read(0, 1 << 20), Ok(large));
        assert_eq!(read(1, 0).unwrap_err().code, Code::StoreFull);
        assert_eq!(read(1, 1).unwrap(), b"0");
        assert_eq!(read(1500, 10).unwrap(), b"1499");
        let names = |number| postcard::from_bytes::<Vec<String>>(&read(number, 0).unwrap()).unwrap();
        assert_eq!((names(1501).len(), names(1502).len()), (1024, 476));
        assert_eq!(names(1502)[475], path("1499.csv"));
        assert_eq!(read(1 << 40, 10).unwrap_err().code, Code::BadRequest);
        assert_eq!((files.bytes(0), files.bytes(1 << 40)), (Some(VALUE_INLINE_BYTES_MAX as u64 + 1), None));
    }

    #[test]
    fn changed_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "abc").unwrap();
        let mut files = JobFiles::default();
        let number = files.file(path.to_str().unwrap()).unwrap().number;
        let read = || files.read(number, 100).map(bytes).map_err(|fault| fault.message);
        assert_eq!(read().unwrap(), b"abc");
        fs::write(&path, "abcd").unwrap();
        assert!(read().unwrap_err().ends_with("changed since its job started"));
        fs::remove_file(&path).unwrap();
        assert!(read().unwrap_err().contains("No such file"));
        fs::create_dir(&path).unwrap();
        assert!(read().is_err());
    }

    #[test]
    fn a_path_must_match_one_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        ["a", "b"].iter().for_each(|name| fs::write(path(name), "").unwrap());
        fs::create_dir(path("c")).unwrap();
        for wrong in [path("d"), path("*"), path("c"), folder.path().to_str().unwrap().to_owned(), "/dev/zero".into()] {
            assert!(JobFiles::default().file(&wrong).is_err(), "{wrong}");
        }
        assert!(JobFiles::default().files(&path("c")).is_err());
        assert_eq!(JobFiles::default().files(&path("*")).unwrap().count, 2);
    }
}
