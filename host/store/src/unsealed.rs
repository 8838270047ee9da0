//! Memory files that are written before they are sealed, and reused by their writer if no other process mapped them.
//!
//! A new file costs the kernel a cleared page for each 4 KiB, more than the copy into it. The files use huge pages
//! where the kernel provides them, and are mapped only while they are written: mapping costs next to nothing, and
//! afterwards no mapping allows writes. The holder of a value [adopts](UnsealedValue::adopt) the unsealed file, seals it
//! before any process but the writer gets it, and allows the writer to reuse the memory if no other process ever did.
//! Bytes past the value's end are older bytes of the writer: sealing cuts them off.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, munmap};
use sandbar_core::copy_to_shared;

use crate::SealedFile;
use crate::mapping::{HUGE_PAGE_BYTES, PAGE_BYTES, collapse, huge_bytes, map};
use crate::sealed::{OWN_SEALS, SEALS, new_file, retry_while_busy};

/// Bytes that are written without a check.
const STEP_BYTES: usize = 16 << 20;

/// A memory file that its writer still writes.
#[derive(Debug)]
pub struct UnsealedFile {
    file: Arc<OwnedFd>,
    capacity: usize,
}

impl UnsealedFile {
    /// Creates a file with a capacity of at least `bytes` bytes.
    ///
    /// # Errors
    /// Fails if no memory is available.
    pub fn new(bytes: usize) -> io::Result<UnsealedFile> {
        let file = new_file()?;
        let capacity = bytes.next_multiple_of(PAGE_BYTES).max(huge_bytes(bytes)).max(PAGE_BYTES);
        ftruncate(&file, capacity as u64)?;
        let unsealed = UnsealedFile { file: Arc::new(file), capacity };
        unsealed.with_pages(|at| {
            let huge = huge_bytes(capacity).min(capacity) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // SAFETY: the range was just mapped, and no other process has the file.
            unsafe { collapse(at, huge) };
            Ok(())
        })?;
        Ok(unsealed)
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Writes parts one behind another, and zeros up to the end of the last page.
    ///
    /// # Errors
    /// Fails if the capacity or the memory does not suffice.
    pub fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.write_while(parts, || Ok(()))
    }

    /// Like [`UnsealedFile::write`], and calls `check` before each step of at most 16 MiB.
    ///
    /// # Errors
    /// Also those of `check`. The content is arbitrary then.
    pub fn write_while(&mut self, parts: &[&[u8]], check: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        self.check_capacity(bytes)?;
        self.with_pages(|at| {
            let mut end = at.as_ptr();
            for part in parts.iter().flat_map(|part| part.chunks(STEP_BYTES)) {
                check()?;
                // SAFETY: the capacity holds all parts together; no other process has the file mapped.
                unsafe {
                    copy_to_shared(part.as_ptr(), end, part.len());
                    end = end.add(part.len());
                }
            }
            // SAFETY: the capacity is a multiple of the page size.
            unsafe { end.write_bytes(0, bytes.next_multiple_of(PAGE_BYTES) - bytes) };
            Ok(())
        })
    }

    /// Calls `fill` to write the first `bytes` bytes. The slice holds arbitrary bytes before.
    ///
    /// # Errors
    /// Errors of `fill`, and if the capacity or the memory does not suffice.
    pub fn fill(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        self.check_capacity(bytes)?;
        // SAFETY: the range is mapped, no other process has the file mapped, and `u8` has no invalid values.
        self.with_pages(|at| fill(unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) }))
    }

    fn check_capacity(&self, bytes: usize) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes in {}", self.capacity));
        (bytes <= self.capacity).then_some(()).ok_or_else(wrong)
    }

    /// Maps the file during `act`.
    fn with_pages(&self, act: impl FnOnce(NonNull<u8>) -> io::Result<()>) -> io::Result<()> {
        let _allowed = (self.capacity >= HUGE_PAGE_BYTES).then(HugePages::allow);
        let at = map(self.file.as_fd(), 0, self.capacity, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        let done = act(at);
        // SAFETY: mapped by `map`, and no reference into the mapping is left.
        unsafe { munmap(at.as_ptr().cast(), self.capacity)? };
        done
    }

    /// Seals the file: its first `bytes` bytes become immutable.
    ///
    /// # Errors
    /// Kernel errors.
    pub fn seal(self, bytes: u64) -> io::Result<SealedFile> {
        UnsealedValue { file: self.file, bytes }.seal_with(OWN_SEALS)
    }

    /// Seals the file so that a process which does not trust this one can check that nothing writes to it any more.
    ///
    /// # Errors
    /// Kernel errors.
    pub fn seal_verifiably(self, bytes: u64) -> io::Result<SealedFile> {
        let value = UnsealedValue { file: self.file, bytes };
        retry_while_busy(|| value.seal())
    }
}

/// Guard that restores the process's transparent-huge-page setting when dropped. Workers disable huge pages for
/// sandboxes.
#[derive(Debug)]
struct HugePages {
    were_disabled: bool,
}

impl HugePages {
    fn allow() -> HugePages {
        // SAFETY: this call reads a flag, the next one sets it; no memory of this process is passed to the kernel.
        let were_disabled = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 1;
        if were_disabled {
            // SAFETY: sets a flag alone.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
        }
        HugePages { were_disabled }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.were_disabled {
            // SAFETY: sets a flag alone.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
        }
    }
}

