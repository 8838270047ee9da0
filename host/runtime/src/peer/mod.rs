//! Messages between the runtimes of nodes, the lines that carry them, and services of the cluster.

mod amounts;
mod cached_result;
mod cluster_services;
mod in_process;
mod line;
mod messages;

#[cfg(test)]
mod golden;

pub use amounts::Amounts;
pub use cached_result::{CachedResult, CachedValue};
pub use cluster_services::{Callback, ClusterServices, LoadResult, RemoteObject, TenantComponent};
pub use in_process::InProcessPeers;
pub use line::{PeerEnd, PeerLine};

pub(crate) use messages::{JobRoot, PeerMessage, PeerValue, RemoteActor, RemoteResults, RemoteTaskSpec, RemoteWork};

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
