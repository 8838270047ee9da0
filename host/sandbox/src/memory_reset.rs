//! Resets the memory of a sandbox: the kernel reports the written pages, which get their initial content.
//!
//! Querying the kernel takes as long as the rest of the reset. However, the first write to a page causes a page fault,
//! and the kernel's fault counter of each thread is cheaper to read: without a new fault, the written pages are those
//! of the last query. The exception would be huge pages that the kernel assembles from small ones; they are disabled
//! for this memory.

use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::memory::PAGE_BYTES;
use crate::rewrite::MemoryImage;
use crate::state::SandboxState;

/// Bytes of a slot that are zeroed in place instead of being returned to the kernel: most guests touch that much. Returned
/// pages fault in again one by one, which takes five times as long.
pub(crate) const KEEP_RESIDENT_BYTES: usize = 16 << 20;

/// Written pages of a sandbox's memory.
pub(crate) struct WrittenPages {
    /// Page faults of this thread at the time of the query.
    faults: FaultCounts,
    /// All pages that were ever written.
    regions: Vec<PageRegion>,
}

/// Resets memory to its initial content.
pub(crate) struct MemoryReset {
    initial: MemoryImage<Box<dyn Deref<Target = [u8]> + Send + Sync>>,
    pages: Arc<File>,
}

impl MemoryReset {
    /// Returns `None` if the kernel does not report written pages.
    pub(crate) fn new(
        initial: MemoryImage<Box<dyn Deref<Target = [u8]> + Send + Sync>>,
        pages: Option<Arc<File>>,
    ) -> Option<MemoryReset> {
        Some(MemoryReset { initial, pages: pages? })
    }

    /// Resets the written pages. Returns `None` if that is impossible.
    pub(crate) fn reset(&self, state: &SandboxState, written: &mut Option<WrittenPages>) -> Option<()> {
        let bytes = self.initial.memory_bytes;
        let base = state.memory.filter(|_| state.limiter.memory_bytes == bytes)?;
        let faults = FaultCounts::of_this_thread()?;
        let known = match written {
            Some(known) if known.faults == faults => known,
            _ => {
                if written.is_none() {
                    no_huge_pages(base, bytes as usize);
                }
                let regions = scan_written(&self.pages, base, bytes as usize)?;
                if regions.iter().map(|region| region.end - region.start).sum::<u64>() > KEEP_RESIDENT_BYTES as u64 {
                    return None;
                }
                written.insert(WrittenPages { faults, regions })
            }
        };
        for region in &known.regions {
            // SAFETY: the regions lie in the memory of this sandbox, in which no code runs and which nothing
            // references; they are writable, because they were written.
            unsafe { self.reset_region(base, region.start as usize, region.end as usize) };
        }
        Some(())
    }

    /// # Safety
    /// The range from `start` to `end` is writable memory of a sandbox whose memory begins at `base`.
    unsafe fn reset_region(&self, base: usize, start: usize, end: usize) {
        let MemoryImage { image_start, image, .. } = &self.initial;
        let image_at = base + *image_start as usize;
        let (from, until) = (image_at.clamp(start, end), (image_at + image.len()).clamp(start, end));
        // SAFETY: guaranteed by the caller.
        unsafe {
            (start as *mut u8).write_bytes(0, from - start);
            if let Some(image) = image.get(from.wrapping_sub(image_at)..until.wrapping_sub(image_at)) {
                (from as *mut u8).copy_from_nonoverlapping(image.as_ptr(), image.len());
            }
            (until as *mut u8).write_bytes(0, end - until);
        }
    }
}

/// Counts of minor and major page faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FaultCounts(libc::c_long, libc::c_long);

impl FaultCounts {
    fn of_this_thread() -> Option<FaultCounts> {
        let mut usage = MaybeUninit::uninit();
        // SAFETY: the kernel fills in the structure.
        let usage: libc::rusage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return None;
            }
            usage.assume_init()
        };
        Some(FaultCounts(usage.ru_minflt, usage.ru_majflt))
    }
}