impl AsFd for UnsealedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A value in a file that its writer can still write. The host reads it by copying and does not interpret it: a writer
/// that changes it harms its own program alone.
#[derive(Debug, Clone)]
pub struct UnsealedValue {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl UnsealedValue {
    /// Adopts a file that another process wrote.
    ///
    /// # Errors
    /// Fails if the file is not a memory file, or is shorter than `bytes`.
    pub fn adopt(file: OwnedFd, bytes: u64) -> io::Result<UnsealedValue> {
        fcntl_get_seals(&file)?;
        let value = UnsealedValue { file: Arc::new(file), bytes };
        value.check_length().map(|()| value)
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Truncates the file behind the value and seals it: from here on it is immutable.
    ///
    /// # Errors
    /// Fails if the writer has the file mapped, has truncated it, or has set other seals.
    pub fn seal(&self) -> io::Result<SealedFile> {
        self.seal_with(SEALS)
    }

    /// Like [`UnsealedValue::seal`], but returns a copy while the kernel refuses to seal the file.
    ///
    /// # Errors
    /// Fails if the writer has truncated the file, and if no memory is available.
    pub fn seal_or_copy(&self) -> io::Result<SealedFile> {
        match self.seal() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => SealedFile::of_file(self.file.as_fd(), self.bytes),
            sealed => sealed,
        }
    }

    fn seal_with(&self, seals: SealFlags) -> io::Result<SealedFile> {
        let bytes = usize::try_from(self.bytes).map_err(io::Error::other)?;
        let pages = bytes.next_multiple_of(PAGE_BYTES).max(huge_bytes(bytes));
        if fstat(&self.file)?.st_size as u64 > pages as u64 {
            ftruncate(&self.file, pages as u64)?;
        }
        fcntl_add_seals(&self.file, seals)?;
        // After sealing, the file can't be truncated any more.
        self.check_length()?;
        Ok(SealedFile::of_shared(self.file.clone(), self.bytes))
    }

    /// Returns all memory of the file to the kernel, whichever processes have the file.
    ///
    /// # Errors
    /// Fails if the file is sealed.
    pub fn discard(&self) -> io::Result<()> {
        let all = fstat(&self.file)?.st_size as u64;
        if all > 0 {
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, all)?;
        }
        Ok(())
    }

    fn check_length(&self) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the file is shorter than declared");
        (fstat(&self.file)?.st_size as u64 >= self.bytes).then_some(()).ok_or_else(wrong)
    }
}

impl AsFd for UnsealedValue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    fn unsealed_value(unsealed: &UnsealedFile, bytes: u64) -> UnsealedValue {
        UnsealedValue::adopt(unsealed.as_fd().try_clone_to_owned().unwrap(), bytes).unwrap()
    }

    #[test]
    fn a_value_has_the_last_written_bytes() {
        let (half, whole) = (vec![7u8; 1_500_000], vec![9u8; 3_000_000]);
        for bytes in [1, 4096, 1_500_000, HUGE_PAGE_BYTES, 3_000_000] {
            let mut unsealed = UnsealedFile::new(whole.len()).unwrap();
            assert!(unsealed.capacity() >= whole.len());
            unsealed.write(&[&whole]).unwrap();
            let first = bytes.min(half.len());
            let rest = bytes - first;
            unsealed.write(&[&half[..first], &whole[..rest]]).unwrap();
            let object = unsealed_value(&unsealed, bytes as u64).seal().unwrap();
            let mapping = Mapping::sealed(object.as_fd(), bytes.next_multiple_of(PAGE_BYTES) as u64).unwrap();
            assert_eq!(mapping[..first], half[..first]);
            assert_eq!(mapping[first..bytes], whole[..rest]);
            assert!(mapping[bytes..].iter().all(|byte| *byte == 0), "behind {bytes} bytes");
            // Older bytes are truncated.
            assert!(fstat(&object).unwrap().st_size as usize <= bytes.next_multiple_of(HUGE_PAGE_BYTES));
            assert!(unsealed.write(&[b"x"]).is_err(), "its writer writes no more");
            assert!(rustix::io::pwrite(&unsealed, b"x", 0).is_err());
        }
    }

    #[test]
    fn a_file_with_a_possible_writer_is_not_sealed() {
        let mut unsealed = UnsealedFile::new(PAGE_BYTES).unwrap();
        let held = unsealed_value(&unsealed, 10);
        let is_refused = |_: &mut [u8]| {
            assert!(held.seal().is_err());
            assert_eq!(held.seal_or_copy().unwrap().bytes(), 10);
            Ok(())
        };
        unsealed.fill(10, is_refused).unwrap();
        assert!(held.seal().is_ok());
    }

    #[test]
    fn truncated_files_are_rejected() {
        let unsealed = UnsealedFile::new(PAGE_BYTES).unwrap();
        let held = unsealed_value(&unsealed, PAGE_BYTES as u64);
        ftruncate(&unsealed, 10).unwrap();
        assert!(held.seal().is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(UnsealedValue::adopt(file.into(), 1).is_err(), "it is no memory file");
    }

    #[test]
    fn dropped_values_take_no_memory() {
        let mut unsealed = UnsealedFile::new(HUGE_PAGE_BYTES).unwrap();
        unsealed.write(&[&[1; HUGE_PAGE_BYTES]]).unwrap();
        assert!(fstat(&unsealed).unwrap().st_blocks > 0);
        unsealed_value(&unsealed, 10).discard().unwrap();
        assert_eq!(fstat(&unsealed).unwrap().st_blocks, 0);
        // The file is writable again.
        unsealed.write(&[b"abc"]).unwrap();
        let object = unsealed.seal(3).unwrap();
        assert_eq!(&*Mapping::sealed(object.as_fd(), 3).unwrap(), b"abc");
    }
}
