//! The files that a program was given: each number stands for the bytes of one, or for the names of some.

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

/// Files of one program.
const FILES_MAX: usize = 1 << 20;

/// What a program was given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    all: Vec<Entry>,
    files: usize,
}

#[derive(Debug)]
enum Entry {
    File(PathBuf, Version),
    /// Of these files.
    Names(Range<usize>),
}

/// What a file is known by to be what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    bytes: u64,
    modified: (i64, i64),
}

/// What was read.
#[derive(Debug)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Object(SealedFile),
}

impl Given {
    /// Gives a file: `path` stands for it and no other.
    pub(crate) fn file(&mut self, path: &str) -> Result<FileRef, ProgramError> {
        let files = find_files(path)?;
        let [file] = &files[..] else {
            let message =
                format!("`{path}` is {} files, and one is asked for: the task would take `Files`", files.len());
            return Err(ProgramError::Invalid(message));
        };
        let (number, name) = (self.all.len() as u64, name(file));
        self.add(files)?;
        Ok(FileRef { number, name })
    }

    /// Gives all files that a path, a folder or a glob stands for.
    pub(crate) fn files(&mut self, path: &str) -> Result<FileListRef, ProgramError> {
        let first = self.all.len();
        self.add(find_files(path)?)?;
        let names = self.all.len();
        let each = (first..names).step_by(FILE_NAMES_PER_OBJECT as usize);
        self.all.extend(each.map(|at| Entry::Names(at..names.min(at + FILE_NAMES_PER_OBJECT as usize))));
        Ok(FileListRef { first: first as u64, count: (names - first) as u64, names: names as u64 })
    }

    fn add(&mut self, files: Vec<PathBuf>) -> Result<(), ProgramError> {
        self.files += files.len();
        if self.files > FILES_MAX {
            let message = format!("it is given {} files, the limit is {FILES_MAX}", self.files);
            return Err(ProgramError::Invalid(message));
        }
        for path in files {
            let metadata = std::fs::metadata(&path).map_err(ProgramError::file(&path))?;
            if !metadata.is_file() {
                return Err(ProgramError::file(&path)(io::Error::other("it is no regular file")));
            }
            self.all.push(Entry::File(path, Version::of(&metadata)));
        }
        Ok(())
    }

    /// How many files it was given.
    pub(crate) fn count(&self) -> u64 {
        self.files as u64
    }

    /// Bytes of what a number stands for, about; none if for nothing.
    pub(crate) fn bytes(&self, number: u64) -> Option<u64> {
        const NAME_BYTES: u64 = 64;
        match self.all.get(usize::try_from(number).ok()?)? {
            Entry::File(_, version) => Some(version.bytes),
            Entry::Names(files) => Some(files.len() as u64 * NAME_BYTES),
        }
    }

    /// Reads what a number stands for, of so many bytes at most. Waits for the disk.
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
        let of = |entry: &Entry| if let Entry::File(path, _) = entry { Some(name(path)) } else { None };
        let names: Vec<String> = self.all[files].iter().filter_map(of).collect();
        let fault = |e: &dyn std::fmt::Display| Fault::new(Code::Host, format!("names of files can't be written: {e}"));
        let bytes = postcard::to_stdvec(&names).map_err(|e| fault(&e))?;
        if bytes.len() <= VALUE_INLINE_BYTES_MAX {
            return Ok(Content::Bytes(bytes));
        }
        SealedFile::new(&bytes).map(Content::Object).map_err(|e| fault(&e))
    }
}

/// What is said of a number that stands for nothing.
pub(crate) fn unknown(number: u64) -> Fault {
    Fault::new(Code::BadRequest, format!("it opens file {number}, which its job was not given"))
}

/// A path without the `./` that folders bring along.
fn name(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.strip_prefix("./").unwrap_or(&text).to_owned()
}

impl Version {
    fn of(metadata: &Metadata) -> Version {
        Version { bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// The bytes of a file that is still what it was, before and after.
fn read(path: &Path, version: Version) -> io::Result<Content> {
    let changed = || io::Error::other("it has changed since its job began");
    // A pipe that took its place would be waited for.
    if !std::fs::metadata(path)?.is_file() {
        return Err(changed());
    }
    let file = File::open(path)?;
    let is_same = |file: &File| Ok::<_, io::Error>(Version::of(&file.metadata()?) == version);
    if !is_same(&file)? {
        return Err(changed());
    }
    let content = if version.bytes <= VALUE_INLINE_BYTES_MAX as u64 {
        let mut bytes = Vec::with_capacity(version.bytes as usize + 1);
        // Of some of the kernel's files nobody knows how long they are.
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
    fn numbers_stand_for_files_and_for_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        (0..1500).for_each(|i| fs::write(path(&format!("{i:04}.csv")), format!("{i}")).unwrap());
        fs::write(path(".hidden"), "").unwrap();
        let large = vec![7; VALUE_INLINE_BYTES_MAX + 1];
        fs::write(path("large"), &large).unwrap();
        let mut given = Given::default();
        let one = given.file(&path("large")).unwrap();
        assert_eq!(one, FileRef { number: 0, name: path("large") });
        let many = given.files(&path("*.csv")).unwrap();
        assert_eq!(many, FileListRef { first: 1, count: 1500, names: 1501 });
        assert_eq!(given.files(folder.path().to_str().unwrap()).unwrap().count, 1501);
        let read = |number, max| given.read(number, max).map(bytes);
        assert_eq!(read(0, 1 << 20), Ok(large));
        assert_eq!(read(1, 0).unwrap_err().code, Code::StoreFull);
        assert_eq!(read(1, 1).unwrap(), b"0");
        assert_eq!(read(1500, 10).unwrap(), b"1499");
        let names = |number| postcard::from_bytes::<Vec<String>>(&read(number, 0).unwrap()).unwrap();
        assert_eq!((names(1501).len(), names(1502).len()), (1024, 476));
        assert_eq!(names(1502)[475], path("1499.csv"));
        assert_eq!(read(1 << 40, 10).unwrap_err().code, Code::BadRequest);
        assert_eq!((given.bytes(0), given.bytes(1 << 40)), (Some(VALUE_INLINE_BYTES_MAX as u64 + 1), None));
    }

    #[test]
    fn what_has_changed_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "abc").unwrap();
        let mut given = Given::default();
        let number = given.file(path.to_str().unwrap()).unwrap().number;
        let read = || given.read(number, 100).map(bytes).map_err(|fault| fault.message);
        assert_eq!(read().unwrap(), b"abc");
        fs::write(&path, "abcd").unwrap();
        assert!(read().unwrap_err().ends_with("it has changed since its job began"));
        fs::remove_file(&path).unwrap();
        assert!(read().unwrap_err().contains("No such file"));
        fs::create_dir(&path).unwrap();
        assert!(read().is_err());
    }

    #[test]
    fn what_is_no_file_or_several_is_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        ["a", "b"].iter().for_each(|name| fs::write(path(name), "").unwrap());
        fs::create_dir(path("c")).unwrap();
        for wrong in [path("d"), path("*"), path("c"), folder.path().to_str().unwrap().to_owned(), "/dev/zero".into()] {
            assert!(Given::default().file(&wrong).is_err(), "{wrong}");
        }
        assert!(Given::default().files(&path("c")).is_err());
        assert_eq!(Given::default().files(&path("*")).unwrap().count, 2);
    }
}
