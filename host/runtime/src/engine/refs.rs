//! References that parts of the engine pass to each other.

use sandbar_core::{Attempt, GroupId, JobId, ObjectId, TaskId, WorkerId};

use crate::peer::PeerValue;

/// An attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttemptRef {
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
}

/// An attempt to reserve bundles of a placement group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReservationRef {
    pub(super) group: GroupId,
    pub(super) attempt: Attempt,
}

/// A task of a job in a worker. In the proxy worker of a node, it is the node's proxy task.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskInWorker {
    pub(super) job: JobId,
    pub(super) task: TaskId,
    pub(super) worker: WorkerId,
}

/// An object of a node, with its value, and the objects that the value contains.
#[derive(Debug)]
pub(super) struct ReceivedObject<'a> {
    pub(super) object: ObjectId,
    pub(super) value: PeerValue<'a>,
    pub(super) contains: Vec<ObjectId>,
}

/// Progress of a task: number of processed items, and their total.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgressAmount {
    pub(super) done: u64,
    pub(super) total: Option<u64>,
}

/// A file that a task opens.
pub(super) struct OpenedFile {
    pub(super) worker: WorkerId,
    pub(super) task: TaskId,
    /// Object that becomes its content.
    pub(super) object: ObjectId,
    /// Number of the file in its job.
    pub(super) number: u64,
}
