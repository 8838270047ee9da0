//! Cached results of tasks, for the node that takes over their job.

use std::num::NonZeroU64;

use sandbar_core::{NodeId, ObjectId};
use serde::{Deserialize, Serialize};

/// Result of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedResult {
    /// Identity of the task across runs of its job.
    pub lineage: NonZeroU64,
    /// Duration of the attempt, in nanoseconds.
    pub nanos: u64,
    /// Returned values.
    pub values: Vec<CachedValue>,
}

/// A value without contained objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CachedValue {
    /// The value.
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The value's location. The node that takes the job over fetches the value from there.
    Remote {
        /// Node that stores the value.
        node: NodeId,
        /// Object id on that node.
        object: ObjectId,
        /// Size of the value, in bytes.
        bytes: u64,
    },
}

impl CachedValue {
    /// Returns the size of the value on the node that stores it, in bytes.
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
