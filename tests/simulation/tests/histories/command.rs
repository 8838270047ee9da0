//! What a host is told to do.

use sandbar_core::ObjectId;
use sandbar_wire::Priority;

/// From whom an object is fetched.
#[derive(Debug, Clone)]
pub enum From {
    /// These.
    Holders(Vec<usize>),
    /// Whom the object's owner says, so that receivers form a tree.
    Tree,
}

#[derive(Debug, Clone)]
pub enum Command {
    Fetch {
        object: ObjectId,
        from: From,
        priority: Priority,
        /// The future is dropped after so long.
        cancel_ms: Option<u64>,
        /// The owner announced the hash of something else.
        is_wrongly_announced: bool,
        /// Nothing is in the way, and a holder is honest.
        must_succeed: bool,
    },
    Small {
        holder: usize,
        objects: Vec<ObjectId>,
        must_succeed: bool,
    },
    Request {
        to: usize,
        bytes: usize,
        must_succeed: bool,
    },
    Frames {
        to: usize,
        count: u64,
        bytes_max: u64,
    },
    /// As many requests at once as there may be streams.
    FillStreams {
        to: usize,
    },
    /// Somebody applies with a token that is no good.
    JoinWrongly {
        token: usize,
    },
    Renew,
    /// Connects again to those who said that it was replaced.
    Redial,
    Stop,
}
