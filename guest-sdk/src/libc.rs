//! What std asks of the C library, answered by the contract alone.
//!
//! Every function built with std can print, when it panics at the latest. The C library's own `write` brings all of
//! WASI's streams, terminals and environment with it: nineteen imports, which each fresh sandbox binds anew for a fifth
//! of its cost. A function that asks WASI for more, in C or through std, still gets its imports.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::bindings::log::{self, Level};

/// POSIX: `count` bytes at `bytes`, to standard output or standard error.
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
        // SAFETY: as the caller says.
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

/// POSIX: as [`write`], `count` parts one after another.
///
/// # Safety
/// The parts and their bytes must be initialised.
#[unsafe(no_mangle)]
unsafe extern "C" fn writev(file: c_int, parts: *const Part, count: c_int) -> isize {
    let mut written = 0;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: as the caller says.
        match unsafe { write(file, (*parts.add(index)).bytes, (*parts.add(index)).count) } {
            -1 => return -1,
            more => written += more,
        }
    }
    written
}

/// POSIX: a variable of the environment, which is empty.
#[unsafe(no_mangle)]
extern "C" fn getenv(_name: *const c_char) -> *mut c_char {
    null_mut()
}
