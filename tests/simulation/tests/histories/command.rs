//! Commands for a host.

use sandbar_core::ObjectId;
use sandbar_wire::Priority;

/// Sources of a fetch.
#[derive(Debug, Clone)]
pub enum FetchSources {
    /// These holders.
    Holders(Vec<usize>),
    /// The sources that the object's owner assigns, so that receivers form a tree.
    Tree,
}

#[derive(Debug, Clone)]
pub enum Command {
    Fetch {
        object: ObjectId,
        from: FetchSources,
        priority: Priority,
        /// Drops the future after this many milliseconds.
        cancel_ms: Option<u64>,
        /// The owner announced another object's hash.
        is_wrongly_announced: bool,
        /// The network has no faults and a holder is honest.
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
    /// Opens as many concurrent requests as the stream limit allows.
    FillStreams {
        to: usize,
    },
    /// Joins with an invalid token.
    JoinWithBadToken {
        token: usize,
    },
    Renew,
    /// Reconnects to hosts that replaced the connection.
    Redial,
    Stop,
}
