//! Messages between the runtimes of nodes, lines that carry them, and services of other nodes.

mod amounts;
mod cached_result;
mod line;
mod messages;
mod neighbours;
mod outside;

#[cfg(test)]
mod golden;

pub use amounts::Amounts;
pub use line::{PeerEnd, PeerLine};
pub use neighbours::Neighbours;

pub(crate) use messages::{JobRoot, PeerMessage, PeerValue, RemoteActor, RemoteResults, RemoteTaskSpec, RemoteWork};

pub use cached_result::{CachedResult, CachedValue};

pub use outside::{ClusterServices, Loaded, RemoteObject, Tell};

use sandbar_core::NodeId;
use sandbar_sched::ResourceSet;

/// A connected node.
#[derive(Debug)]
pub struct NewPeer {
    /// The node.
    pub node: NodeId,
    /// Its resources.
    pub resources: ResourceSet,
    /// Number of its workers that run tasks.
    pub slots: u32,
    /// The line to it.
    pub line: PeerLine,
}
