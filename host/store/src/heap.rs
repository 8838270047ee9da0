//! The memory of a node's own process.

use std::alloc::{GlobalAlloc, Layout, System};

use mimalloc::MiMalloc;

use crate::mapping::HUGE_PAGE_BYTES;

/// Pieces of this length or longer are large: buffers of batches and files.
const LARGE_BYTES: usize = 8 << 10;
/// Large pieces from this length on are mapped, each for itself: the most that can be chosen.
const MAPPED_BYTES: usize = 32 << 20;
/// A small heap returns free memory from this size on.
const GIVEN_BACK_BYTES: usize = 1 << 20;
/// So much of the heap comes in huge pages.
const HUGE_HEAP_BYTES: usize = 1 << 30;
/// Then it grows by so much.
const GROWTH_BYTES: usize = 16 << 20;

/// An allocator for processes whose threads hand each other much memory. Small pieces come from a heap of each thread,
/// large ones from the C library's, which [`Heap::set_up`] makes one for all threads.
///
/// Batches are made by one thread and dropped by another. Where each thread has a heap for them, their memory is kept
/// for the thread that made them, and others take new pages meanwhile; clearing a page costs more than most of what is
/// done with it. To group 14M rows and train on them took 290 MB of new pages with mimalloc alone, and takes 190 so.
#[derive(Debug)]
pub struct Heap;

impl Heap {
    /// Has the C library keep one heap for all threads that returns free memory to the kernel, for processes with a low
    /// memory limit. To be called before there are threads.
    pub fn set_up_small(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: these set numbers of the allocator.
        unsafe {
            use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int, mallopt};

            mallopt(M_ARENA_MAX, 1);
            mallopt(M_MMAP_THRESHOLD, GIVEN_BACK_BYTES as c_int);
            mallopt(M_TRIM_THRESHOLD, GIVEN_BACK_BYTES as c_int);
        }
    }

    /// Has the C library keep one heap for all threads, which gives nothing back to the kernel and whose first part
    /// comes in huge pages, where the kernel makes some for who asks. To be called before there are threads.
    pub fn set_up(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: these set numbers of the allocator. The advice changes no content: it is given for addresses from the
        // block's, which is the heap's first, to the heap's end. The block is freed once.
        unsafe {
            use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, c_int, mallopt};

            mallopt(M_ARENA_MAX, 1);
            mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES as c_int);
            mallopt(M_TRIM_THRESHOLD, c_int::MAX);
            mallopt(M_TOP_PAD, HUGE_HEAP_BYTES as c_int);
            let block = libc::malloc(HUGE_PAGE_BYTES);
            let (start, end) = (block.addr().next_multiple_of(HUGE_PAGE_BYTES), libc::sbrk(0).addr());
            // Otherwise the kernel refused the heap so many addresses, and the block is somewhere else.
            if !block.is_null() && end.saturating_sub(start).abs_diff(HUGE_HEAP_BYTES) <= HUGE_PAGE_BYTES {
                libc::madvise(block.with_addr(start), end - start, libc::MADV_HUGEPAGE);
            }
            libc::free(block);
            mallopt(M_TOP_PAD, GROWTH_BYTES as c_int);
        }
    }
}

// SAFETY: each piece goes back to whom it came from, which its length says.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.dealloc(at, layout) } else { System.dealloc(at, layout) } }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller says; the new piece is as long as what is copied, and the old one is let go of after it.
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
    fn pieces_keep_what_they_hold_when_they_grow_and_shrink() {
        let lengths = [1, 100, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 8 << 20, MAPPED_BYTES + 1];
        for (from, to) in lengths.iter().flat_map(|from| lengths.map(|to| (*from, to))) {
            for align in [1, 64, 4096] {
                let layout = |bytes| Layout::from_size_align(bytes, align).unwrap();
                // SAFETY: the layouts are not empty, and each piece is used and let go of by its own.
                unsafe {
                    let piece = Heap.alloc_zeroed(layout(from));
                    assert!(piece.addr().is_multiple_of(align));
                    assert_eq!((*piece, *piece.add(from - 1)), (0, 0));
                    *piece.add(from.min(to) - 1) = 7;
                    let piece = Heap.realloc(piece, layout(from), to);
                    assert!(piece.addr().is_multiple_of(align));
                    assert_eq!(*piece.add(from.min(to) - 1), 7, "{from} to {to} bytes");
                    Heap.dealloc(piece, layout(to));
                }
            }
        }
    }
}
