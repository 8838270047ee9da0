//! The input's body: copied into guest memory, or mapped over it.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_buffer::Buffer;
use sandbar_batch::ALIGNMENT;

use crate::bindings::data;

/// From this many bytes on pages are mapped: a mapping costs about 27 µs at any
/// size, a copy about 45 µs a MiB and the first touch of the guest's own pages
/// as much again.
const MAP_FROM_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// Guest memory that holds part of a body. Its bytes are whatever the allocator
/// left there until the host fills them.
pub(crate) struct Region {
    at: NonNull<u8>,
    layout: Layout,
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
            Some(at) => Region { at, layout },
            None => handle_alloc_error(layout),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The first `len` bytes, for the host to fill.
    fn unfilled(&self, len: usize) -> &[u8] {
        assert!(len <= self.len());
        // SAFETY: in bounds of the allocation. The bytes may be uninitialised; nothing reads them
        // before the host has written them, the slice only carries address and length to it.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), len) }
    }

    /// Copies the body's bytes from `offset` on into the first `len` bytes.
    pub(crate) fn read(&mut self, offset: usize, len: usize) {
        data::read(offset as u64, self.unfilled(len));
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
    if bytes == 0 {
        return Buffer::from_vec(Vec::<u64>::new());
    }
    let region = if bytes >= MAP_FROM_BYTES {
        let pages = bytes.next_multiple_of(PAGE_BYTES);
        let region = Region::new(pages, PAGE_BYTES);
        data::map_pages(0, region.unfilled(pages));
        region
    } else {
        let mut region = Region::new(bytes, ALIGNMENT);
        region.read(0, bytes);
        region
    };
    let at = region.at;
    // SAFETY: the region holds `bytes` filled bytes and lives as long as the buffer.
    unsafe { Buffer::from_custom_allocation(at, bytes, Arc::new(region)) }
}
