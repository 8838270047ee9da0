//! Stream records.

use sandbar_core::{Fault, ObjectId, WorkerId};

/// State of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) consumer: WorkerId,
    /// Maximum number of yielded items that are not consumed yet.
    pub(crate) buffer: u32,
    /// Number of items yielded so far.
    pub(crate) yielded: u64,
    /// Number of items consumed so far.
    pub(crate) consumed: u64,
}

/// An item that a generator yields.
pub(crate) struct Item<V> {
    pub(crate) index: u64,
    pub(crate) object: ObjectId,
    /// The value, or the reason why there is none.
    pub(crate) value: Result<V, Fault>,
    pub(crate) refs: Vec<ObjectId>,
}
