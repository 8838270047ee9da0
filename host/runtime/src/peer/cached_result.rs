//! Cached results of tasks of a job that another node may take over.

use std::num::NonZeroU64;

use sandbar_core::{NodeId, ObjectId};
use serde::{Deserialize, Serialize};

/// Result of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedResult {
    /// Identity of the task across runs of its job.
    pub lineage: NonZeroU64,
    /// Duration of the attempt.
    pub nanos: u64,
    /// Returned values.
    pub values: Vec<CachedValue>,
}

/// A value without contained objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CachedValue {
    /// The value.
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The value's location: a node, the object's id there, and the size. It is fetched from there.
    Remote {
        /// Node that has the value.
        node: NodeId,
        /// The object's id there.
        object: ObjectId,
        /// Size.
        bytes: u64,
    },
}

impl CachedValue {
    /// Returns the memory that the value takes on the node that has it, in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            CachedValue::Inline(bytes) => bytes.len() as u64,
            CachedValue::Remote { bytes, .. } => *bytes,
        }
    }

    /// Returns the approximate bytes of the value in a message.
    pub fn message_bytes(&self) -> usize {
        match self {
            CachedValue::Inline(bytes) => bytes.len() + 2,
            CachedValue::Remote { .. } => 16,
        }
    }
}
