//! Values on disk: many in one file, each with its length and checksum.
//!
//! Files have no name: they vanish with the process, however it ends. Freed space is returned to the disk at once where
//! the file system supports hole punching, and with the file otherwise. A [`SpilledValue`] exists only after its bytes
//! are completely written, so that no partial value is ever read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crc32fast::Hasher;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::pread;
use sandbar_core::{Code, Fault};

use crate::{SealedFile, UnsealedFile, UnsealedValue};

/// Size in bytes from which on a new file is started.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes per copy.
const COPY_BYTES: usize = 1 << 20;
/// Minimum size in bytes of a restored value that is placed in a memory file with huge pages.
const LARGE_BYTES: u64 = 1 << 20;

/// A folder that spilled values are written to.
#[derive(Debug)]
pub struct SpillFolder {
    folder: PathBuf,
    /// Disk space to keep free when spilling, in bytes.
    reserve_bytes: u64,
    /// Current file, and the offset of its next value.
    current: Option<(Arc<File>, u64)>,
    buffer: Vec<u8>,
}

/// Disk space of a folder's file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Space that this user can fill.
    pub free_bytes: u64,
    /// Default of the space to keep free when spilling: a twentieth of the disk, at most 8 GiB.
    pub reserve_bytes: u64,
}

impl DiskSpace {
    /// Queries the file system of `folder`.
    ///
    /// # Errors
    /// Fails if the folder does not exist.
    pub fn query(folder: &Path) -> io::Result<DiskSpace> {
        let disk = statvfs(folder)?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        Ok(DiskSpace { free_bytes, reserve_bytes: (disk.f_blocks.saturating_mul(disk.f_frsize) / 20).min(8 << 30) })
    }
}

/// The bytes of a value to spill.
#[derive(Debug, Clone)]
pub enum SpillSource {
    /// Bytes in this process's memory.
    Bytes(Arc<[u8]>),
    /// A sealed file.
    Sealed(SealedFile),
    /// A file that its writer can still write.
    Unsealed(UnsealedValue),
}

/// A value on disk. Dropping it frees its disk space.
#[derive(Debug)]
pub struct SpilledValue {
    file: Arc<File>,
    at: u64,
    bytes: u64,
    checksum: u32,
    is_file: bool,
}

/// A value that was read back from disk.
#[derive(Debug)]
pub enum RestoredValue {
    /// Bytes in this process's memory.
    Bytes(Arc<[u8]>),
    /// A sealed file.
    Sealed(SealedFile),
}

impl SpillFolder {
    /// Creates a folder that keeps `reserve_bytes` of its disk free. Default: a twentieth of the disk, at most 8 GiB.
    pub fn new(folder: PathBuf, reserve_bytes: Option<u64>) -> SpillFolder {
        let reserve_bytes =
            reserve_bytes.unwrap_or_else(|| DiskSpace::query(&folder).map_or(0, |space| space.reserve_bytes));
        SpillFolder { folder, reserve_bytes, current: None, buffer: Vec::new() }
    }

    /// Writes values one behind another, all or none.
    ///
    /// # Errors
    /// [`Code::StoreFull`] if the disk is full or can't be written to.
    pub fn write(&mut self, values: &[SpillSource]) -> Result<Vec<SpilledValue>, Fault> {
        let bytes = values.iter().map(SpillSource::bytes).sum();
        self.check_space(bytes)?;
        let (file, start) = match self.current.take().filter(|(_, end)| *end < FILE_BYTES) {
            Some(current) => current,
            None => (Arc::new(tempfile::tempfile_in(&self.folder).map_err(|e| self.fault(&e))?), 0),
        };
        let written = write_all(&file, start, values, &mut self.buffer);
        let end = start + if written.is_ok() { bytes } else { 0 };
        if written.is_err() {
            // Removes partially written values.
            let _ = file.set_len(start);
        }
        self.current = Some((file, end));
        written.map_err(|e| self.fault(&e))
    }

