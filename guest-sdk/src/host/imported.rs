//! The imports of the contract.

pub(crate) use crate::bindings::data::emit;
pub(crate) use crate::bindings::groups::{ahead as groups_ahead, failed, fitted, model, next as next_group, predicted};

pub(crate) use crate::bindings::tasks::{
    awaits, cancel, failed as fails_with, find, get, group, kill, next as next_item, open, progress, put, release,
    remove_group, returned, submit, yielded,
};

use crate::bindings::{data, tasks};

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

/// Fills `len` bytes at `to` with an object's from `offset` on.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn read_object(object: u64, offset: usize, to: *mut u8, len: usize) {
    // SAFETY: as in `read`.
    tasks::read(object, offset as u64, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Lays the pages of an object over `len` bytes at `to`.
///
/// # Safety
/// As [`map_pages`].
pub(crate) unsafe fn map_object(object: u64, to: *mut u8, len: usize) {
    // SAFETY: as in `read`.
    tasks::map_pages(object, 0, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Waits for `count` of the objects, and writes 1 where one is there, else 0.
pub(crate) fn wait(objects: &[u64], count: u32, timeout: Option<u64>, ready: &mut [u8]) -> u32 {
    // SAFETY: they are borrowed mutably; the slice only carries address and length to the host.
    tasks::wait(objects, count, timeout, unsafe { std::slice::from_raw_parts(ready.as_mut_ptr(), ready.len()) })
}
