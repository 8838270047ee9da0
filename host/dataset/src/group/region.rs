//! Memory of blocks.
//!
//! A block is megabytes that are touched once, all of them: as small pages
//! that is a thousand page faults, which cost more than the copying. So blocks
//! are mapped for huge pages. Measured for 14 million rows on one thread:
//! 139,000 faults and 0.89 s of processor time without, 38,000 and 0.52 s with.
//! A mapping also gives memory back in parts, as partitions are consumed.

use std::ptr::NonNull;
use std::sync::Arc;

use arrow_buffer::Buffer;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Bytes under which memory comes from the allocator.
const MAPPED_MIN: usize = HUGE;

/// Words of memory, zero at first.
pub(super) enum BlockMemory {
    Heap(Vec<u64>),
    Mapped(Region),
}

impl BlockMemory {
    /// `len` zeros.
    pub(super) fn zeroed(len: usize) -> BlockMemory {
        if len * 8 < MAPPED_MIN {
            return BlockMemory::Heap(vec![0; len]);
        }
        Region::new(len).map_or_else(|| BlockMemory::Heap(vec![0; len]), BlockMemory::Mapped)
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u64] {
        match self {
            BlockMemory::Heap(words) => words,
            BlockMemory::Mapped(region) => region.as_mut_slice(),
        }
    }

    /// Makes the words immutable, in parts that begin at the bytes `starts`
    /// (ascending, the first 0): the memory of a part is free when nobody
    /// holds a slice of it any more.
    pub(super) fn freeze(self, starts: &[usize]) -> Vec<Buffer> {
        let len = match &self {
            BlockMemory::Heap(words) => words.len() * 8,
            BlockMemory::Mapped(region) => region.len * 8,
        };
        let ends = starts.iter().skip(1).copied().chain([len]);
        let parts = starts.iter().copied().zip(ends);
        match self {
            BlockMemory::Heap(words) => {
                let whole = Buffer::from_vec(words);
                parts.map(|(start, end)| whole.slice_with_length(start, end - start)).collect()
            }
            BlockMemory::Mapped(region) => {
                let region = Arc::new(region);
                parts.map(|(start, end)| RegionPart { region: Arc::clone(&region), start, end }.freeze()).collect()
            }
        }
    }
}

/// A private mapping that begins at a huge page.
pub(super) struct Region {
    start: NonNull<u64>,
    /// In words.
    len: usize,
}

// SAFETY: a region is memory that nobody else has a pointer to. It is changed through `&mut`, and by `RegionPart::drop`, which
// says why nobody sees that.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `len` zeros, or nothing where the system refuses.
    fn new(len: usize) -> Option<Region> {
        let bytes = len.checked_mul(8)?.checked_next_multiple_of(PAGE)?;
        let mapped = bytes.checked_add(HUGE)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let head = base.cast::<u8>().align_offset(HUGE);
        let start = base.wrapping_byte_add(head);
        let tail = mapped - head - bytes;
        // SAFETY: head and tail are parts of the mapping made above that nobody uses, in whole pages since `base`, `HUGE`
        // and `bytes` are. The advice changes no content, and may fail without harm.
        unsafe {
            if head > 0 {
                libc::munmap(base, head);
            }
            if tail > 0 {
                libc::munmap(start.wrapping_byte_add(bytes), tail);
            }
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
        }
        Some(Region { start: NonNull::new(start.cast())?, len })
    }

    fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is of at least `len` words, zero at first, lives as long as `self`, and `&mut self` says
        // that nobody else sees it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: start and rounded length are those of the mapping, which nobody uses after its owner is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), (self.len * 8).next_multiple_of(PAGE)) };
    }
}

/// The bytes from `start` to `end` of a region: the only way to see them.
struct RegionPart {
    region: Arc<Region>,
    start: usize,
    end: usize,
}

impl RegionPart {
    fn freeze(self) -> Buffer {
        let len = self.end - self.start;
        debug_assert!(self.start <= self.end && self.end <= self.region.len * 8);
        // SAFETY: `start` and `end` are within the region, as slices of ends of `BlockMemory::freeze` are.
        let first = unsafe { self.region.start.byte_add(self.start) };
        // SAFETY: the mapping has these bytes, the buffer keeps it alive by holding `self`, and nobody changes them: the
        // region is behind an `Arc` that only parts hold, and parts don't overlap.
        unsafe { Buffer::from_custom_allocation(first.cast(), len, Arc::new(self)) }
    }
}

impl Drop for RegionPart {
    fn drop(&mut self) {
        let first = self.start.next_multiple_of(PAGE);
        let end = self.end / PAGE * PAGE;
        if first < end && Arc::strong_count(&self.region) > 1 {
            let start = self.region.start.as_ptr().wrapping_byte_add(first).cast();
            // SAFETY: these are whole pages of a live mapping. They hold bytes of this part alone, and the part is
            // dropped after the last buffer that shows them: that they become zero is seen by nobody.
            unsafe { libc::madvise(start, end - first, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_buffer::ScalarBuffer;

    use super::*;

    #[test]
    fn words_are_zero_and_keep_what_is_written() {
        // Just under, at and over the bound of mapping and the ends of pages: what lies behind a region is unmapped.
        for len in [0, 1, HUGE / 8 - 1, HUGE / 8, HUGE / 8 + 1, 3 * HUGE / 8 + 511, 3 * HUGE / 8 + 513] {
            let mut words = BlockMemory::zeroed(len);
            assert_eq!(matches!(words, BlockMemory::Mapped(_)), len * 8 >= MAPPED_MIN);
            assert!(words.as_mut_slice().iter().all(|w| *w == 0));
            words.as_mut_slice().iter_mut().enumerate().for_each(|(i, w)| *w = i as u64);
            let starts = [0, len / 3, len / 3, len / 3 * 2 + len % 3];
            let parts = words.freeze(&starts.map(|start| start * 8));
            let mut parts: Vec<_> = parts.into_iter().map(|p| Some(ScalarBuffer::<u64>::from(p))).collect();
            // Freed one after another, what remains is whole.
            for gone in [1, 0, 3, 2] {
                for (part, start) in parts.iter().zip(starts) {
                    assert!(
                        part.iter().flat_map(|p| p.iter()).enumerate().all(|(i, w)| *w == (start + i) as u64),
                        "{len}"
                    );
                }
                parts[gone] = None;
            }
        }
    }

    #[test]
    fn memory_is_given_back_part_by_part() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").expect("statm");
            status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * PAGE
        };
        let len = 64 * HUGE / 8;
        let mut words = BlockMemory::zeroed(len);
        words.as_mut_slice().fill(1);
        let full = resident();
        let mut parts = words.freeze(&[0, len / 2 * 8]);
        parts.pop();
        // Other tests run beside this one, and take far less.
        assert!(resident() + 48 * HUGE < full + 24 * HUGE, "{} of {full}", resident());
        assert!(parts[0].typed_data::<u64>().iter().all(|w| *w == 1));
    }
}
