//! Other nodes, as a hub has them: what is said between two of them, and how it gets there.

mod amounts;
mod line;
mod messages;
mod neighbours;
mod outside;
mod remnant;

#[cfg(test)]
mod golden;

pub use amounts::Amounts;
pub use line::{PeerEnd, PeerLine};
pub use neighbours::Neighbours;

pub(crate) use messages::{JobRoot, PeerMessage, PeerValue, RemoteActor, RemoteResults, RemoteTaskSpec, RemoteWork};

pub use remnant::{Remnant, RemnantValue};

pub(crate) use outside::Fetched;
pub use outside::{Loaded, Outside, Tell, Wanted};

use sandbar_core::NodeId;
use sandbar_sched::ResourceSet;

/// A node that this one can give tasks to, and take tasks from.
#[derive(Debug)]
pub struct NewPeer {
    pub node: NodeId,
    pub resources: ResourceSet,
    /// So many tasks run there at once that ask for a processor.
    pub slots: u32,
    pub line: PeerLine,
}
