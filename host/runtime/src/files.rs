//! The files of a job's arguments. Each number refers to the content of one file, or to a list of file names.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandbar_core::{Code, FILE_NAMES_PER_OBJECT, Fault, FileListRef, FileRef, VALUE_INLINE_BYTES_MAX};
use sandbar_dataset::{NamedFile, find_files};
use sandbar_store::SealedFile;

use crate::error::ProgramError;

/// Maximum number of files of one job.
const FILES_MAX: usize = 1 << 20;

/// Why a job of another node's or tenant's may not name files of this machine.
pub(crate) const REFUSED: &str = "a job of a cluster can't open files of its nodes; `host submit --arg NAME=@PATH` sends a \
                                  file of the client's machine";

/// Files that a client has sent for an argument of a job's first task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentFiles {
    /// Name of the argument.
    pub argument: String,
    /// The files, in the order in which the client found them.
    pub files: Vec<NamedFile>,
}

/// Files that the tasks of a job may open.
#[derive(Debug, Default)]
pub(crate) struct JobFiles {
    all: Vec<Entry>,
    files: usize,
    /// For a job of another node's or tenant's, which may name no files of this machine: the files sent for it.
    sent: Option<Vec<ArgumentFiles>>,
}

#[derive(Debug)]
enum Entry {
    File(NamedFile, Version),
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
    pub(crate) fn sent(files: Vec<ArgumentFiles>) -> JobFiles {
        JobFiles { sent: Some(files), ..JobFiles::default() }
    }

    /// Returns whether files were sent for an argument.
    pub(crate) fn has_sent(&self, argument: &str) -> bool {
        self.sent.iter().flatten().any(|sent| sent.argument == argument)
    }

    /// Returns the names of the arguments for which files were sent.
    pub(crate) fn sent_arguments(&self) -> impl Iterator<Item = &str> {
        self.sent.iter().flatten().map(|sent| sent.argument.as_str())
    }

    /// Finds the files of an argument: those that were sent for it, or, if the job may name files, those that a path, a
    /// folder or a glob matches.
    fn find(&self, argument: &str, path: &str) -> Result<Vec<NamedFile>, ProgramError> {
        let Some(sent) = &self.sent else {
            let named = |path: PathBuf| NamedFile { name: name(&path), path };
            return Ok(find_files(path)?.into_iter().map(named).collect());
        };
        let sent = sent.iter().find(|sent| sent.argument == argument);
        sent.map(|sent| sent.files.clone()).ok_or_else(|| ProgramError::Invalid(REFUSED.to_owned()))
    }

    /// Adds the file of an argument, which is at `path`.
    ///
    /// # Errors
    /// Fails unless the argument has exactly one regular file.
    pub(crate) fn file(&mut self, argument: &str, path: &str) -> Result<FileRef, ProgramError> {
        let files = self.find(argument, path)?;
        let [file] = &files[..] else { return Err(ProgramError::Invalid(several_files(path, files.len()))) };
        let (number, name) = (self.all.len() as u64, file.name.clone());
        self.add(files)?;
        Ok(FileRef { number, name })
    }

    /// Adds all files of an argument, which a path, a folder or a glob matches.
    ///
    /// # Errors
    /// Fails if no file matches, one is not a regular file, or the job has more than [`FILES_MAX`] files.
    pub(crate) fn files(&mut self, argument: &str, path: &str) -> Result<FileListRef, ProgramError> {
        let first = self.all.len();
        self.add(self.find(argument, path)?)?;
        let names = self.all.len();
        let each = (first..names).step_by(FILE_NAMES_PER_OBJECT as usize);
        self.all.extend(each.map(|at| Entry::Names(at..names.min(at + FILE_NAMES_PER_OBJECT as usize))));
        Ok(FileListRef { first: first as u64, count: (names - first) as u64, names: names as u64 })
    }

