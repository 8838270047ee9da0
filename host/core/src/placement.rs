//! Scheduling strategies of tasks and actors, and placement groups. The names are Ray's.

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, NodeId};

/// Scheduling strategy of a task or an actor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Strategy {
    /// Any node with free resources; packs tasks onto few nodes.
    #[default]
    Default,
    /// Any node with free resources; prefers the node with the fewest tasks.
    Spread,
    /// One given node.
    Node {
        /// The node.
        node: NodeId,
        /// Whether another node will do if this one is absent or lacks resources.
        soft: bool,
    },
    /// The resources that a placement group reserves.
    Group {
        /// The placement group.
        group: GroupId,
        /// Index of the bundle; `None` for any.
        bundle: Option<u32>,
    },
}

/// Placement of a group's bundles on nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupStrategy {
    /// On as few nodes as possible.
    #[default]
    Pack,
    /// On as many nodes as possible.
    Spread,
    /// All on one node.
    StrictPack,
    /// Each on a different node.
    StrictSpread,
}

impl GroupStrategy {
    /// Returns Ray's name of the strategy.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupStrategy::Pack => "PACK",
            GroupStrategy::Spread => "SPREAD",
            GroupStrategy::StrictPack => "STRICT_PACK",
            GroupStrategy::StrictSpread => "STRICT_SPREAD",
        }
    }
}

/// Resources reserved together on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    /// Processors, in steps of 1/10,000.
    pub cpus: f64,
    /// GPUs, in steps of 1/10,000.
    pub gpus: f64,
    /// Memory, in bytes.
    pub memory: u64,
    /// Custom resources of a node, with amounts.
    pub resources: Vec<(String, f64)>,
}

/// Specification of a placement group, encoded in postcard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupRequest {
    /// Display name.
    pub name: Option<String>,
    /// Placement of the bundles on nodes.
    pub strategy: GroupStrategy,
    /// One to [`GROUP_BUNDLES_MAX`] bundles.
    pub bundles: Vec<Bundle>,
}

/// Maximum number of bundles in a placement group.
pub const GROUP_BUNDLES_MAX: usize = 100;
