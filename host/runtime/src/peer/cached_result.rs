//! What a task of a job returned before that was taken over.

use std::num::NonZeroU64;

use sandbar_core::{NodeId, ObjectId};
use serde::{Deserialize, Serialize};

/// What a task returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remnant {
    /// By which the task is known in each run of its job.
    pub lineage: NonZeroU64,
    /// How long it took.
    pub nanos: u64,
    pub returned: Vec<RemnantValue>,
}

/// A value that contains no objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemnantValue {
    Value(#[serde(with = "serde_bytes")] Vec<u8>),
    /// So many bytes, which are fetched of a node.
    Away {
        node: NodeId,
        object: ObjectId,
        bytes: u64,
    },
}

impl RemnantValue {
    /// Bytes that are in memory, where they are.
    pub fn bytes(&self) -> u64 {
        match self {
            RemnantValue::Value(bytes) => bytes.len() as u64,
            RemnantValue::Away { bytes, .. } => *bytes,
        }
    }

    /// Bytes that a message has which tells of it, about.
    pub fn bytes_here(&self) -> usize {
        match self {
            RemnantValue::Value(bytes) => bytes.len() + 2,
            RemnantValue::Away { .. } => 16,
        }
    }
}
