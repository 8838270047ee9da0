//! Task records.

use sandbar_core::{Attempt, Code, Fault, TaskError, TaskId};

use crate::records::keys::{ActorKey, ClassKey, JobKey, NumberedTask, ObjectKey, ShapeKey, TaskKey, WorkerKey};
use crate::records::lineage::Lineage;
use crate::records::slab::{Slab, index_records};

/// A task. A scheduler may have millions: common properties are in the task's class, and rare state is boxed.
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
    /// Number of attempts that were lost because of other tasks, which do not count as retries.
    pub(crate) uncounted_attempts: u32,
    /// Nesting depth; 1 for a job's root task.
    pub(crate) depth: u32,
    /// Number of dependencies without a value.
    pub(crate) missing: u32,
    pub(crate) returns: u32,
    /// Bytes that count towards the job's call bytes, until the task finishes.
    pub(crate) call_bytes: u32,
    pub(crate) state: TaskPhase,
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
pub(crate) enum TaskPhase {
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

/// Tasks by key.
#[derive(Debug)]
pub(crate) struct Tasks<C> {
    records: Slab<TaskKey, Task<C>>,
    /// Number of tasks added so far.
    added: u64,
    /// Tasks that finished in this step or the previous one, or lost their lineage.
    finished: Vec<(TaskKey, TaskId)>,
}

index_records!([C] Tasks<C>, TaskKey => Task<C>);

impl<C> Task<C> {
    /// Returns the number of retries so far.
    pub(crate) fn retries(&self) -> u32 {
        self.attempt.0.saturating_sub(self.uncounted_attempts)
    }

    pub(crate) fn has_finished(&self) -> bool {
        matches!(self.state, TaskPhase::Finished(_))
    }
}

impl<C> Tasks<C> {
    pub(crate) fn new() -> Tasks<C> {
        Tasks { records: Slab::new(), added: 0, finished: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Task<C>> {
        self.records.iter().map(|(_, task)| task)
    }

    #[inline]
    pub(crate) fn get(&self, at: TaskKey) -> Option<&Task<C>> {
        self.records.get(at)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: TaskKey) -> Option<&mut Task<C>> {
        self.records.get_mut(at)
    }

    /// Returns a task, if its key still refers to it.
    #[inline]
    pub(crate) fn get_numbered(&self, task: NumberedTask) -> Option<&Task<C>> {
        self.records.get(task.task).filter(|found| found.number == task.number)
    }

    /// Like [`Tasks::get_numbered`].
    #[inline]
    pub(crate) fn get_numbered_mut(&mut self, task: NumberedTask) -> Option<&mut Task<C>> {
        self.records.get_mut(task.task).filter(|found| found.number == task.number)
    }

    /// Whether a task still exists and waits for dependencies.
    #[inline]
    pub(crate) fn is_waiting(&self, task: NumberedTask) -> bool {
        self.get_numbered(task).is_some_and(|task| task.state == TaskPhase::Waiting)
    }

    /// Returns the submission number of the next task.
    #[inline]
    pub(crate) fn next_number(&mut self) -> u64 {
        self.added += 1;
        self.added
    }

    #[inline]
    pub(crate) fn insert(&mut self, task: Task<C>) -> TaskKey {
        self.records.insert(task)
    }

    #[inline]
    pub(crate) fn remove(&mut self, at: TaskKey) -> Option<Task<C>> {
        self.records.remove(at)
    }

    /// Has the record of a finished task removed after the step, if nothing needs it.
    #[inline]
    pub(crate) fn remove_later(&mut self, at: TaskKey) {
        self.finished.push((at, self.records[at].id));
    }

    /// Takes a task whose record may be removed.
    #[inline]
    pub(crate) fn pop_finished(&mut self) -> Option<TaskKey> {
        while let Some((at, id)) = self.finished.pop() {
            if self.records.get(at).is_some_and(|task| task.id == id) {
                return Some(at);
            }
        }
        None
    }

    /// Frees memory if no record is left.
    pub(crate) fn shrink(&mut self) {
        self.records.shrink();
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
