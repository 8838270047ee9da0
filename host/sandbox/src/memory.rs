//! Maps pages of an object over a guest's memory.
//!
//! Five rules keep this safe. A test fails without each of them:
//! 1. The pool gets a slot only after its anonymous pages are restored: [`Overlays`] is dropped with the store's data,
//!    which a store drops before its instances. wasmtime is pinned to an exact version because of this.
//! 2. Pages are private and writable, never read-only: a guest's writes stay its own, and a `memory.fill` into them
//!    does not kill the process.
//! 3. Objects are sealed against shrinking, so that no page is behind their end.
//! 4. Nothing is mapped over the initial image of a memory. The pool keeps that image mapped for the next sandbox,
//!    which would otherwise start with anonymous zeros in its place.
//! 5. No reference into guest memory lives across a change of its mappings.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

pub(crate) const PAGE_BYTES: usize = 4096;
/// Maximum number of overlays in one sandbox: each may cost the process two mappings.
pub(crate) const OVERLAYS_MAX: usize = 1024;

/// The regions of one sandbox that map an object's pages. Dropping it restores anonymous pages.
#[derive(Debug, Default)]
pub(crate) struct Overlays(Vec<Region>);

/// A page-aligned range of a guest's linear memory, by host address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    address: usize,
    bytes: usize,
}

impl Region {
    /// Returns the region if it starts at a page and consists of whole pages.
    pub(crate) fn new(address: usize, bytes: usize) -> Option<Region> {
        (bytes > 0 && address.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES))
            .then_some(Region { address, bytes })
    }
}

impl Overlays {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `region` may be mapped: it replaces another region, or the limit is not reached.
    pub(crate) fn has_room_for(&self, region: Region) -> bool {
        self.0.len() < OVERLAYS_MAX || self.0.contains(&region)
    }

    /// Maps `file`, from byte `offset`, over `region`.
    ///
    /// # Safety
    /// `region` lies in the accessible linear memory of an instance of the store that owns `self`, behind that memory's
    /// initial image, and no reference into it lives. `file` is sealed against shrinking and has pages for all of
    /// `region`.
    pub(crate) unsafe fn lay(&mut self, region: Region, file: BorrowedFd<'_>, offset: u64) -> Result<(), String> {
        if !self.0.contains(&region) {
            self.0.push(region);
        }
        let at = region.address as *mut c_void;
        // SAFETY: replaces only pages of guest memory, as the caller guarantees; their content is lost.
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

    /// Restores anonymous zero pages.
    pub(crate) fn clear(&mut self) {
        for region in self.0.drain(..) {
            let at = region.address as *mut c_void;
            // SAFETY: each region was guest memory when it was mapped, and the slot still belongs to this store.
            let mapped = unsafe {
                mmap_anonymous(
                    at,
                    region.bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                )
            };
            if mapped.is_err() {
                // The next sandbox would read this one's object. Ending the process is better.
                std::process::abort();
            }
        }
    }
}

/// Addresses of the pool's slots for linear memories. wasmtime reports them for core modules only, not for components,
/// so each slot is probed once with a module.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<usize>);

impl Slots {
    pub(crate) fn new(mut bases: Vec<usize>) -> Slots {
        bases.sort_unstable();
        Slots(bases)
    }

    /// Returns the guest's address of a byte of its memory.
    pub(crate) fn guest_address(&self, host_address: usize) -> Option<u64> {
        Some((host_address - self.base(host_address)?) as u64)
    }

    /// Returns the start of the memory that contains a byte or ends right before it.
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
