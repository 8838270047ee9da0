//! Immutable bytes in sealed memory files, shared memory, and the values of objects.
//!
//! A [`SealedFile`] is written once, sealed, and from then on mapped by any process that has the file: readers need no
//! copy, and no process can change or shrink it. [`SegmentPool`] provides memory for inputs: the node writes a segment,
//! lends it to one call at a time, and reuses it after the call. [`SharedMemory`] is written many times: one process
//! writes it, another copies from it before it interprets the bytes. [`ValueStore`] holds the values of a program's
//! objects: in memory up to a quota, on [`Disk`] beyond.
//!
//! Non-goals: names of objects, and references to objects.

// Input of a guest, a peer, a file or a user must not end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod disk;
mod heap;
mod mapping;
mod receive_buffer;
mod sealed;
mod segments;
mod spill;
mod unsealed;
mod values;

pub use disk::{Disk, DiskCompletion, DiskTask};
pub use heap::Heap;
pub use mapping::{Mapping, SharedMemory};
pub use receive_buffer::{ReceiveBuffer, ReceiveBufferView};
pub use sealed::SealedFile;
pub use segments::{LentSegment, SegmentDraft, SegmentPart, SegmentPool};
pub use spill::{DiskSpace, RestoredValue, SpillFolder, SpillSource, SpilledValue};
pub use unsealed::{UnsealedFile, UnsealedValue};
pub use values::{
    LendResult, StoreAction, StoreLimits, StoreUse, ValueKey, ValueMemory, ValueStore, ValueView, WriterAction,
};
