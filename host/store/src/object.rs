//! Sealed memory files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create, sendfile};
use rustix::io::write;

/// Seals of a file that a process wrote which is not trusted: with [`SealFlags::WRITE`] the kernel has made sure that nobody
/// can write to it by an older mapping.
///
/// That takes long on a busy machine: the kernel waits for every processor, and refuses when it moves one of the pages itself.
pub(crate) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Seals of a file that this process alone wrote and has not mapped to be written any more. The kernel looks for nothing.
pub(crate) const OWN_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Immutable bytes in a memory file that can't be written, grown or shrunk.
#[derive(Debug, Clone)]
pub struct Object {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl Object {
    /// Writes and seals an object.
    pub fn new(bytes: &[u8]) -> io::Result<Object> {
        Object::of_parts(&[bytes])
    }

    /// Writes and seals an object of several parts, one behind another.
    pub fn of_parts(parts: &[&[u8]]) -> io::Result<Object> {
        let (file, bytes) = written(parts)?;
        Object::seal(file, bytes)
    }

    /// As [`Object::of_parts`], sealed so that another process, which does not trust this one, can check that nobody writes to
    /// it any more.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn of_parts_verifiably(parts: &[&[u8]]) -> io::Result<Object> {
        let (file, bytes) = written(parts)?;
        unless_busy(|| Ok(fcntl_add_seals(&file, SEALS)?))?;
        Ok(Object { file: Arc::new(file), bytes })
    }

    /// An object that another process made, which is not trusted.
    ///
    /// # Errors
    /// When it is not [sealed so that this can be checked](crate::Unsealed::seal_verifiably), or shorter.
    pub fn of_sealed(file: OwnedFd, bytes: u64) -> io::Result<Object> {
        crate::mapping::check_seals(file.as_fd(), bytes, SEALS)?;
        Ok(Object { file: Arc::new(file), bytes })
    }

    /// Copies the first `bytes` bytes of a file into an object, and seals it. They do not come through this process's
    /// memory.
    ///
    /// # Errors
    /// When the file is shorter, and those of the kernel.
    pub fn of_file(from: BorrowedFd<'_>, bytes: u64) -> io::Result<Object> {
        let file = new_file()?;
        let mut at = 0;
        while at < bytes {
            let left = usize::try_from(bytes - at).unwrap_or(usize::MAX);
            // It moves `at`.
            if sendfile(&file, from, Some(&mut at), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Object::seal(file, bytes)
    }

    /// Seals a file that this process alone has written, and not mapped.
    fn seal(file: OwnedFd, bytes: u64) -> io::Result<Object> {
        fcntl_add_seals(&file, OWN_SEALS)?;
        Ok(Object { file: Arc::new(file), bytes })
    }

    /// A file that was just sealed.
    pub(crate) fn of_shared(file: Arc<OwnedFd>, bytes: u64) -> Object {
        Object { file, bytes }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A file with these parts, one behind another, and its length.
fn written(parts: &[&[u8]]) -> io::Result<(OwnedFd, u64)> {
    let file = new_file()?;
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            match write(&file, rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                wrote => rest = &rest[wrote..],
            }
        }
    }
    Ok((file, parts.iter().map(|part| part.len() as u64).sum()))
}

/// A file that nobody else has is sealed again so often, after this, while it is busy: the kernel itself moves a page, or looks
/// whether it is in use.
const SEALS_MAX: u32 = 50;
const SEAL_AGAIN: Duration = Duration::from_millis(2);

pub(crate) fn unless_busy<T>(mut seal: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..SEALS_MAX {
        match seal() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(SEAL_AGAIN),
            sealed => return sealed,
        }
    }
    seal()
}

pub(crate) fn new_file() -> io::Result<OwnedFd> {
    Ok(memfd_create("sandbar-object", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;
    use crate::Mapping;

    #[test]
    fn an_object_is_what_was_written() {
        for bytes in [&b""[..], b"abc", &[7; 100_000]] {
            let object = Object::new(bytes).unwrap();
            assert_eq!(&*Mapping::sealed(object.as_fd(), object.bytes()).unwrap(), bytes);
            // The first half, all, and more than there is.
            let part = |bytes| Object::of_file(object.as_fd(), bytes);
            for count in [bytes.len() / 2, bytes.len()] {
                let part = part(count as u64).unwrap();
                assert_eq!(&*Mapping::sealed(part.as_fd(), part.bytes()).unwrap(), &bytes[..count]);
            }
            assert!(part(bytes.len() as u64 + 1).is_err());
        }
    }

    #[test]
    fn an_object_does_not_change() {
        let object = Object::new(b"abcd").unwrap();
        assert!(rustix::io::pwrite(&object, b"x", 0).is_err());
        assert!(ftruncate(&object, 2).is_err());
        assert!(ftruncate(&object, 9 << 20).is_err());
    }

    #[test]
    fn what_can_change_or_is_shorter_is_no_object() {
        let object = Object::new(b"abcd").unwrap();
        assert_eq!(&*Mapping::sealed(object.as_fd(), 3).unwrap(), b"abc");
        assert!(Mapping::sealed(object.as_fd(), 5).is_err());
        let file = memfd_create("sandbar-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        for seals in [SealFlags::GROW, SealFlags::SHRINK, SealFlags::SEAL] {
            fcntl_add_seals(&file, seals).unwrap();
            assert!(Mapping::sealed(file.as_fd(), 1).is_err());
        }
    }

    #[test]
    fn another_process_has_to_seal_so_that_it_can_be_checked() {
        let of_sealed = |object: &Object| Object::of_sealed(object.as_fd().try_clone_to_owned().unwrap(), 3);
        let mut memory = crate::Unsealed::new(3).unwrap();
        memory.write(&[b"abc"]).unwrap();
        assert!(of_sealed(&memory.seal_verifiably(3).unwrap()).is_ok());
        assert!(of_sealed(&Object::of_parts_verifiably(&[b"ab", b"c"]).unwrap()).is_ok());
        assert!(of_sealed(&Object::new(b"abc").unwrap()).is_err());
    }
}
