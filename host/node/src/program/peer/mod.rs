//! Other nodes, as a hub has them: what is said between two of them, and how it gets there.

mod amounts;
mod line;
mod messages;
mod neighbours;
mod outside;

pub use amounts::Amounts;
pub(crate) use line::{PeerEnd, PeerLine};
pub use neighbours::Neighbours;

pub(crate) use messages::{Callee, Errand, ErrandWork, Returns, Root, Said, Sent};

pub(crate) use outside::{Fetched, Loaded, Outside, Tell};

use sandbar_core::NodeId;
use sandbar_sched::Demand;

/// A node that this one can give tasks to, and take tasks from.
#[derive(Debug)]
pub(crate) struct NewPeer {
    pub(crate) node: NodeId,
    pub(crate) resources: Demand,
    /// So many tasks run there at once that ask for a processor.
    pub(crate) slots: u32,
    pub(crate) line: PeerLine,
}
