//! What a hub asks of whoever connects it to other nodes. Everything is told later, by a call on any thread.

use std::ops::Range;
use std::sync::Arc;

use sandbar_core::{ComponentId, Fault, Limits, NodeId, ObjectId};
use sandbar_store::SealedFile;
use sandbar_wire::Priority;

use crate::Program;

/// Is told once, unless it is dropped.
pub type Tell<T> = Box<dyn FnOnce(T) + Send>;

/// What came of loading a program.
pub type Loaded = Result<Arc<Program>, Fault>;

/// What came of fetching a value.
#[derive(Debug)]
pub struct Fetched {
    /// Under which it was asked for.
    pub ticket: u64,
    pub value: Result<SealedFile, String>,
}

/// A value that a node has: which object's there, and so many bytes.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub node: NodeId,
    pub object: ObjectId,
    pub bytes: u64,
    /// How much it is waited for.
    pub priority: Priority,
}

/// Other nodes, beside what is said to them.
pub trait Outside: Send + Sync {
    /// Fetches a value.
    fn fetch(&self, wanted: Wanted, told: Tell<Result<SealedFile, String>>);

    /// Loads a component that a node has, for tasks that may use so much.
    fn load(&self, node: NodeId, component: ComponentId, limits: Limits, told: Tell<Loaded>);

    /// More numbers for workers, which no other node gives out.
    fn numbers(&self, told: Tell<Range<u32>>);
}
