//! Services of other nodes that the runtime uses beside messages. Each result is passed to a callback, on any thread.

use std::ops::Range;
use std::sync::Arc;

use sandbar_core::{ComponentId, Fault, Limits, NodeId, ObjectId};
use sandbar_store::SealedFile;
use sandbar_wire::Priority;

use crate::Program;

/// A callback for one result. It may be dropped instead.
pub type Tell<T> = Box<dyn FnOnce(T) + Send>;

/// Result of loading a program.
pub type Loaded = Result<Arc<Program>, Fault>;

/// A value of another node to fetch.
#[derive(Debug, Clone, Copy)]
pub struct RemoteObject {
    /// Node that has the value.
    pub node: NodeId,
    /// The object's id there.
    pub object: ObjectId,
    /// Size of the value.
    pub bytes: u64,
    /// Priority of the transfer.
    pub priority: Priority,
}

/// Services of other nodes.
pub trait ClusterServices: Send + Sync {
    /// Fetches a value.
    fn fetch(&self, object: RemoteObject, told: Tell<Result<SealedFile, String>>);

    /// Loads a component of a node, for tasks with these limits.
    fn load(&self, node: NodeId, component: ComponentId, limits: Limits, told: Tell<Loaded>);

    /// Allocates worker ids that no other node has.
    fn worker_ids(&self, told: Tell<Range<u32>>);
}
