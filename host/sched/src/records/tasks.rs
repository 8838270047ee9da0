//! Task records.

use sandbar_core::{Attempt, Code, Fault, TaskError, TaskId};

use crate::records::keys::{ActorKey, ClassKey, JobKey, ObjectKey, ShapeKey, TaskKey, WorkerKey};
use crate::records::lineage::Lineage;

/// A task. A scheduler may have millions: what tasks have in common is in their class, and rare state is boxed.
#[derive(Debug)]
pub(crate) struct Task<C> {
    pub(crate) id: TaskId,
    /// Position in the order of submission, unique among all tasks.
    pub(crate) number: u64,
    pub(crate) links: Option<Box<Links>>,
    /// Lineage of a task that has succeeded at least once.
    pub(crate) lineage: Option<Box<Lineage>>,
    /// `None` after the task has finished, unless its lineage needs the call.
    pub(crate) call: Option<C>,
    pub(crate) class: ClassKey,
    pub(crate) job: JobKey,
    /// The task that submitted this one.
    pub(crate) parent: Option<TaskKey>,
    /// The most recent child that still has a record.
    pub(crate) child: Option<TaskKey>,
    /// Siblings: the previous and the next task of the same parent, in the order of submission.
    pub(crate) previous_sibling: Option<TaskKey>,
    pub(crate) next_sibling: Option<TaskKey>,
    /// Neighbours in the queue of the task's shape.
    pub(crate) previous_in_queue: Option<TaskKey>,
    pub(crate) next_in_queue: Option<TaskKey>,
    /// Shape with a preferred node, while the task is queued for the node that has its dependencies.
    pub(crate) locality_shape: Option<ShapeKey>,
    /// The worker that the task is assigned to.
    pub(crate) worker: Option<WorkerKey>,
    /// The actor that the task creates, or whose method it calls.
    pub(crate) actor: Option<ActorKey>,
    pub(crate) attempt: Attempt,
    /// Nesting depth; 1 for a job's root task.
    pub(crate) depth: u32,
    /// Number of dependencies without a value.
    pub(crate) missing: u32,
    pub(crate) returns: u32,
    /// Bytes that count towards the job's call bytes, until the task finishes.
    pub(crate) call_bytes: u32,
    pub(crate) state: State,
    pub(crate) cancellation: Cancellation,
    /// The task is in the `late` map of its queue level, rather than in its list.
    pub(crate) is_late: bool,
    /// A method call that waits behind an earlier call of the same caller.
    pub(crate) is_gated: bool,
    /// Submitted by an attempt of the parent that succeeded.
    pub(crate) is_committed: bool,
    /// Runs again after it had succeeded.
    pub(crate) is_rerun: bool,
}

/// Objects that a task refers to.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) dependencies: Box<[ObjectKey]>,
    pub(crate) refs: Box<[ObjectKey]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for dependencies.
    Waiting,
    /// Waits for a worker.
    Queued,
    /// Assigned to a worker.
    Assigned,
    /// Assigned to a worker, where it waits for objects.
    Blocked,
    /// Hosted by a worker as the actor that the task created.
    HostsActor,
    Finished(FinalState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinalState {
    Succeeded,
    Failed,
    Cancelled,
}

/// Cancellation of a task that is in a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cancellation {
    None,
    Task,
    /// The task, and everything that it submits from now on.
    Subtree,
}

impl<C> Task<C> {
    pub(crate) fn has_finished(&self) -> bool {
        matches!(self.state, State::Finished(_))
    }
}

impl FinalState {
    /// Returns the final state of a task that fails with this error.
    pub(crate) fn from_error(error: &TaskError) -> FinalState {
        if error.fault.code == Code::Cancelled { FinalState::Cancelled } else { FinalState::Failed }
    }
}

/// Returns the fault of a cancelled task.
pub(crate) fn cancelled() -> Fault {
    Fault::new(Code::Cancelled, "it was cancelled")
}
