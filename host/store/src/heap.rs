//! The memory allocator of a node's process.

use std::alloc::{GlobalAlloc, Layout, System};

use mimalloc::MiMalloc;

use crate::mapping::HUGE_PAGE_BYTES;

/// Minimum size in bytes of large allocations: buffers of batches and files.
const LARGE_BYTES: usize = 8 << 10;
/// Minimum size in bytes of allocations with a mapping of their own: the maximum of the setting.
const MAPPED_BYTES: usize = 32 << 20;
/// Minimum bytes of free memory that a small heap returns to the kernel.
const TRIM_BYTES: usize = 1 << 20;
/// Bytes at the start of the heap that are in huge pages.
const HUGE_HEAP_BYTES: usize = 1 << 30;
/// Increment of the heap beyond its huge pages, in bytes.
const GROWTH_BYTES: usize = 16 << 20;

/// An allocator for processes whose threads pass much memory to each other. Small allocations come from mimalloc's
/// per-thread heaps, large ones from the C library's heap, which [`Heap::set_up`] configures as one heap for all
/// threads.
///
/// One thread creates batches and another drops them. Per-thread heaps keep freed memory for the thread that allocated
/// it while other threads take new pages, and clearing a page costs more than most operations on it. Training 522
/// models on 14M rows takes 148 MB of new memory with one heap for large allocations, and 290 MB without.
#[derive(Debug)]
pub struct Heap;

impl Heap {
    /// Configures one C heap for all threads that returns free memory to the kernel, for processes with a low memory
    /// limit. Must be called before threads start.
    pub fn set_up_small(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: the calls set parameters of the allocator.
        unsafe {
            use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int, mallopt};

            mallopt(M_ARENA_MAX, 1);
            mallopt(M_MMAP_THRESHOLD, TRIM_BYTES as c_int);
            mallopt(M_TRIM_THRESHOLD, TRIM_BYTES as c_int);
        }
    }

    /// Configures one C heap for all threads that keeps its memory and whose first part is in huge pages, where the
    /// kernel provides them on request. Must be called before threads start.
    pub fn set_up(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: the calls set parameters of the allocator. The advice changes no content: its range starts at the
        // block, which is the heap's first, and ends at the heap's end. The block is freed once.
        unsafe {
            use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, c_int, mallopt};

            mallopt(M_ARENA_MAX, 1);
            mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES as c_int);
            mallopt(M_TRIM_THRESHOLD, c_int::MAX);
            mallopt(M_TOP_PAD, HUGE_HEAP_BYTES as c_int);
            let block = libc::malloc(HUGE_PAGE_BYTES);
            let (start, end) = (block.addr().next_multiple_of(HUGE_PAGE_BYTES), libc::sbrk(0).addr());
            // Otherwise the kernel refused to grow the heap by this many addresses, and the block is elsewhere.
            if !block.is_null() && end.saturating_sub(start).abs_diff(HUGE_HEAP_BYTES) <= HUGE_PAGE_BYTES {
                libc::madvise(block.with_addr(start), end - start, libc::MADV_HUGEPAGE);
            }
            libc::free(block);
            mallopt(M_TOP_PAD, GROWTH_BYTES as c_int);
        }
    }
}

// SAFETY: each allocation returns to its allocator, which its size identifies.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.dealloc(at, layout) } else { System.dealloc(at, layout) } }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract; the new allocation holds the copied bytes, and the old one is freed
        // after the copy.
        unsafe {
            match (layout.size() < LARGE_BYTES, bytes < LARGE_BYTES) {
                (true, true) => MiMalloc.realloc(at, layout, bytes),
                (false, false) => System.realloc(at, layout, bytes),
                _ => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
                    if !moved.is_null() {
                        at.copy_to_nonoverlapping(moved, layout.size().min(bytes));
                        self.dealloc(at, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reallocations_keep_the_content() {
        let lengths = [1, 100, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 8 << 20, MAPPED_BYTES + 1];
        for (from, to) in lengths.iter().flat_map(|from| lengths.map(|to| (*from, to))) {
            for align in [1, 64, 4096] {
                let layout = |bytes| Layout::from_size_align(bytes, align).unwrap();
                // SAFETY: the layouts are not empty, and each allocation is used and freed with its own layout.
                unsafe {
                    let block = Heap.alloc_zeroed(layout(from));
                    assert!(block.addr().is_multiple_of(align));
                    assert_eq!((*block, *block.add(from - 1)), (0, 0));
                    *block.add(from.min(to) - 1) = 7;
                    let block = Heap.realloc(block, layout(from), to);
                    assert!(block.addr().is_multiple_of(align));
                    assert_eq!(*block.add(from.min(to) - 1), 7, "{from} to {to} bytes");
                    Heap.dealloc(block, layout(to));
                }
            }
        }
    }
}
