//! Sealed memory files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::write;

use crate::mapping::{HUGE_PAGE_BYTES, WritableMapping, check_seals, huge_bytes};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

fn new_file() -> io::Result<OwnedFd> {
    Ok(memfd_create("sandbar-object", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// Immutable bytes in a memory file that can't be written, grown or shrunk.
#[derive(Debug, Clone)]
pub struct Object {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl Object {
    /// Writes and seals an object.
    pub fn new(bytes: &[u8]) -> io::Result<Object> {
        let file = new_file()?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match write(&file, rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                wrote => rest = &rest[wrote..],
            }
        }
        fcntl_add_seals(&file, SEALS)?;
        Ok(Object { file: Arc::new(file), bytes: bytes.len() as u64 })
    }

    /// An object of `bytes` bytes that another process made.
    ///
    /// # Errors
    /// When the file can still be changed, or is shorter.
    pub fn open(file: OwnedFd, bytes: u64) -> io::Result<Object> {
        let object = Object { file: Arc::new(file), bytes };
        check_seals(object.as_fd(), bytes, SealFlags::SHRINK | SealFlags::WRITE)?;
        Ok(object)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where parts of an object that is written in parts start: at multiples of so many bytes.
pub const OBJECT_PART_BYTES: usize = HUGE_PAGE_BYTES;

/// An object in the making, of parts that are written in place.
#[derive(Debug)]
pub struct ObjectWriter {
    file: OwnedFd,
    /// Where the last part ends.
    end: usize,
    bytes_max: usize,
    /// Where a part would have ended that was refused for it.
    over: Option<usize>,
}

impl ObjectWriter {
    /// An object without parts, which may have up to `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> io::Result<ObjectWriter> {
        Ok(ObjectWriter { file: new_file()?, end: 0, bytes_max, over: None })
    }

    /// How many bytes it would have had, if it was to have more than it may.
    pub fn over(&self) -> Option<usize> {
        self.over
    }

    /// Adds a part of `words` words, which are zero before `fill` writes them. It starts at the next multiple of
    /// [`OBJECT_PART_BYTES`].
    ///
    /// # Errors
    /// When there is no memory, or the object would have more bytes than it may: nothing is written then.
    pub fn part(&mut self, words: usize, fill: impl FnOnce(&mut [u64])) -> io::Result<()> {
        let at = self.end.next_multiple_of(OBJECT_PART_BYTES);
        let bytes = words.checked_mul(size_of::<u64>()).filter(|bytes| bytes.checked_add(at).is_some());
        let bytes = bytes.ok_or_else(|| io::Error::other("more words than there are addresses"))?;
        if at + bytes > self.bytes_max {
            self.over = Some(at + bytes);
            return Err(io::Error::new(io::ErrorKind::StorageFull, format!("an object of {} bytes", at + bytes)));
        }
        if bytes > 0 {
            // Where there are huge pages the last is there as a whole.
            ftruncate(&self.file, (at + bytes.max(huge_bytes(bytes))) as u64)?;
            let mut mapping = WritableMapping::new(self.file.as_fd(), at, bytes)?;
            fill(mapping.words(words));
        }
        self.end = at + bytes;
        Ok(())
    }

    /// The object, which nobody can change any more.
    pub fn seal(self) -> io::Result<Object> {
        fcntl_add_seals(&self.file, SEALS)?;
        Ok(Object { file: Arc::new(self.file), bytes: self.end as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    #[test]
    fn an_object_is_what_was_written() {
        for bytes in [&b""[..], b"abc", &[7; 100_000]] {
            assert_eq!(&*Mapping::of(&Object::new(bytes).unwrap()).unwrap(), bytes);
        }
    }

    #[test]
    fn an_object_does_not_change() {
        let mut parts = ObjectWriter::new(usize::MAX).unwrap();
        parts.part(1, |words| words.fill(7)).unwrap();
        for object in [Object::new(b"abcd").unwrap(), parts.seal().unwrap()] {
            assert!(rustix::io::pwrite(&object, b"x", 0).is_err());
            assert!(ftruncate(&object, 2).is_err());
            assert!(ftruncate(&object, 9 << 20).is_err());
        }
    }

    #[test]
    fn what_can_change_is_no_object() {
        let object = Object::new(b"abcd").unwrap();
        let file = || object.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(&*Mapping::of(&Object::open(file(), 3).unwrap()).unwrap(), b"abc");
        assert!(Object::open(file(), 5).is_err());
        let file = new_file().unwrap();
        ftruncate(&file, 4096).unwrap();
        for seals in [SealFlags::GROW, SealFlags::SHRINK, SealFlags::SEAL] {
            fcntl_add_seals(&file, seals).unwrap();
            assert!(Object::open(file.try_clone().unwrap(), 1).is_err());
        }
    }

    #[test]
    fn an_object_stays_within_its_bound() {
        let mut writer = ObjectWriter::new(OBJECT_PART_BYTES + 16).unwrap();
        writer.part(2, |words| words.fill(1)).unwrap();
        assert!(writer.part(3, |_| panic!("it is not to be written")).is_err());
        assert_eq!(writer.over(), Some(OBJECT_PART_BYTES + 24));
        writer.part(2, |words| words.fill(2)).unwrap();
        assert_eq!(writer.seal().unwrap().bytes(), OBJECT_PART_BYTES as u64 + 16);
    }

    #[test]
    fn parts_are_zero_until_they_are_written_and_lie_where_it_says() {
        const PAGE: usize = OBJECT_PART_BYTES / 8;
        for sizes in [&[][..], &[0], &[1], &[PAGE, 3], &[PAGE / 2 - 1, PAGE / 2, PAGE + PAGE / 2 + 1, 2], &[0, 5]] {
            let mut writer = ObjectWriter::new(usize::MAX).unwrap();
            let mut expected: Vec<u64> = Vec::new();
            for (words, mark) in sizes.iter().zip(1..) {
                expected.resize(expected.len().next_multiple_of(PAGE), 0);
                expected.extend((0..*words as u64).map(|i| if i % 3 == 0 { 0 } else { i + mark }));
                let fill = |to: &mut [u64]| {
                    assert!(to.len() == *words && to.iter().all(|word| *word == 0));
                    to.iter_mut().zip(0..).filter(|(_, i)| i % 3 > 0).for_each(|(word, i)| *word = i + mark);
                };
                writer.part(*words, fill).unwrap();
            }
            let object = writer.seal().unwrap();
            let bytes: Vec<u8> = expected.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert!(*Mapping::of(&object).unwrap() == bytes[..], "{sizes:?}");
        }
    }
}
