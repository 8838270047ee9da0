//! Functions that cross the boundary in one way each, and do little else.
//!
//! The header of a call is not that of a batch: it is the length of the body, as a u64. What a function computes
//! comes back as the header of what it emits.

#[cfg(target_family = "wasm")]
mod guest;

/// The functions, in the order in which the guest describes them.
pub const FUNCTIONS: [&str; 5] = ["nothing", "copy", "stream", "map", "out"];

/// Bytes of the chunk that `stream` reuses.
pub const CHUNK_BYTES: usize = 512 << 10;

/// What is computed of every input: cheap enough that the way in shows. One function for all ways, so that none of
/// them is compiled to better code than another.
#[inline(never)]
pub fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}
