//! Mappings of memory files into this process.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use sandbar_core::{copy_from_shared, copy_to_shared};

/// Bytes of a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Minimum size in bytes for which a huge page is used.
pub(crate) const HUGE_BYTES_MIN: usize = 1 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;

/// Maps `bytes` bytes (at least one) of a file from the offset `from` on, a multiple of [`HUGE_PAGE_BYTES`]. Aligns
/// mappings of at least a huge page to a huge page: the kernel maps a file's huge page as one only there.
pub(crate) fn map(
    file: BorrowedFd<'_>,
    from: usize,
    bytes: usize,
    protection: ProtFlags,
    shared: MapFlags,
) -> io::Result<NonNull<u8>> {
    let found = |at: *mut c_void| NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at zero"));
    if bytes < HUGE_PAGE_BYTES {
        // SAFETY: a new mapping at an address of the kernel's choice.
        return found(unsafe { mmap(std::ptr::null_mut(), bytes, protection, shared, file, from as u64) }?);
    }
    let len = bytes.checked_next_multiple_of(PAGE_BYTES).and_then(|len| len.checked_add(HUGE_PAGE_BYTES));
    let len = len.ok_or_else(|| io::Error::other("more bytes than there are addresses"))?;
    let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let reserved = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), nothing) }?;
    let head = reserved.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
    let at = reserved.wrapping_byte_add(head);
    let tail = head + bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: the range is part of the reservation, which no other code knows.
    unsafe {
        let mapped = mmap(at, bytes, protection, shared | MapFlags::FIXED, file, from as u64);
        if let Err(e) = mapped {
            munmap(reserved, len)?;
            return Err(e.into());
        }
        if head > 0 {
            munmap(reserved, head)?;
        }
        if tail < len {
            munmap(reserved.wrapping_byte_add(tail), len - tail)?;
        }
    }
    found(at)
}

/// A mapping of a file whose bytes do not change, readable in place.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
    /// Mapped length: `bytes`, or up to the end of the last huge page.
    mapped: usize,
}

// SAFETY: the mapped bytes never change.
unsafe impl Send for Mapping {}
// SAFETY: the mapped bytes never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file that a trusted process sealed, after checking its seals and its length. Files from
    /// untrusted processes must pass [`SealedFile::of_sealed`](crate::SealedFile::of_sealed) first.
    pub fn sealed(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Mapping> {
        let seals = fcntl_get_seals(file)?;
        let write = if seals.contains(SealFlags::WRITE) { SealFlags::WRITE } else { SealFlags::FUTURE_WRITE };
        Mapping::with_seals(file, bytes, SealFlags::SHRINK | write)
    }

    /// Maps the first `bytes` of a file that is [lent](crate::LentSegment) to this process, after checking its length
    /// and that it can't shrink.
    ///
    /// # Safety
    /// The file must not be written while the mapping lives.
    pub unsafe fn lent(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Mapping> {
        Mapping::with_seals(file, bytes, SealFlags::SHRINK)
    }

    fn with_seals(file: BorrowedFd<'_>, bytes: u64, seals: SealFlags) -> io::Result<Mapping> {
        let file_bytes = check_seals(file, bytes, seals)?;
        let bytes = usize::try_from(bytes).map_err(|_| wrong("the file is longer than memory"))?;
        // Includes the last huge page as a whole; a part of it would be mapped as small pages.
        let mapped = Some(huge_bytes(bytes)).filter(|huge| *huge as u64 <= file_bytes).unwrap_or_default().max(bytes);
        // Both kinds of mapping show the same bytes of a file that is never written, but kernels before 6.7 refuse
        // shared mappings of write-sealed files.
        let is_constant = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        let shared = if is_constant { MapFlags::PRIVATE } else { MapFlags::SHARED };
        let at = if bytes == 0 { NonNull::dangling() } else { map(file, 0, mapped, ProtFlags::READ, shared)? };
        Ok(Mapping { at, bytes, mapped })
    }
}

fn wrong(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

/// Checks that a file has at least `bytes` bytes and these seals. Returns its length in bytes.
pub(crate) fn check_seals(file: BorrowedFd<'_>, bytes: u64, seals: SealFlags) -> io::Result<u64> {
    if !fcntl_get_seals(file)?.contains(seals) {
        return Err(wrong("the file is not sealed"));
    }
    let file_bytes = fstat(file)?.st_size as u64;
    if file_bytes < bytes {
        return Err(wrong("the file is shorter than declared"));
    }
    Ok(file_bytes)
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped in `with_seals`, unmapped in `drop`; the file can't shrink (sealed), and its bytes do not
        // change (sealed, or guaranteed by the caller of `lent`).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: mapped in `with_seals`; slices of it can't outlive `self`.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), self.mapped) };
        }
    }
}

/// Returns the length of the huge pages for `bytes` bytes that start at a huge page: all bytes but a small remainder,
/// rounded up if the remainder is large.
pub(crate) fn huge_bytes(bytes: usize) -> usize {
    let rest = bytes % HUGE_PAGE_BYTES;
    bytes - rest + if rest < HUGE_BYTES_MIN { 0 } else { HUGE_PAGE_BYTES }
}

