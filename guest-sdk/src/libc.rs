//! Replacements for C library functions that std calls, implemented with the contract alone.
//!
//! Every function built with std can print, at the latest when it panics. The C library's own `write` imports all of
//! WASI's streams, terminals and environment: nineteen imports, which every fresh sandbox binds for a fifth of its
//! cost. A function that calls other parts of WASI, in C or through std, still gets its imports.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::bindings::log::{self, Level};

/// POSIX `write`: writes `count` bytes at `bytes` to standard output or standard error.
///
/// # Safety
/// The bytes must be initialised.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, count: usize) -> isize {
    let level = match file {
        1 => Level::Info,
        2 => Level::Warn,
        _ => return -1,
    };
    if count > 0 {
        // SAFETY: the caller guarantees that the bytes are initialised.
        log::print(level, unsafe { std::slice::from_raw_parts(bytes.cast(), count) });
    }
    count as isize
}

/// POSIX's `struct iovec`.
#[repr(C)]
struct Part {
    bytes: *const c_void,
    count: usize,
}

/// POSIX `writev`: writes `count` parts one after another, like [`write`].
///
/// # Safety
/// The parts and their bytes must be initialised.
#[unsafe(no_mangle)]
unsafe extern "C" fn writev(file: c_int, parts: *const Part, count: c_int) -> isize {
    let mut written = 0;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller guarantees that the parts and their bytes are initialised.
        match unsafe { write(file, (*parts.add(index)).bytes, (*parts.add(index)).count) } {
            -1 => return -1,
            more => written += more,
        }
    }
    written
}

/// POSIX `getenv`. The environment is empty.
#[unsafe(no_mangle)]
extern "C" fn getenv(_name: *const c_char) -> *mut c_char {
    null_mut()
}
