//! Objects that this node has, whole or in part.

use std::fmt;
use std::sync::Arc;

use sandbar_core::{NodeId, ObjectId};

use super::progress::FetchProgress;

/// The bytes of an object, wherever they are stored.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The objects that peers may read.
pub trait ObjectSource: Send + Sync {
    /// Looks up an object for a peer. Called for every request, so it should be fast.
    fn find(&self, peer: NodeId, object: ObjectId) -> HeldObject;
}

/// Availability of an object on this node.
#[derive(Clone)]
pub enum HeldObject {
    /// All of it.
    Whole(SharedBytes),
    /// The groups fetched so far; the rest follows.
    Partial(PartialObject),
    /// The node does not have it, or the peer may not read it.
    NotFound,
}

/// An object that is being fetched. Its verified groups can be served.
#[derive(Debug, Clone)]
pub struct PartialObject(pub(crate) Arc<FetchProgress>);

impl fmt::Debug for HeldObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldObject::Whole(bytes) => write!(f, "Whole({} bytes)", (**bytes).as_ref().len()),
            HeldObject::Partial(partial) => partial.fmt(f),
            HeldObject::NotFound => f.write_str("NotFound"),
        }
    }
}