/// Asks the kernel to collapse the bytes from `at` on into huge pages.
///
/// # Safety
/// The range must be whole huge pages, mapped for writing, of a file that no other process writes meanwhile.
pub(crate) unsafe fn collapse(at: NonNull<u8>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    for page in (0..bytes).step_by(HUGE_PAGE_BYTES) {
        // The kernel collapses only ranges with at least one page that was written.
        // SAFETY: in bounds, and no other thread or process writes it.
        unsafe {
            let first = at.as_ptr().add(page);
            first.write_volatile(first.read_volatile());
        }
    }
    // SAFETY: in bounds; the advice changes no content.
    unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
}

/// Shared memory that one process writes and another copies from. Its pages are allocated on their first write.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: access is by copying through methods that handle overlap; the mapping lives as long as the value.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`: `read` and the atomics are the only shared accesses.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates shared memory of `bytes` bytes, all zero.
    pub fn new(bytes: usize) -> io::Result<SharedMemory> {
        let file = memfd_create("sandbar-scratch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        SharedMemory::open(file, bytes)
    }

    /// Maps shared memory that another process created.
    pub fn open(file: OwnedFd, bytes: usize) -> io::Result<SharedMemory> {
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if bytes == 0 || !sealed || (fstat(&file)?.st_size as u64) < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory is shorter than declared"));
        }
        let at = map(file.as_fd(), 0, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        Ok(SharedMemory { file, at, bytes })
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `from` to `at`.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn write(&self, at: usize, from: &[u8]) {
        assert!(self.has(at, from.len()), "{} bytes at {at} of {}", from.len(), self.bytes);
        // SAFETY: in bounds; `from` is private memory of this process.
        unsafe { copy_to_shared(from.as_ptr(), self.at.as_ptr().add(at), from.len()) }
    }

    /// Copies `to.len()` bytes from `at` on. The other process may write them concurrently: the result is untrusted
    /// bytes.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn read<'a>(&self, at: usize, to: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        assert!(self.has(at, to.len()), "{} bytes at {at} of {}", to.len(), self.bytes);
        // SAFETY: in bounds; `to` is private memory, and initialised by the copy.
        unsafe {
            copy_from_shared(self.at.as_ptr().add(at), to.as_mut_ptr().cast(), to.len());
            to.assume_init_mut()
        }
    }

    /// Zeroes a range.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn clear(&self, at: usize, bytes: usize) {
        assert!(self.has(at, bytes), "{bytes} bytes at {at} of {}", self.bytes);
        // SAFETY: in bounds.
        unsafe { std::ptr::write_bytes(self.at.as_ptr().add(at), 0, bytes) }
    }

    /// Returns the first `count` words, as numbers.
    ///
    /// # Safety
    /// No other process may write them while the slice lives.
    ///
    /// # Panics
    /// Panics if the words are out of bounds.
    pub unsafe fn numbers(&mut self, count: usize) -> &mut [f64] {
        assert!(count.checked_mul(8).is_some_and(|bytes| bytes <= self.bytes), "{count} words of {} bytes", self.bytes);
        // SAFETY: in bounds and aligned (mappings start at a page); every bit pattern is a number; the caller excludes
        // other writers.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), count) }
    }

    fn has(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Returns the u64 at `index`, for both processes to read and write.
    ///
    /// # Panics
    /// Panics if the index is out of bounds.
    pub fn atomic(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes);
        // SAFETY: in bounds and aligned (mappings start at a page); atomics may be shared.
        unsafe { &*self.at.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Returns the u32 at `index`, for both processes to read, write and wait for.
    ///
    /// # Panics
    /// Panics if the index is out of bounds.
    pub fn atomic32(&self, index: usize) -> &AtomicU32 {
        assert!((index + 1) * 4 <= self.bytes);
        // SAFETY: in bounds and aligned (mappings start at a page); atomics may be shared.
        unsafe { &*self.at.as_ptr().cast::<AtomicU32>().add(index) }
    }

    /// Asks the kernel to collapse the bytes from `at` on into huge pages; `at` and `bytes` are multiples of
    /// [`HUGE_PAGE_BYTES`]. A collapse costs less than the first use in small pages, and later mappings take one page
    /// fault instead of many. A failed collapse changes nothing. No other process may write the memory meanwhile.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub(crate) fn collapse(&mut self, at: usize, bytes: usize) {
        assert!(self.has(at, bytes), "{bytes} bytes at {at} of {}", self.bytes);
        // SAFETY: in bounds, and no other process writes the memory: it was not shared yet, or its readers only read.
        unsafe { collapse(self.at.add(at), bytes) };
    }

    /// Returns the pages from `at` on to the kernel: they read as zero again.
    pub fn discard(&self, at: usize) -> io::Result<()> {
        if at < self.bytes {
            fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                at as u64,
                (self.bytes - at) as u64,
            )?;
        }
        Ok(())
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
