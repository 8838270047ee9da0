//! Objects: immutable bytes in sealed memory files.
//!
//! An [`Object`] is written once, sealed, and
//! from then on mapped by whoever has its file: no copy is made for a reader, and no
//! one can change or shrink it under one. [`Segments`] are memory for inputs: each is written by the node, lent
//! to one call at a time, and used again when the call has ended. [`Scratch`] is
//! shared memory that is written many times: what one process hands to another,
//! which copies it before it looks.
//!
//! [`Values`] are what the objects of programs hold: in memory up to a quota, on [`Disk`] beyond.
//!
//! Non-goals: names of objects, and who refers to them.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod disk;
mod heap;
mod landing;
mod mapping;
mod object;
mod segments;
mod spill;
mod unsealed;
mod values;

pub use disk::{Disk, DiskDone, DiskTask};
pub use heap::Heap;
pub use landing::{Landing, LandingView};
pub use mapping::{Mapping, Scratch};
pub use object::Object;
pub use segments::{Draft, Lent, Part, Segments};
pub use spill::{DiskSpace, Restored, Source, SpillFolder, Spilled};
pub use unsealed::{Taken, Unsealed};
pub use values::{Fate, Lending, Memory, Order, StoreLimits, StoreUse, ValueKey, ValueView, Values};
