//! The input's body: copied into guest memory, or mapped over it.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};
use sandbar_batch::ALIGNMENT;

use crate::host;

/// Minimum size of a mapped body, in bytes. A mapping costs about 25 µs plus, in small pages, 25 µs per MiB. A copy
/// costs about 30 µs per MiB, plus as much again for the first touch of the guest's own pages.
const MAP_FROM_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Alignment of regions that can take huge pages, in bytes. Mapping one huge page costs as much as mapping one small
/// page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Guest memory that the host fills. It is uninitialised until then.
pub(crate) struct Region {
    at: NonNull<u8>,
    layout: Layout,
    /// Bytes from the start that the host has filled.
    filled: usize,
}

// SAFETY: a region owns its memory; components have one thread.
unsafe impl Send for Region {}
// SAFETY: a shared region is only read.
unsafe impl Sync for Region {}
impl std::panic::RefUnwindSafe for Region {}

impl Region {
    /// Allocates `bytes` bytes (at least one), aligned to `align`.
    pub(crate) fn new(bytes: usize, align: usize) -> Region {
        let layout = Layout::from_size_align(bytes.max(1), align).expect("a body fits the address space");
        // SAFETY: the layout's size is not zero.
        match NonNull::new(unsafe { alloc(layout) }) {
            Some(at) => Region { at, layout, filled: 0 },
            None => handle_alloc_error(layout),
        }
    }

    /// Empties the region and ensures a capacity of `bytes` bytes. For several parts, `bytes` includes the gaps between
    /// them.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.filled = 0;
        if self.layout.size() < bytes {
            *self = Region::new(bytes.next_power_of_two(), self.layout.align());
        }
    }

    /// Appends `len` bytes of the body, starting at `offset`, at the next multiple of [`ALIGNMENT`]. Returns their
    /// position.
    pub(crate) fn append(&mut self, offset: usize, len: usize) -> usize {
        let at = self.filled.next_multiple_of(ALIGNMENT);
        assert!(at + len <= self.layout.size(), "the region has room for what is appended");
        // SAFETY: in bounds of the region, which is borrowed mutably.
        unsafe { host::read(offset, self.at.as_ptr().add(at), len) };
        if at > self.filled {
            // SAFETY: in bounds; the gap must not stay uninitialised under `filled`.
            unsafe { self.at.as_ptr().add(self.filled).write_bytes(0, at - self.filled) };
        }
        self.filled = at + len;
        at
    }

    /// The bytes that the host has filled.
    pub(crate) fn filled(&self) -> &[u8] {
        // SAFETY: in bounds, and initialised by `append` or `map`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.filled) }
    }

    /// Maps the first `bytes` bytes of the body over a new region.
    pub(crate) fn map(bytes: usize) -> Region {
        // SAFETY: `mapped` allocated whole pages at `at`.
        Region::mapped(bytes, |at, pages| unsafe { host::map_pages(at, pages) })
    }

    /// Allocates a region and calls `map` with its address and its size in whole pages.
    fn mapped(bytes: usize, map: impl FnOnce(*mut u8, usize)) -> Region {
        let pages = bytes.next_multiple_of(PAGE_BYTES);
        let mut region = Region::new(pages, if pages < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES });
        map(region.at.as_ptr(), pages);
        region.filled = bytes;
        region
    }

    /// Converts the filled part into an Arrow buffer.
    fn into_buffer(self) -> Buffer {
        let (at, filled) = (self.at, self.filled);
        // SAFETY: the region holds `filled` filled bytes and lives as long as the buffer.
        unsafe { Buffer::from_custom_allocation(at, filled, Arc::new(self)) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

/// Returns the whole body as one buffer. Copies small bodies and maps large ones.
pub(crate) fn body(bytes: usize) -> Buffer {
    // SAFETY: `buffer` allocated `bytes` bytes at `at`.
    let copy = |at| unsafe { host::read(0, at, bytes) };
    // SAFETY: `buffer` allocated whole pages at `at`.
    buffer(bytes, copy, |at, pages| unsafe { host::map_pages(at, pages) })
}

/// Returns a buffer of `bytes` bytes at a multiple of [`ALIGNMENT`]. Fills it with `copy`, or, from [`MAP_FROM_BYTES`]
/// on, with `map` in whole pages.
pub(crate) fn buffer(bytes: usize, copy: impl FnOnce(*mut u8), map: impl FnOnce(*mut u8, usize)) -> Buffer {
    if bytes == 0 {
        return MutableBuffer::new(0).into();
    }
    if bytes >= MAP_FROM_BYTES {
        return Region::mapped(bytes, map).into_buffer();
    }
    let mut region = Region::new(bytes, ALIGNMENT);
    copy(region.at.as_ptr());
    region.filled = bytes;
    region.into_buffer()
}
