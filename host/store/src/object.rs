//! Sealed memory files.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwritev;

/// Slices written by one system call; the kernel takes no more.
const SLICES_MAX: usize = 1024;

/// Immutable bytes in a memory file that can't be written, grown or shrunk.
#[derive(Debug, Clone)]
pub struct Object {
    file: Arc<OwnedFd>,
    bytes: u64,
}

/// Bytes and where they go.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Offset in the object.
    pub at: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Object {
    /// Writes and seals an object of `bytes` bytes from `parts`, whose offsets
    /// ascend and do not overlap. What no part covers is zero.
    pub fn write(bytes: u64, parts: &[Part<'_>]) -> io::Result<Object> {
        let file = memfd_create("sandbar-object", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        // Neighbouring parts go out in one call, with zeros for the gaps between them.
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut pending: Vec<IoSlice<'_>> = Vec::new();
        let (mut start, mut end) = (0, 0);
        for part in parts {
            let gap = part.at - end;
            if gap >= ZEROS.len() as u64 || pending.len() + 2 > SLICES_MAX {
                write_all(&file, &mut pending, start)?;
                start = part.at;
            } else if gap > 0 {
                pending.push(IoSlice::new(&ZEROS[..gap as usize]));
            }
            pending.push(IoSlice::new(part.bytes));
            end = part.at + part.bytes.len() as u64;
        }
        write_all(&file, &mut pending, start)?;
        if end > bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("parts end at {end} of an object of {bytes} bytes"),
            ));
        }
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        Ok(Object { file: Arc::new(file), bytes })
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

fn write_all(file: &OwnedFd, pending: &mut Vec<IoSlice<'_>>, mut at: u64) -> io::Result<()> {
    let mut rest = pending.as_mut_slice();
    while !rest.is_empty() {
        let wrote = pwritev(file, rest, at)?;
        if wrote == 0 && rest.iter().any(|s| !s.is_empty()) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        at += wrote as u64;
        IoSlice::advance_slices(&mut rest, wrote);
    }
    pending.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    fn check(bytes: u64, parts: &[(u64, &[u8])], expect: &[u8]) {
        let parts: Vec<_> = parts.iter().map(|(at, bytes)| Part { at: *at, bytes }).collect();
        let object = Object::write(bytes, &parts).unwrap();
        let mapping = Mapping::of(&object).unwrap();
        assert_eq!(&*mapping, expect);
    }

    #[test]
    fn parts_are_where_they_were_put() {
        check(0, &[], b"");
        check(3, &[(0, b"abc")], b"abc");
        check(8, &[(1, b"a"), (4, b"bc")], b"\0a\0\0bc\0\0");
        let mut far = vec![0; 10_000];
        far[0] = b'x';
        far[9_999] = b'y';
        check(10_000, &[(0, b"x"), (9_999, b"y")], &far);
        let many: Vec<(u64, &[u8])> = (0..3000).map(|i| (2 * i, &b"z"[..])).collect();
        check(6000, &many, &b"z\0".repeat(3000));
    }

    #[test]
    fn an_object_does_not_change() {
        let object = Object::write(4, &[Part { at: 0, bytes: b"abcd" }]).unwrap();
        assert!(rustix::io::pwrite(&object, b"x", 0).is_err());
        assert!(ftruncate(&object, 2).is_err());
        assert!(ftruncate(&object, 9).is_err());
    }

    #[test]
    fn parts_behind_the_end_are_refused() {
        assert!(Object::write(4, &[Part { at: 2, bytes: b"abc" }]).is_err());
    }
}
