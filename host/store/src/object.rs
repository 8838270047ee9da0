//! Sealed memory files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::write;

/// Immutable bytes in a memory file that can't be written, grown or shrunk.
#[derive(Debug, Clone)]
pub struct Object {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl Object {
    /// Writes and seals an object.
    pub fn new(bytes: &[u8]) -> io::Result<Object> {
        let file = memfd_create("sandbar-object", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match write(&file, rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                wrote => rest = &rest[wrote..],
            }
        }
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        Ok(Object { file: Arc::new(file), bytes: bytes.len() as u64 })
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
        let object = Object::new(b"abcd").unwrap();
        assert!(rustix::io::pwrite(&object, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(&object, 2).is_err());
        assert!(rustix::fs::ftruncate(&object, 9).is_err());
    }
}
