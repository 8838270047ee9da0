//! Transfer of objects between nodes: fetching, serving and verification.
//!
//! An object consists of groups of 64 KiB. Each group is verified against BLAKE3's hash tree before anyone can read it.
//! A fetch requests pieces of several groups from several holders concurrently, and writes them to memory that its
//! caller reserved. A fetching node meanwhile serves the groups that it has. [`Locations`] assigns sources to receivers
//! so that many receivers of an object form a tree.
//!
//! Non-goals: which objects exist, their hashes, access rights, and storage.

mod active_holder;
mod admission;
mod clock;
mod codec;
mod driver;
mod engine;
mod error;
mod event;
mod fair_queue;
mod fetch;
mod fetch_spec;
mod held_object;
mod holder;
mod layout;
mod limits;
mod locations;
mod message;
mod offload;
mod piece;
mod plan;
mod priority;
mod progress;
mod rate_meter;
mod serve;
mod serve_piece;
mod serve_small;
mod small;
mod steal;
mod stream_reader;
mod target;
#[cfg(test)]
mod tests;
mod tree;
mod tree_cache;
mod verified_hashes;

pub use admission::{Admission, AdmissionError, MemoryPermit};
pub use engine::Transfers;
pub use error::{FailedHolder, FailedHolders, FetchError, HolderError, TransferBlame};
pub use event::TransferEvent;
pub use fetch::{FetchedObject, ServingGuard};
pub use fetch_spec::{FetchReport, FetchSpec};
pub use held_object::{HeldObject, ObjectSource, PartialObject, SharedBytes};
pub use holder::{Holder, HolderFinder, HolderLink};
pub use limits::TransferLimits;
pub use locations::{LocationLimits, Locations, Reassignment, SourceAssignment};
pub use message::TRANSFER_STREAM;
pub use offload::Offload;
pub use priority::Priority;
pub use serve::TransferServer;
pub use small::{FetchedSmallObjects, SmallSpec};
pub use target::{FetchTarget, HeapTarget, TargetView};
pub use tree::{HashTree, RootHash};
