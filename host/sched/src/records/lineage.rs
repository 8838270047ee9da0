//! Lineage records, and the callbacks about opaque calls and values.

use std::collections::BTreeMap;

use sandbar_core::{NodeId, ObjectId};

use crate::records::keys::{NumberedTask, ObjectKey, TaskKey};
use crate::records::ledger::ValueBytes;

/// Location of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueLocation {
    /// The remote node that has the value; `None` for this node.
    pub node: Option<NodeId>,
    /// Bytes of the value.
    pub bytes: u64,
}

/// What the scheduler needs to know of the otherwise opaque calls and values.
#[derive(Debug, Clone, Copy)]
pub struct PayloadCallbacks<C, V> {
    /// Whether a value may be lost, so that lineage is kept for it. Values that cannot be lost are small.
    pub can_be_lost: fn(&V) -> bool,
    /// Location of a value, if it is known.
    pub location: fn(&V) -> Option<ValueLocation>,
    /// Bytes of a call.
    pub call_bytes: fn(&C) -> u64,
    /// Bytes of a value on this node. They do not change while the value exists.
    pub value_bytes: fn(&V) -> ValueBytes,
}

impl<C, V> Default for PayloadCallbacks<C, V> {
    /// No value is ever lost.
    fn default() -> PayloadCallbacks<C, V> {
        PayloadCallbacks {
            can_be_lost: |_| false,
            location: |_| None,
            call_bytes: |_| 0,
            value_bytes: |_| ValueBytes::default(),
        }
    }
}

/// Lineage of one task.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// Number of existing returns, plus the number of other tasks' lineage entries that name a return.
    pub(crate) uses: u32,
    /// Bytes that count towards the job's lineage limit.
    pub(crate) bytes: u64,
    /// Dependencies and nested references, until the task runs again.
    pub(crate) dependencies: Box<[Source]>,
    pub(crate) refs: Box<[Source]>,
}

/// An object that a task depended on.
#[derive(Debug)]
pub(crate) enum Source {
    /// An object that lineage keeps alive: a small value, or an error.
    Kept(ObjectKey),
    /// An object that may exist, or that the task can reconstruct.
    Named(ObjectId, Option<NumberedTask>),
}

/// Lineage of a job.
#[derive(Debug, Default)]
pub(crate) struct JobLineage {
    /// Number of tasks that have lineage.
    pub(crate) all: u64,
    /// Finished tasks with lineage, by submission number.
    pub(crate) tasks: BTreeMap<u64, TaskKey>,
    /// Accounted bytes of these tasks.
    pub(crate) bytes: u64,
}
