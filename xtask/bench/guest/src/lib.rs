//! Functions that each cross the boundary in one way and do little else.
//!
//! The header of a call is the length of the body as a u64, not a batch's header. A function returns its result as the
//! header of its output.

#[cfg(target_family = "wasm")]
mod guest;

/// Names of the functions, in the order of the guest's description.
pub const FUNCTIONS: [&str; 5] = ["nothing", "copy", "stream", "map", "out"];

/// Bytes of the buffer that `stream` reuses.
pub const CHUNK_BYTES: usize = 512 << 10;

/// Adds up an input, cheaply enough that the cost of the boundary shows. All functions share this one, so that the compiler
/// optimises it equally for all.
#[inline(never)]
pub fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}
