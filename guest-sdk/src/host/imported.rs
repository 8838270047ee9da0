//! The contract's imports.

pub(crate) use crate::bindings::data::emit;
pub(crate) use crate::bindings::groups::{ahead as groups_ahead, failed, fitted, model, next as next_group, predicted};

pub(crate) use crate::bindings::tasks::{
    awaits, cancel, failed as report_failure, find, get, group, kill, next as next_item, open, progress, put, release,
    remove_group, returned, submit, yielded,
};

use crate::bindings::{data, tasks};

/// Fills `len` bytes at `to` from the input's body, starting at `offset`.
///
/// # Safety
/// The caller must own the bytes.
pub(crate) unsafe fn read(offset: usize, to: *mut u8, len: usize) {
    // SAFETY: the caller owns the bytes. They may be uninitialised; the slice only carries address and length to the host.
    data::read(offset as u64, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Maps the input's body over `len` bytes at `to`.
///
/// # Safety
/// The caller must own the bytes, which must be whole pages.
pub(crate) unsafe fn map_pages(to: *mut u8, len: usize) {
    // SAFETY: as in `read`.
    data::map_pages(0, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Fills `len` bytes at `to` from an object, starting at `offset`.
///
/// # Safety
/// Like [`read`].
pub(crate) unsafe fn read_object(object: u64, offset: usize, to: *mut u8, len: usize) {
    // SAFETY: as in `read`.
    tasks::read(object, offset as u64, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Maps an object over `len` bytes at `to`.
///
/// # Safety
/// Like [`map_pages`].
pub(crate) unsafe fn map_object(object: u64, to: *mut u8, len: usize) {
    // SAFETY: as in `read`.
    tasks::map_pages(object, 0, unsafe { std::slice::from_raw_parts(to, len) });
}

/// Waits for `count` of the objects. Sets `ready` to 1 for each ready object, otherwise to 0.
pub(crate) fn wait(objects: &[u64], count: u32, timeout: Option<u64>, ready: &mut [u8]) -> u32 {
    // SAFETY: `ready` is borrowed mutably; the slice only carries address and length to the host.
    tasks::wait(objects, count, timeout, unsafe { std::slice::from_raw_parts(ready.as_mut_ptr(), ready.len()) })
}
