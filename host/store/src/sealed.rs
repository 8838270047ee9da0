//! Sealed memory files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create, sendfile};
use rustix::io::write;

/// Seals of a file that an untrusted process wrote: [`SealFlags::WRITE`] proves that no older mapping can write to it.
///
/// Setting it is slow on a busy machine: the kernel waits for every processor, and fails while it moves one of the pages.
pub(crate) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Seals of a file that only this process wrote and that it no longer has mapped for writing. Setting them checks nothing.
pub(crate) const OWN_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Immutable bytes in a memory file that can't be written, grown or shrunk.
#[derive(Debug, Clone)]
pub struct SealedFile {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl SealedFile {
    /// Writes and seals a file.
    pub fn new(bytes: &[u8]) -> io::Result<SealedFile> {
        SealedFile::of_parts(&[bytes])
    }

    /// Writes several parts one behind another and seals the file.
    pub fn of_parts(parts: &[&[u8]]) -> io::Result<SealedFile> {
        let (file, bytes) = write_parts(parts)?;
        SealedFile::seal(file, bytes)
    }

    /// Like [`SealedFile::of_parts`], but sealed so that a process which does not trust this one can check that nothing
    /// writes to the file any more.
    ///
    /// # Errors
    /// Kernel errors.
    pub fn of_parts_verifiably(parts: &[&[u8]]) -> io::Result<SealedFile> {
        let (file, bytes) = write_parts(parts)?;
        retry_while_busy(|| Ok(fcntl_add_seals(&file, SEALS)?))?;
        Ok(SealedFile { file: Arc::new(file), bytes })
    }

    /// Adopts a file that an untrusted process sealed.
    ///
    /// # Errors
    /// Fails if the file is not [sealed verifiably](crate::UnsealedFile::seal_verifiably), or is shorter than `bytes`.
    pub fn of_sealed(file: OwnedFd, bytes: u64) -> io::Result<SealedFile> {
        crate::mapping::check_seals(file.as_fd(), bytes, SEALS)?;
        Ok(SealedFile { file: Arc::new(file), bytes })
    }

    /// Copies the first `bytes` bytes of a file in the kernel, and seals the copy. The bytes do not pass through this
    /// process's memory.
    ///
    /// # Errors
    /// Fails if the file is shorter than `bytes`, and on kernel errors.
    pub fn of_file(from: BorrowedFd<'_>, bytes: u64) -> io::Result<SealedFile> {
        let file = new_file()?;
        let mut at = 0;
        while at < bytes {
            let left = usize::try_from(bytes - at).unwrap_or(usize::MAX);
            // `sendfile` advances `at`.
            if sendfile(&file, from, Some(&mut at), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        SealedFile::seal(file, bytes)
    }

    /// Seals a file that only this process wrote, and that it has not mapped.
    fn seal(file: OwnedFd, bytes: u64) -> io::Result<SealedFile> {
        fcntl_add_seals(&file, OWN_SEALS)?;
        Ok(SealedFile { file: Arc::new(file), bytes })
    }

    /// Wraps a file that was just sealed.
    pub(crate) fn of_shared(file: Arc<OwnedFd>, bytes: u64) -> SealedFile {
        SealedFile { file, bytes }
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Writes parts one behind another to a new file. Returns the file and its length.
fn write_parts(parts: &[&[u8]]) -> io::Result<(OwnedFd, u64)> {
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

/// Maximum number of attempts to seal a busy file.
const SEAL_ATTEMPTS_MAX: u32 = 50;
const SEAL_RETRY_DELAY: Duration = Duration::from_millis(2);

/// Retries to seal a file that no other process has: it is busy while the kernel moves a page or checks its use.
pub(crate) fn retry_while_busy<T>(mut seal: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..SEAL_ATTEMPTS_MAX {
        match seal() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(SEAL_RETRY_DELAY),
            sealed => return sealed,
        }
    }
    seal()
}

pub(crate) fn new_file() -> io::Result<OwnedFd> {
    Ok(memfd_create("sandbar-object", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

impl AsFd for SealedFile {
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
    fn a_sealed_file_has_the_written_bytes() {
        for bytes in [&b""[..], b"abc", &[7; 100_000]] {
            let object = SealedFile::new(bytes).unwrap();
            assert_eq!(&*Mapping::sealed(object.as_fd(), object.bytes()).unwrap(), bytes);
            // The first half, the whole, and one byte too many.
            let part = |bytes| SealedFile::of_file(object.as_fd(), bytes);
            for count in [bytes.len() / 2, bytes.len()] {
                let part = part(count as u64).unwrap();
                assert_eq!(&*Mapping::sealed(part.as_fd(), part.bytes()).unwrap(), &bytes[..count]);
            }
            assert!(part(bytes.len() as u64 + 1).is_err());
        }
    }

    #[test]
    fn an_object_does_not_change() {
        let object = SealedFile::new(b"abcd").unwrap();
        assert!(rustix::io::pwrite(&object, b"x", 0).is_err());
        assert!(ftruncate(&object, 2).is_err());
        assert!(ftruncate(&object, 9 << 20).is_err());
    }

    #[test]
    fn unsealed_and_short_files_are_rejected() {
        let object = SealedFile::new(b"abcd").unwrap();
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
        let of_sealed = |object: &SealedFile| SealedFile::of_sealed(object.as_fd().try_clone_to_owned().unwrap(), 3);
        let mut memory = crate::UnsealedFile::new(3).unwrap();
        memory.write(&[b"abc"]).unwrap();
        assert!(of_sealed(&memory.seal_verifiably(3).unwrap()).is_ok());
        assert!(of_sealed(&SealedFile::new(b"abc").unwrap()).is_err());
    }
}
