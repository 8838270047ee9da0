//! Pages of an object laid over a guest's memory.
//!
//! The rules that keep this safe, each with a test that fails without it:
//! 1. Anonymous pages are put back before the pool gets the slot: [`Overlays`]
//!    is dropped with the store's data, which a store drops before its
//!    instances. wasmtime is pinned exactly because of this.
//! 2. Pages are private and writable, never read-only: a guest's write stays
//!    its own, and a `memory.fill` into them does not kill the process.
//! 3. Objects are sealed against shrinking, so that no page is behind their end.
//! 4. Nothing is laid over the initial image of a memory: the pool keeps that
//!    image mapped for the next sandbox, and anonymous zeros in its place would
//!    be what the next one starts from.
//! 5. No reference into guest memory lives across a change of its mappings.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

pub(crate) const PAGE_BYTES: usize = 4096;
/// More overlays than this in one sandbox are refused: each may cost the process two mappings.
pub(crate) const OVERLAYS_MAX: usize = 1024;

/// The regions of one sandbox that hold an object's pages. Dropping it puts
/// anonymous pages back.
#[derive(Debug, Default)]
pub(crate) struct Overlays(Vec<Region>);

/// A page-aligned range of a guest's linear memory, by host address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    address: usize,
    bytes: usize,
}

impl Region {
    /// The region, if it starts at a page and is whole pages.
    pub(crate) fn new(address: usize, bytes: usize) -> Option<Region> {
        (bytes > 0 && address.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES))
            .then_some(Region { address, bytes })
    }
}

impl Overlays {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `region` may be laid: it replaces another, or they are few enough.
    pub(crate) fn has_room_for(&self, region: Region) -> bool {
        self.0.len() < OVERLAYS_MAX || self.0.contains(&region)
    }

    /// Lays `file`, from byte `offset` on, over `region`.
    ///
    /// # Safety
    /// `region` lies in the accessible linear memory of an instance of the store
    /// that owns `self`, behind that memory's initial image, and no reference
    /// into it lives. `file` is sealed against shrinking and has pages for all of
    /// `region`.
    pub(crate) unsafe fn lay(&mut self, region: Region, file: BorrowedFd<'_>, offset: u64) -> Result<(), String> {
        if !self.0.contains(&region) {
            self.0.push(region);
        }
        let at = region.address as *mut c_void;
        // SAFETY: replaces pages of guest memory only, as the caller vouches; what was there is gone.
        let mapped = unsafe {
            mmap(
                at,
                region.bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                file,
                offset,
            )
        };
        mapped.map(drop).map_err(|e| format!("mapping {} bytes: {e}", region.bytes))
    }

    /// Puts anonymous zero pages back.
    pub(crate) fn clear(&mut self) {
        for region in self.0.drain(..) {
            let at = region.address as *mut c_void;
            // SAFETY: each region was guest memory when it was laid, and the slot is still this store's.
            let mapped = unsafe {
                mmap_anonymous(
                    at,
                    region.bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                )
            };
            if mapped.is_err() {
                // The next sandbox would read this one's object. No process is better than that.
                std::process::abort();
            }
        }
    }
}

/// Where the pool's slots for linear memories are in this process. wasmtime
/// tells them of core modules only, not of components, so each slot is looked
/// at once with a module in it.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<usize>);

impl Slots {
    pub(crate) fn new(mut bases: Vec<usize>) -> Slots {
        bases.sort_unstable();
        Slots(bases)
    }

    /// The guest's address of a byte of its memory.
    pub(crate) fn guest_address(&self, host_address: usize) -> Option<u64> {
        Some((host_address - self.base(host_address)?) as u64)
    }

    /// Where the memory starts that a byte is of, or is right behind.
    pub(crate) fn base(&self, host_address: usize) -> Option<usize> {
        let behind = self.0.partition_point(|base| *base <= host_address);
        self.0[..behind].last().copied().filter(|base| host_address - base <= 1 << 32)
    }
}

impl Drop for Overlays {
    fn drop(&mut self) {
        self.clear();
    }
}
