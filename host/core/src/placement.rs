//! Where tasks and actors are to run, and what is set aside for them together. The names are Ray's.

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, NodeId};

/// Where a task or an actor is to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Strategy {
    /// Where there is room: on few nodes first.
    #[default]
    Default,
    /// Where there is room: on the node with the fewest tasks first.
    Spread,
    /// On this node. If it is not there, or has too little, `soft` says whether another one will do.
    Node {
        /// Which node.
        node: NodeId,
        /// Whether another one will do.
        soft: bool,
    },
    /// In what is set aside for this placement group.
    Group {
        /// Which group.
        group: GroupId,
        /// Which of its bundles; any of them otherwise.
        bundle: Option<u32>,
    },
}

/// How the bundles of a placement group lie on nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupStrategy {
    /// On as few nodes as may be.
    #[default]
    Pack,
    /// On as many nodes as may be.
    Spread,
    /// On one node.
    StrictPack,
    /// Each on a node of its own.
    StrictSpread,
}

impl GroupStrategy {
    /// As Ray writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupStrategy::Pack => "PACK",
            GroupStrategy::Spread => "SPREAD",
            GroupStrategy::StrictPack => "STRICT_PACK",
            GroupStrategy::StrictSpread => "STRICT_SPREAD",
        }
    }
}

/// What is set aside on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    /// Processors, to ten thousandths.
    pub cpus: f64,
    /// Devices, to ten thousandths.
    pub gpus: f64,
    /// Memory in bytes.
    pub memory: u64,
    /// What else a node was said to have, with amounts.
    pub resources: Vec<(String, f64)>,
}

/// With what a placement group is made. In postcard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupRequest {
    /// What people call it.
    pub name: Option<String>,
    /// How its bundles lie on nodes.
    pub strategy: GroupStrategy,
    /// At least one, and no more than [`GROUP_BUNDLES_MAX`].
    pub bundles: Vec<Bundle>,
}

/// A placement group has so many bundles at most.
pub const GROUP_BUNDLES_MAX: usize = 100;
