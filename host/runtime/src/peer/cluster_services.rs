//! Services of the cluster that the runtime uses besides messages. Each passes its result to a callback, on any thread.

use std::ops::Range;
use std::sync::Arc;

use sandbar_core::{ComponentId, Fault, Limits, NodeId, ObjectId, TenantId};
use sandbar_store::SealedFile;
use sandbar_wire::Priority;

use crate::Program;

/// A callback for one result. It may be dropped instead of called.
pub type Callback<T> = Box<dyn FnOnce(T) + Send>;

/// Result of loading a program.
pub type LoadResult = Result<Arc<Program>, Fault>;

/// A value of another node to fetch.
#[derive(Debug, Clone, Copy)]
pub struct RemoteObject {
    /// Node that stores the value.
    pub node: NodeId,
    /// Object id on that node.
    pub object: ObjectId,
    /// Size of the value, in bytes.
    pub bytes: u64,
    /// Priority of the transfer.
    pub priority: Priority,
}

/// A component to load, for tasks of a tenant's jobs with these limits.
#[derive(Debug, Clone, Copy)]
pub struct TenantComponent {
    /// The tenant.
    pub tenant: TenantId,
    /// The component.
    pub component: ComponentId,
    /// Limits of the tasks.
    pub limits: Limits,
}

/// Services of other nodes.
pub trait ClusterServices: Send + Sync {
    /// Fetches a value.
    fn fetch(&self, object: RemoteObject, reply: Callback<Result<SealedFile, Fault>>);

    /// Loads a component from a node.
    fn load(&self, node: NodeId, component: TenantComponent, reply: Callback<LoadResult>);

    /// Allocates worker ids that no other node has.
    fn worker_ids(&self, reply: Callback<Range<u32>>);
}