    fn check_space(&self, bytes: u64) -> Result<(), Fault> {
        let free = DiskSpace::query(&self.folder).map_err(|e| self.fault(&e))?.free_bytes;
        if free >= self.reserve_bytes.saturating_add(bytes) {
            return Ok(());
        }
        let message = format!(
            "no room for {bytes} bytes of objects on the disk of {}: {free} bytes are free, and {} bytes are kept free",
            self.folder.display(),
            self.reserve_bytes
        );
        Err(Fault::new(Code::StoreFull, message))
    }

    fn fault(&self, error: &io::Error) -> Fault {
        Fault::new(Code::StoreFull, format!("objects can't be written to {}: {error}", self.folder.display()))
    }
}

fn write_all(
    file: &Arc<File>,
    start: u64,
    values: &[SpillSource],
    buffer: &mut Vec<u8>,
) -> io::Result<Vec<SpilledValue>> {
    let mut at = start;
    let mut spilled = Vec::with_capacity(values.len());
    for value in values {
        let mut hasher = Hasher::new();
        let bytes = value.bytes();
        match value {
            SpillSource::Bytes(all) => {
                hasher.update(all);
                file.write_all_at(all, at)?;
            }
            SpillSource::Sealed(object) => copy(object.as_fd(), bytes, file, at, buffer, &mut hasher)?,
            SpillSource::Unsealed(unsealed) => copy(unsealed.as_fd(), bytes, file, at, buffer, &mut hasher)?,
        }
        let is_file = !matches!(value, SpillSource::Bytes(_));
        spilled.push(SpilledValue { file: file.clone(), at, bytes, checksum: hasher.finalize(), is_file });
        at += bytes;
    }
    Ok(spilled)
}

/// Copies the first `bytes` bytes of a memory file to byte `at` of another file. Reads instead of mapping: the file's writer could truncate it.
fn copy(
    from: BorrowedFd<'_>,
    bytes: u64,
    to: &File,
    at: u64,
    buffer: &mut Vec<u8>,
    hasher: &mut Hasher,
) -> io::Result<()> {
    buffer.resize(COPY_BYTES, 0);
    let mut done = 0;
    while done < bytes {
        let left = usize::try_from(bytes - done).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
        let read = pread(from, &mut buffer[..left], done)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..read]);
        to.write_all_at(&buffer[..read], at + done)?;
        done += read as u64;
    }
    Ok(())
}

impl SpillSource {
    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            SpillSource::Bytes(bytes) => bytes.len() as u64,
            SpillSource::Sealed(object) => object.bytes(),
            SpillSource::Unsealed(unsealed) => unsealed.bytes(),
        }
    }
}

impl SpilledValue {
    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the value back: as bytes if it was spilled from bytes, as a sealed file otherwise.
    ///
    /// # Errors
    /// Fails if the value can't be read, or its checksum differs.
    pub fn read(&self) -> io::Result<RestoredValue> {
        let len = usize::try_from(self.bytes).map_err(io::Error::other)?;
        if self.is_file && self.bytes >= LARGE_BYTES {
            let mut memory = UnsealedFile::new(len)?;
            memory.fill(len, |to| self.read_into(to))?;
            return Ok(RestoredValue::Sealed(memory.seal(self.bytes)?));
        }
        let mut bytes = vec![0; len];
        self.read_into(&mut bytes)?;
        Ok(if self.is_file {
            RestoredValue::Sealed(SealedFile::new(&bytes)?)
        } else {
            RestoredValue::Bytes(bytes.into())
        })
    }

    fn read_into(&self, to: &mut [u8]) -> io::Result<()> {
        let mut hasher = Hasher::new();
        for (at, piece) in (self.at..).step_by(COPY_BYTES).zip(to.chunks_mut(COPY_BYTES)) {
            self.file.read_exact_at(piece, at)?;
            hasher.update(piece);
        }
        let is_same = hasher.finalize() == self.checksum;
        is_same.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the checksum differs"))
    }
}