    fn add(&mut self, files: Vec<NamedFile>) -> Result<(), ProgramError> {
        self.files += files.len();
        if self.files > FILES_MAX {
            let message = format!("the job has {} files, the limit is {FILES_MAX}", self.files);
            return Err(ProgramError::Invalid(message));
        }
        for file in files {
            let fail = || ProgramError::file(Path::new(&file.name));
            let metadata = std::fs::metadata(&file.path).map_err(fail())?;
            if !metadata.is_file() {
                return Err(fail()(io::Error::other("not a regular file")));
            }
            self.all.push(Entry::File(file, Version::from_metadata(&metadata)));
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
        let (NamedFile { name, path }, version) = match entry.ok_or_else(|| unknown(number))? {
            Entry::File(file, version) => (file, *version),
            Entry::Names(files) => return self.names(files.clone()),
        };
        if version.bytes > bytes_max {
            let bytes = version.bytes;
            let message = format!(
                "{name} has {bytes} bytes, the node's objects have {bytes_max} bytes of memory (--object-memory)"
            );
            return Err(Fault::new(Code::StoreFull, message));
        }
        let fault = |e: io::Error| Fault::new(Code::Input, format!("{name}: {e}"));
        read(path, version).map_err(fault)
    }

    fn names(&self, files: Range<usize>) -> Result<Content, Fault> {
        let names = self.all[files].iter().filter_map(|entry| match entry {
            Entry::File(file, _) => Some(file.name.as_str()),
            Entry::Names(_) => None,
        });
        let names: Vec<&str> = names.collect();
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

/// Returns the error of an argument that takes one file, and has several or none.
pub(crate) fn several_files(path: &str, files: usize) -> String {
    format!("`{path}` matches {files} files, the argument takes one: declare it as `Files` for several")
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
        let one = files.file("x", &path("large")).unwrap();
        assert_eq!(one, FileRef { number: 0, name: path("large") });
        let many = files.files("x", &path("*.csv")).unwrap();
        assert_eq!(many, FileListRef { first: 1, count: 1500, names: 1501 });
        assert_eq!(files.files("x", folder.path().to_str().unwrap()).unwrap().count, 1501);
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
        let number = files.file("x", path.to_str().unwrap()).unwrap().number;
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
            assert!(JobFiles::default().file("x", &wrong).is_err(), "{wrong}");
        }
        assert!(JobFiles::default().files("x", &path("c")).is_err());
        assert_eq!(JobFiles::default().files("x", &path("*")).unwrap().count, 2);
    }

    #[test]
    fn sent_files_have_the_names_of_the_client() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        ["a", "b"].iter().for_each(|name| fs::write(path(name), name).unwrap());
        let file = |name: &str, stored: &str| NamedFile { name: name.to_owned(), path: path(stored) };
        let sent = |argument: &str, files| ArgumentFiles { argument: argument.to_owned(), files };
        let mut files = JobFiles::sent(vec![
            sent("one", vec![file("data/x.csv", "a")]),
            sent("many", vec![file("y/1", "a"), file("y/2", "b"), file("y/3", "a")]),
        ]);
        let one = files.file("one", "data/*.csv").unwrap();
        assert_eq!(one, FileRef { number: 0, name: "data/x.csv".to_owned() });
        assert_eq!(files.files("many", "y").unwrap(), FileListRef { first: 1, count: 3, names: 4 });
        assert_eq!(bytes(files.read(2, 10).unwrap()), b"b");
        let names = bytes(files.read(4, 0).unwrap());
        assert_eq!(postcard::from_bytes::<Vec<String>>(&names).unwrap(), ["y/1", "y/2", "y/3"]);
        assert!(files.file("many", "y").unwrap_err().to_string().contains("`y` matches 3 files"));
        let own = path("a").to_str().unwrap().to_owned();
        assert_eq!(files.file("other", &own).unwrap_err().to_string(), REFUSED);
        // Errors do not show where the node stores the files.
        fs::write(path("a"), "changed").unwrap();
        assert_eq!(files.read(0, 10).unwrap_err().message, "data/x.csv: changed since its job started");
    }
}
