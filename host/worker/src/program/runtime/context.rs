//! The context of one task.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashSet;
use sandbar_core::{TaskError, TaskKind};

use super::memory::OutputValue;
use super::progress::TaskProgress;
use super::streams::GeneratorStream;
use crate::program::messages::AttemptUsage;
use crate::program::objects::{LocalValue, TaskSlot};

/// Context of one task.
pub(in crate::program) struct TaskContext {
    pub id: u64,
    pub attempt: u32,
    pub job: u32,
    pub(super) seed: u64,
    /// Kinds of the tasks of its program.
    pub(super) kinds: Arc<[TaskKind]>,
    /// Number of tasks that it has submitted.
    pub(super) children: u64,
    /// Objects that it holds.
    pub(super) holds: FxHashSet<u64>,
    /// For an actor call: objects that were lent to it, and that the actor may keep.
    pub(super) lent: Vec<u64>,
    /// Objects that it needs, which the node retains for it.
    pub(super) needs: Vec<u64>,
    /// Its results so far, each with the objects that it contains.
    pub(super) returned: Vec<(OutputValue, Vec<u64>)>,
    /// For a generator: the items that it has yielded.
    pub generator: Option<GeneratorStream>,
    /// Error of another task, with which this task is about to fail.
    pub(super) fails_with: Option<Box<TaskError>>,
    pub(super) waiting: Option<WaitState>,
    /// For an actor call that waits: objects of which it waits for any.
    pub(super) awaits: Vec<u64>,
    /// The object that it waited for, with the value that has arrived.
    pub(super) received: Option<(u64, Arc<LocalValue>)>,
    /// Mapped values and their address ranges.
    pub(super) mapped: Vec<(Range<usize>, Arc<LocalValue>)>,
    pub(super) progress: TaskProgress,
    /// Bytes that its log may still have.
    pub log_left: u64,
    /// Number of log lines over the limit.
    pub(super) log_dropped: u64,
    /// Behavior after submitting a task.
    pub(super) submitted: SubmitState,
    /// Whether the worker has reported to the node that the task waits.
    pub(super) blocked: bool,
    /// Set for a task that runs for its parent and that the node does not know of yet.
    pub unannounced: Option<InlineTask>,
}

/// A task that runs in the worker of its waiting parent, without having been scheduled.
pub(in crate::program) struct InlineTask {
    pub parent: TaskSlot,
    /// Its encoded [`WorkerMessage::Submit`](crate::program::WorkerMessage::Submit).
    pub submission: Vec<u8>,
}

/// State of a task that has submitted another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubmitState {
    /// Continues.
    Running,
    /// Waits while its job is held.
    Waiting,
    /// Continues once, although its job is held.
    ResumedOnce,
}

#[derive(Debug)]
pub(super) struct WaitState {
    pub objects: Vec<u64>,
    /// Number of objects that it waits for.
    pub count: usize,
    /// Whether it waits for the value of one object, not only for its outcome.
    pub is_get: bool,
    /// Number of outcomes that are still missing.
    pub missing: usize,
    pub deadline: Option<Instant>,
}

/// Resource usage of an attempt, and its effects on its actor.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::program) struct AttemptReport {
    pub usage: AttemptUsage,
    /// Whether it failed because its GPU was lost, or its actor ended with it.
    pub lost: bool,
    /// Object with the checkpoint of the actor after this call.
    pub saved: Option<u64>,
}

impl TaskContext {
    pub(in crate::program) fn new(
        id: u64,
        attempt: u32,
        job: u32,
        seed: u64,
        kinds: Arc<[TaskKind]>,
        needs: Vec<u64>,
        unannounced: Option<InlineTask>,
    ) -> TaskContext {
        TaskContext {
            id,
            attempt,
            job,
            seed,
            kinds,
            children: 0,
            holds: FxHashSet::default(),
            lent: Vec::new(),
            needs,
            returned: Vec::new(),
            generator: None,
            fails_with: None,
            waiting: None,
            awaits: Vec::new(),
            received: None,
            mapped: Vec::new(),
            progress: TaskProgress::default(),
            log_left: 0,
            log_dropped: 0,
            submitted: SubmitState::Running,
            blocked: false,
            unannounced,
        }
    }
}