impl Drop for SpilledValue {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Without hole punching, the space is freed with the file.
            let _ = fallocate(&*self.file, hole, self.at, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Deref;

    use super::*;
    use crate::Mapping;

    fn folder(reserve: u64) -> (tempfile::TempDir, SpillFolder) {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFolder::new(folder.path().to_owned(), Some(reserve));
        (folder, spill)
    }

    fn check(spilled: &SpilledValue, expected: &[u8]) {
        match spilled.read().unwrap() {
            RestoredValue::Bytes(bytes) => assert_eq!(bytes.deref(), expected),
            RestoredValue::Sealed(object) => {
                assert_eq!(&*Mapping::sealed(object.as_fd(), object.bytes()).unwrap(), expected);
            }
        }
    }

    #[test]
    fn restored_values_are_unchanged() {
        let (kept, mut spill) = folder(0);
        let bytes = |len: usize| (0..len).map(|at| (at * 31 % 251) as u8).collect::<Vec<u8>>();
        let lengths = [0, 1, 5000, COPY_BYTES - 1, COPY_BYTES, LARGE_BYTES as usize + 1, 3 * COPY_BYTES + 77];
        let mut all = Vec::new();
        for len in lengths {
            let value = bytes(len);
            let mut unsealed = UnsealedFile::new(len).unwrap();
            unsealed.write(&[&value]).unwrap();
            let unsealed = UnsealedValue::adopt(unsealed.as_fd().try_clone_to_owned().unwrap(), len as u64).unwrap();
            let sources = [
                SpillSource::Bytes(value.as_slice().into()),
                SpillSource::Sealed(SealedFile::new(&value).unwrap()),
                SpillSource::Unsealed(unsealed),
            ];
            all.extend(spill.write(&sources).unwrap().into_iter().map(|spilled| (spilled, len)));
        }
        all.iter().for_each(|(spilled, len)| check(spilled, &bytes(*len)));
        // Dropping some values leaves the others intact.
        all.retain(|(_, len)| len % 2 == 1);
        all.iter().for_each(|(spilled, len)| check(spilled, &bytes(*len)));
        assert_eq!(std::fs::read_dir(kept.path()).unwrap().count(), 0, "files have no names");
    }

    #[test]
    fn damaged_and_truncated_values_are_rejected() {
        let (_kept, mut spill) = folder(0);
        let value = || SpillSource::Bytes(vec![5u8; 10_000].into());
        let two = spill.write(&[value(), value()]).unwrap();
        two[1].file.write_all_at(&[6], 15_000).unwrap();
        check(&two[0], &[5; 10_000]);
        assert!(two[1].read().is_err());
        two[0].file.set_len(9_999).unwrap();
        assert!(two[0].read().is_err());
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_not_written_to() {
        let (_kept, mut spill) = folder(u64::MAX / 2);
        let fault = spill.write(&[SpillSource::Bytes(vec![1; 10].into())]).unwrap_err();
        assert_eq!(fault.code, Code::StoreFull);
        assert!(fault.message.contains("no room for 10 bytes"), "{fault}");
        assert!(spill.current.is_none());
    }

    /// `/dev/full` behaves like a full disk.
    #[test]
    fn a_failed_write_keeps_earlier_values() {
        let (_kept, mut spill) = folder(0);
        let value = || SpillSource::Bytes(vec![1; 10].into());
        let before = spill.write(&[value()]).unwrap();
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        let good = spill.current.replace((Arc::new(full), 0));
        let fault = spill.write(&[value()]).unwrap_err();
        assert_eq!(fault.code, Code::StoreFull);
        assert!(fault.message.contains("No space left"), "{fault}");
        spill.current = good;
        let after = spill.write(&[value()]).unwrap();
        before.iter().chain(&after).for_each(|spilled| check(spilled, &[1; 10]));
    }

    #[test]
    fn dropped_values_leave_the_disk() {
        use std::os::unix::fs::MetadataExt as _;

        let (_kept, mut spill) = folder(0);
        let value = || SpillSource::Bytes(vec![1; COPY_BYTES].into());
        let mut two = spill.write(&[value(), value()]).unwrap();
        let file = two[0].file.clone();
        file.sync_all().unwrap();
        let before = file.metadata().unwrap().blocks();
        two.pop();
        file.sync_all().unwrap();
        assert!(file.metadata().unwrap().blocks() < before);
        check(&two[0], &[1; COPY_BYTES]);
    }
}
