//! The imports of the contract.

pub(crate) use crate::bindings::data::emit;
pub(crate) use crate::bindings::groups::{failed, fitted, model, next as next_group, predicted};

use crate::bindings::data;

/// Fills `len` bytes at `to` with the input's body from `offset` on.
///
/// # Safety
/// The bytes must be the caller's to write.
pub(crate) unsafe fn read(offset: usize, to: *mut u8, len: usize) {
    // SAFETY: the caller owns the bytes. They may be uninitialised; the slice only carries address and length to the host.
    data::read(offset as u64, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Lays the pages of the input's body over `len` bytes at `to`.
///
/// # Safety
/// The bytes must be the caller's to write, and whole pages.
pub(crate) unsafe fn map_pages(to: *mut u8, len: usize) {
    // SAFETY: as in `read`.
    data::map_pages(0, unsafe { std::slice::from_raw_parts(to, len) });
}
