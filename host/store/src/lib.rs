//! Objects: immutable bytes in sealed memory files.
//!
//! An [`Object`] is written once, sealed, and
//! from then on mapped by whoever has its file: no copy is made for a reader, and no
//! one can change or shrink it under one. [`Segments`] are memory for inputs: each is written by the node, lent
//! to one call at a time, and used again when the call has ended. [`Scratch`] is
//! shared memory that is written many times: what one process hands to another,
//! which copies it before it looks.
//!
//! Non-goals (yet): names, references, quotas and spill of objects.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod heap;
mod mapping;
mod object;
mod segments;

pub use heap::Heap;
pub use mapping::{Mapping, Scratch};
pub use object::Object;
pub use segments::{Draft, Lent, Part, Segments};
