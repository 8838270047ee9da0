//! Memory files in this process's memory.

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
use sandbar_core::{copy_for_others, copy_from_others};

/// Bytes of a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// From so many bytes on a huge page is made for them.
pub(crate) const HUGE_FROM_BYTES: usize = 1 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;

/// Maps `bytes` bytes of a file, at least one, from the offset `from` on, a multiple of [`HUGE_PAGE_BYTES`]. At the
/// start of a huge page when there are as many: only there is a huge page of the file mapped as one.
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
    // SAFETY: as above.
    let reserved = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), nothing) }?;
    let head = reserved.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
    let at = reserved.wrapping_byte_add(head);
    let tail = head + bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: all of it is in what was just reserved, which nobody else knows of.
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

/// A file whose bytes do not change, readable in place.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
    /// As many, or those of the last huge page as well.
    mapped: usize,
}

// SAFETY: the mapped bytes never change.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file that a trusted process sealed, after checking its seals and its length. Files from
    /// untrusted processes must pass [`Object::of_sealed`](crate::Object::of_sealed) first.
    pub fn sealed(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Mapping> {
        let seals = fcntl_get_seals(file)?;
        let write = if seals.contains(SealFlags::WRITE) { SealFlags::WRITE } else { SealFlags::FUTURE_WRITE };
        Mapping::with_seals(file, bytes, SealFlags::SHRINK | write)
    }

    /// Maps the first `bytes` of a file that is [lent](crate::Lent) to this
    /// process, after checking that it is that long and stays so.
    ///
    /// # Safety
    /// It is not written while the mapping lives.
    pub unsafe fn lent(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Mapping> {
        Mapping::with_seals(file, bytes, SealFlags::SHRINK)
    }

    fn with_seals(file: BorrowedFd<'_>, bytes: u64, seals: SealFlags) -> io::Result<Mapping> {
        let file_bytes = check_seals(file, bytes, seals)?;
        let bytes = usize::try_from(bytes).map_err(|_| wrong("the file is longer than memory"))?;
        // Of a huge page all is mapped, or it would be mapped as small ones.
        let mapped = Some(huge_bytes(bytes)).filter(|huge| *huge as u64 <= file_bytes).unwrap_or_default().max(bytes);
        // What is never written is the same either way, but kernels before 6.7 refuse to share a file that is sealed
        // against it.
        let is_constant = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        let shared = if is_constant { MapFlags::PRIVATE } else { MapFlags::SHARED };
        let at = if bytes == 0 { NonNull::dangling() } else { map(file, 0, mapped, ProtFlags::READ, shared)? };
        Ok(Mapping { at, bytes, mapped })
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Checks that a file has at least `bytes` bytes and these seals. Gives how many it has.
pub(crate) fn check_seals(file: BorrowedFd<'_>, bytes: u64, seals: SealFlags) -> io::Result<u64> {
    if !fcntl_get_seals(file)?.contains(seals) {
        return Err(wrong("the file is not sealed"));
    }
    let file_bytes = fstat(file)?.st_size as u64;
    if file_bytes < bytes {
        return Err(wrong("the file is shorter than was said"));
    }
    Ok(file_bytes)
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped in `with_seals`, unmapped in `drop`; the bytes do not end (sealed) and do not change (sealed,
        // or so the caller of `lent` promised).
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
            // SAFETY: mapped in `with_seals`; slices of it can't outlive it.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), self.mapped) };
        }
    }
}

/// How many of `bytes` bytes from the start of a huge page on, or somewhat more, huge pages are made for: all but a
/// small rest.
pub(crate) fn huge_bytes(bytes: usize) -> usize {
    let rest = bytes % HUGE_PAGE_BYTES;
    bytes - rest + if rest < HUGE_FROM_BYTES { 0 } else { HUGE_PAGE_BYTES }
}

/// Has the kernel make huge pages of the bytes from `at` on.
///
/// # Safety
/// They are whole huge pages, mapped to be written, of a file that nobody else writes meanwhile.
pub(crate) unsafe fn gather(at: NonNull<u8>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    for page in (0..bytes).step_by(HUGE_PAGE_BYTES) {
        // The kernel gathers small pages that were written, so there must be one.
        // SAFETY: in bounds, and written by nobody else.
        unsafe {
            let first = at.as_ptr().add(page);
            first.write_volatile(first.read_volatile());
        }
    }
    // SAFETY: in bounds; the advice changes no content.
    unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
}

/// Shared memory that one process writes and another copies from. Its pages
/// come into being when they are first written.
#[derive(Debug)]
pub struct Scratch {
    file: OwnedFd,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: access is by copying through methods that take care of overlap; the mapping lives as long as the value.
unsafe impl Send for Scratch {}
// SAFETY: as above: `read` and `atomic` are the only shared accesses.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// New shared memory of `bytes` bytes, all zero.
    pub fn new(bytes: usize) -> io::Result<Scratch> {
        let file = memfd_create("sandbar-scratch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Scratch::open(file, bytes)
    }

    /// Shared memory that another process made.
    pub fn open(file: OwnedFd, bytes: usize) -> io::Result<Scratch> {
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if bytes == 0 || !sealed || (fstat(&file)?.st_size as u64) < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory is shorter than was said"));
        }
        let at = map(file.as_fd(), 0, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        Ok(Scratch { file, at, bytes })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `from` to `at`.
    ///
    /// # Panics
    /// When the range is not in the memory.
    pub fn write(&self, at: usize, from: &[u8]) {
        assert!(self.has(at, from.len()), "{} bytes at {at} of {}", from.len(), self.bytes);
        // SAFETY: in bounds; `from` is not shared memory: it was made by this process from its own.
        unsafe { copy_for_others(from.as_ptr(), self.at.as_ptr().add(at), from.len()) }
    }

    /// Copies `to.len()` bytes from `at` on. The other process may be writing
    /// them: what is copied is some bytes, to be checked as such.
    ///
    /// # Panics
    /// When the range is not in the memory.
    pub fn read<'a>(&self, at: usize, to: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        assert!(self.has(at, to.len()), "{} bytes at {at} of {}", to.len(), self.bytes);
        // SAFETY: in bounds; `to` is not shared memory, and initialised by this.
        unsafe {
            copy_from_others(self.at.as_ptr().add(at), to.as_mut_ptr().cast(), to.len());
            to.assume_init_mut()
        }
    }

    /// Writes zeros.
    ///
    /// # Panics
    /// When the range is not in the memory.
    pub fn clear(&self, at: usize, bytes: usize) {
        assert!(self.has(at, bytes), "{bytes} bytes at {at} of {}", self.bytes);
        // SAFETY: in bounds.
        unsafe { std::ptr::write_bytes(self.at.as_ptr().add(at), 0, bytes) }
    }

    /// Its first `count` words.
    ///
    /// # Safety
    /// No other process writes them while the slice lives.
    ///
    /// # Panics
    /// When they are not in the memory.
    pub unsafe fn numbers(&mut self, count: usize) -> &mut [f64] {
        assert!(count.checked_mul(8).is_some_and(|bytes| bytes <= self.bytes), "{count} words of {} bytes", self.bytes);
        // SAFETY: in bounds and aligned (mappings start at a page); any bytes are a number; the caller vouches for others.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), count) }
    }

    fn has(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// The `index`th u64, for both processes to read and write.
    ///
    /// # Panics
    /// When it is not in the memory.
    pub fn atomic(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes);
        // SAFETY: in bounds and aligned (mappings start at a page); atomics may be shared.
        unsafe { &*self.at.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// The `index`th u32, for both processes to read and write, and to wait for.
    ///
    /// # Panics
    /// When it is not in the memory.
    pub fn atomic32(&self, index: usize) -> &AtomicU32 {
        assert!((index + 1) * 4 <= self.bytes);
        // SAFETY: as in `atomic`.
        unsafe { &*self.at.as_ptr().cast::<AtomicU32>().add(index) }
    }

    /// Has the kernel make huge pages of the bytes from `at` on, both multiples of
    /// [`HUGE_PAGE_BYTES`]: one costs less than its first use in small ones, and
    /// whoever maps it later has one page fault instead of many. Where it can't be
    /// done, nothing has changed. No other process writes the memory meanwhile.
    ///
    /// # Panics
    /// When the range is not in the memory.
    pub(crate) fn gather(&mut self, at: usize, bytes: usize) {
        assert!(self.has(at, bytes), "{bytes} bytes at {at} of {}", self.bytes);
        // SAFETY: in bounds, and nobody else has the memory: it was not shared yet, or its readers only read.
        unsafe { gather(self.at.add(at), bytes) };
    }

    /// Gives the pages from `at` on back: they read as zero again.
    pub fn forget(&self, at: usize) -> io::Result<()> {
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

impl AsFd for Scratch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
