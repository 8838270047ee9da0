//! The input's body: copied into guest memory, or mapped over it.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};
use sandbar_batch::ALIGNMENT;

use crate::host;

/// From this many bytes on pages are mapped: a mapping costs about 25 µs and, in
/// small pages, 25 µs a MiB; a copy about 30 µs a MiB, and the first touch of the
/// guest's own pages as much again.
const MAP_FROM_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// A huge page that is mapped as a whole, since the region starts like one, costs as much as a small one.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Guest memory that the host fills. Its bytes are whatever the allocator left
/// there until then.
pub(crate) struct Region {
    at: NonNull<u8>,
    layout: Layout,
    /// Bytes from the start on that the host has filled.
    filled: usize,
}

// SAFETY: a region owns its memory; components have one thread.
unsafe impl Send for Region {}
// SAFETY: as above; a shared region is only read.
unsafe impl Sync for Region {}
impl std::panic::RefUnwindSafe for Region {}

impl Region {
    /// `bytes` bytes (at least one), at a multiple of `align`.
    pub(crate) fn new(bytes: usize, align: usize) -> Region {
        let layout = Layout::from_size_align(bytes.max(1), align).expect("a body fits the address space");
        // SAFETY: the layout's size is not zero.
        match NonNull::new(unsafe { alloc(layout) }) {
            Some(at) => Region { at, layout, filled: 0 },
            None => handle_alloc_error(layout),
        }
    }

    /// Forgets what it holds, and makes room for `bytes` bytes (of several parts: with the gaps between them).
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.filled = 0;
        if self.layout.size() < bytes {
            *self = Region::new(bytes.next_power_of_two(), self.layout.align());
        }
    }

    /// Appends `len` bytes of the body, from `offset` on, at the next multiple of [`ALIGNMENT`]; returns where.
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

    /// What the host has filled.
    pub(crate) fn filled(&self) -> &[u8] {
        // SAFETY: in bounds, and initialised by `append` or `map`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.filled) }
    }

    /// `bytes` bytes of the body, its pages laid over the region.
    pub(crate) fn map(bytes: usize) -> Region {
        // SAFETY: whole pages, just allocated.
        Region::mapped(bytes, |at, pages| unsafe { host::map_pages(at, pages) })
    }

    /// `bytes` bytes, which `map` lays over whole pages of the region: it takes where they start, and their bytes.
    fn mapped(bytes: usize, map: impl FnOnce(*mut u8, usize)) -> Region {
        let pages = bytes.next_multiple_of(PAGE_BYTES);
        let mut region = Region::new(pages, if pages < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES });
        map(region.at.as_ptr(), pages);
        region.filled = bytes;
        region
    }

    /// All that is filled.
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

/// The whole body as one buffer, copied or mapped as its size wants.
pub(crate) fn body(bytes: usize) -> Buffer {
    // SAFETY: all of it, just allocated.
    let copy = |at| unsafe { host::read(0, at, bytes) };
    // SAFETY: whole pages, just allocated.
    buffer(bytes, copy, |at, pages| unsafe { host::map_pages(at, pages) })
}

/// `bytes` bytes at a multiple of [`ALIGNMENT`], which `copy` fills, or `map`, whole pages of them, as their number wants.
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
