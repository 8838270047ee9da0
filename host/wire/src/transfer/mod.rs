//! Objects between nodes: fetched, served, verified.
//!
//! An object is cut into groups of 64 KiB, each of which is verified by BLAKE3's own tree before anyone can read it; it
//! is fetched in pieces of some groups from several holders at once, straight into memory that its caller reserved. Who
//! fetches serves what it has to others meanwhile. [`Locations`] says who fetches from whom, so that many receivers of an
//! object form a tree.
//!
//! Non-goals: which objects there are and what their hashes are, who may have them, where they are kept.

mod admission;
mod asked;
mod clock;
mod codec;
mod drive;
mod engine;
mod error;
mod event;
mod fetch;
mod holder;
mod incoming;
mod layout;
mod limits;
mod locations;
mod message;
mod nodes;
mod pace;
mod piece;
mod plan;
mod priority;
mod progress;
mod serve;
mod serve_piece;
mod serve_small;
mod small;
mod steal;
mod target;
#[cfg(test)]
mod tests;
mod tree;
mod trees;
mod turns;

pub use admission::{Admission, NotAdmitted, Permit};
pub use engine::{Offload, Transfers};
pub use error::{AllGone, FetchError, Gone, HolderError, TransferBlame};
pub use event::TransferEvent;
pub use fetch::{FetchReport, FetchSpec, Fetched, Serving};
pub use holder::{FindHolders, Holder, Link};
pub use limits::TransferLimits;
pub use locations::{LocationLimits, Locations, Moved, Wanted};
pub use message::TRANSFER_STREAM;
pub use priority::Priority;
pub use serve::{Answers, Held, Partial, SharedBytes, Source};
pub use small::{SmallFetched, SmallSpec};
pub use target::{HeapTarget, Target, View};
pub use tree::{Root, Tree};