fn no_huge_pages(at: usize, bytes: usize) {
    // A kernel without huge pages returns an error, which does not matter.
    // SAFETY: it does not change the content of the memory.
    let _ = unsafe { libc::madvise(at as *mut libc::c_void, bytes, libc::MADV_NOHUGEPAGE) };
}

/// Maximum number of regions per query.
const REGIONS_MAX: usize = 64;

/// Returns all written regions of a memory.
fn scan_written(pages: &File, base: usize, bytes: usize) -> Option<Vec<PageRegion>> {
    let (mut all, mut from, end) = (Vec::new(), base, base + bytes);
    while from < end {
        let mut found = [const { MaybeUninit::uninit() }; REGIONS_MAX];
        let (regions, walked) = written(pages, from, end, &mut found)?;
        all.extend_from_slice(regions);
        from = walked;
    }
    Some(all)
}

/// `struct page_region` and `struct pm_scan_arg` of Linux (`include/uapi/linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// Returns whether the kernel reports written pages (since 6.7). Sandboxes can be reused only if it does.
pub fn reports_written_pages() -> bool {
    pages().is_some()
}

/// Returns the file that reports written pages of this process, if the kernel supports it (since 6.7).
pub(crate) fn pages() -> Option<Arc<File>> {
    let pages = File::open("/proc/self/pagemap").ok()?;
    written(&pages, 0, PAGE_BYTES, &mut [const { MaybeUninit::uninit() }; 1])?;
    Some(Arc::new(pages))
}

/// Finds written pages between two addresses: pages that have a content of their own, neither that of a file nor zeros.
/// They are present, or swapped out; a page that the kernel moves at this moment counts as swapped out. Returns the
/// regions, and the end of the scan; `None` if the kernel does not support it.
fn written<'f>(
    pages: &File,
    start: usize,
    end: usize,
    found: &'f mut [MaybeUninit<PageRegion>],
) -> Option<(&'f [PageRegion], usize)> {
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        flags: 0,
        start: start as u64,
        end: end as u64,
        walk_end: 0,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        max_pages: 0,
        category_inverted: PAGE_IS_FILE | PAGE_IS_PFNZERO,
        category_mask: PAGE_IS_FILE | PAGE_IS_PFNZERO,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: 0,
    };
    // SAFETY: the kernel reads and writes the arguments, and writes at most as many regions as they state.
    let count = unsafe { libc::ioctl(pages.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
    let count = usize::try_from(count).ok().filter(|count| *count <= found.len())?;
    let walked = arguments.walk_end as usize;
    if walked <= start || walked > end {
        return None;
    }
    // SAFETY: the kernel has written this many regions.
    Some((unsafe { std::slice::from_raw_parts(found.as_ptr().cast(), count) }, walked))
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    /// Pages are swapped out where the machine swaps; elsewhere they stay.
    #[test]
    fn written_pages_are_found_wherever_they_are() {
        const PAGES: usize = 64;
        let Some(file) = pages() else { return };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which is written within its length and then unmapped.
        let regions = unsafe {
            let memory = mmap_anonymous(std::ptr::null_mut(), PAGES * PAGE_BYTES, access, MapFlags::PRIVATE).unwrap();
            no_huge_pages(memory as usize, PAGES * PAGE_BYTES);
            for page in 0..PAGES {
                let byte = memory.cast::<u8>().add(page * PAGE_BYTES);
                // Every other page is only read, if at all.
                match page % 4 {
                    0 | 2 => byte.write_volatile(1),
                    1 => assert_eq!(byte.read_volatile(), 0),
                    _ => {}
                }
            }
            libc::madvise(memory, PAGES * PAGE_BYTES, libc::MADV_PAGEOUT);
            let regions = scan_written(&file, memory as usize, PAGES * PAGE_BYTES);
            munmap(memory, PAGES * PAGE_BYTES).unwrap();
            regions.unwrap()
        };
        assert_eq!(regions.len(), PAGES / 2);
        assert!(regions.iter().all(|region| region.end - region.start == PAGE_BYTES as u64));
    }
}
