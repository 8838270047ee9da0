//! The tasks of a worker by slot, and which of them can continue.

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use rustc_hash::FxHashSet;
use sandbar_core::Code;
use sandbar_sandbox::Refusal;

use super::context::{InlineTask, SubmitState, TaskContext, WaitState};
use crate::program::objects::{LocalValue, TaskSlot, Waiter};

/// The tasks of a worker.
pub(in crate::program) struct Tasks {
    contexts: Vec<Option<TaskContext>>,
    alive: usize,
    /// Maximum number of tasks at once.
    room: usize,
    /// Whether the worker runs tasks that its own tasks wait for.
    runs_children: bool,
    /// Such a task, which starts once its parent has left the thread.
    inline: Option<InlineTask>,
    /// Tasks that can continue.
    woken: Vec<TaskSlot>,
    /// Tasks that wait for a GPU. They are polled, because nothing signals its results.
    on_gpu: Vec<TaskSlot>,
    /// Earliest deadline of the waiting tasks.
    first_deadline: Option<Instant>,
    /// Jobs whose tasks must wait after submitting, and the tasks that do.
    held_jobs: FxHashSet<u32>,
    submitters: Vec<TaskSlot>,
}

/// Returns the refusal for a task that is not in this worker any more.
pub(super) fn task_ended() -> Refusal {
    Refusal { code: Code::Host, message: "the task has left this worker".into() }
}

impl Tasks {
    /// Creates an empty table for at most `room` tasks.
    pub(super) fn new(room: usize, runs_children: bool) -> Tasks {
        Tasks {
            contexts: Vec::new(),
            alive: 0,
            room,
            runs_children,
            inline: None,
            woken: Vec::new(),
            on_gpu: Vec::new(),
            first_deadline: None,
            held_jobs: FxHashSet::default(),
            submitters: Vec::new(),
        }
    }

    pub(in crate::program) fn get(&self, slot: TaskSlot) -> Option<&TaskContext> {
        self.contexts.get(slot)?.as_ref()
    }

    pub(in crate::program) fn get_mut(&mut self, slot: TaskSlot) -> Option<&mut TaskContext> {
        self.contexts.get_mut(slot)?.as_mut()
    }

    /// Returns the context of a task that makes a request.
    pub(super) fn require(&mut self, slot: TaskSlot) -> Result<&mut TaskContext, Refusal> {
        self.get_mut(slot).ok_or_else(task_ended)
    }

    pub(in crate::program) fn has_room(&self) -> bool {
        self.alive < self.room
    }

    /// Inserts a task at a slot.
    pub(in crate::program) fn insert(&mut self, slot: TaskSlot, task: TaskContext) {
        if slot >= self.contexts.len() {
            self.contexts.resize_with(slot + 1, || None);
        }
        self.contexts[slot] = Some(task);
        self.alive += 1;
    }

    /// Removes the finished task of a slot.
    pub(in crate::program) fn remove(&mut self, slot: TaskSlot) -> Option<TaskContext> {
        let task = self.contexts.get_mut(slot)?.take();
        self.alive -= usize::from(task.is_some());
        task
    }

    /// Exchanges the context of an actor's task: `exchange` gets the current one, and returns the next with a result.
    pub(super) fn exchange<R>(
        &mut self,
        slot: TaskSlot,
        exchange: impl FnOnce(TaskContext) -> (TaskContext, R),
    ) -> Option<R> {
        let place = self.contexts.get_mut(slot)?;
        let (next, result) = exchange(place.take()?);
        *place = Some(next);
        Some(result)
    }

    /// Returns whether a task that another one waits for may start in this worker.
    pub(super) fn can_run_inline(&self) -> bool {
        self.runs_children && self.has_room()
    }

    /// Sets the task to start once its parent has left the thread.
    pub(super) fn set_inline(&mut self, task: InlineTask) {
        self.inline = Some(task);
    }

    /// Removes the task to start for its parent, which has left the thread.
    pub(in crate::program) fn take_inline(&mut self) -> Option<InlineTask> {
        self.inline.take()
    }

    /// Lets a task continue.
    pub(super) fn wake(&mut self, slot: TaskSlot) {
        self.woken.push(slot);
    }

    /// Returns the next task that can continue.
    pub(in crate::program) fn next_woken(&mut self) -> Option<TaskSlot> {
        self.wake_expired();
        self.release_submitters();
        self.woken.pop()
    }

    /// Registers a task that waits for a GPU.
    pub(super) fn wait_for_gpu(&mut self, slot: TaskSlot) {
        self.on_gpu.push(slot);
    }

    pub(in crate::program) fn is_on_gpu(&self, slot: TaskSlot) -> bool {
        self.on_gpu.contains(&slot)
    }

    /// Returns whether any task waits for a GPU.
    pub(in crate::program) fn any_on_gpu(&self) -> bool {
        !self.on_gpu.is_empty()
    }

    /// Lets all tasks that wait for a GPU check for its results.
    pub(in crate::program) fn wake_on_gpu(&mut self) {
        self.woken.append(&mut self.on_gpu);
    }

    /// Sets the objects that a task waits for.
    pub(super) fn begin_wait(&mut self, slot: TaskSlot, waiting: WaitState) {
        if waiting.missing > 0 {
            self.first_deadline = self.first_deadline.into_iter().chain(waiting.deadline).min();
        }
        if let Some(task) = self.get_mut(slot) {
            task.waiting = Some(waiting);
        }
    }

    /// Records the arrival of an object for the task that waits for it, and wakes the task if nothing else is missing.
    /// Returns false if this task does not wait.
    pub(super) fn object_arrived(&mut self, waiter: Waiter, object: u64, value: &Arc<LocalValue>) -> bool {
        let Some(task) = self.get_mut(waiter.slot).filter(|task| task.id == waiter.task) else { return false };
        let Some(waiting) = &mut task.waiting else { return false };
        if waiting.is_get && waiting.objects == [object] {
            // Keeps the value for the task, even if the node requests its release before the task continues.
            task.received = Some((object, value.clone()));
        }
        waiting.missing = waiting.missing.saturating_sub(1);
        if waiting.missing == 0 {
            self.wake(waiter.slot);
        }
        true
    }

    /// Returns the earliest deadline of the waiting tasks.
    pub(in crate::program) fn first_deadline(&self) -> Option<Instant> {
        self.first_deadline
    }

    /// Wakes the tasks whose deadline has passed.
    fn wake_expired(&mut self) {
        let Some(first) = self.first_deadline else { return };
        let now = Instant::now();
        if now < first {
            return;
        }
        self.first_deadline = None;
        for (slot, task) in self.contexts.iter().enumerate() {
            let deadline = task.as_ref().and_then(|task| task.waiting.as_ref()?.deadline);
            match deadline {
                Some(deadline) if deadline <= now => self.woken.push(slot),
                Some(deadline) => {
                    self.first_deadline = Some(self.first_deadline.map_or(deadline, |first| first.min(deadline)));
                }
                None => {}
            }
        }
    }

    /// Returns ready if a task that has submitted may continue. Held jobs are known only after the node's messages have
    /// been handled, so the first poll is pending.
    pub(super) fn poll_submitted(&mut self, slot: TaskSlot) -> Poll<()> {
        let Some(Some(task)) = self.contexts.get_mut(slot) else { return Poll::Ready(()) };
        let is_held = self.held_jobs.contains(&task.job);
        match task.submitted {
            SubmitState::Running => {}
            SubmitState::Waiting if is_held => {}
            SubmitState::Waiting | SubmitState::ResumedOnce => {
                task.submitted = SubmitState::Running;
                return Poll::Ready(());
            }
        }
        task.submitted = SubmitState::Waiting;
        self.submitters.push(slot);
        Poll::Pending
    }

    /// Holds the tasks of a job when they submit, or lets them continue.
    pub(in crate::program) fn hold_job(&mut self, job: u32, holds: bool) {
        match holds {
            true => self.held_jobs.insert(job),
            false => self.held_jobs.remove(&job),
        };
    }

    /// Lets the waiting tasks of a job continue until each has submitted once more.
    pub(in crate::program) fn resume_once(&mut self, job: u32) {
        for slot in &self.submitters {
            if let Some(Some(task)) = self.contexts.get_mut(*slot)
                && task.job == job
                && task.submitted == SubmitState::Waiting
            {
                task.submitted = SubmitState::ResumedOnce;
            }
        }
    }

    /// Wakes the tasks that have submitted and may continue.
    fn release_submitters(&mut self) {
        // The common case: none.
        if self.submitters.is_empty() {
            return;
        }
        for slot in std::mem::take(&mut self.submitters) {
            match self.get(slot) {
                Some(task) if task.submitted == SubmitState::Waiting && self.held_jobs.contains(&task.job) => {
                    self.submitters.push(slot);
                }
                Some(task) if task.submitted != SubmitState::Running => self.woken.push(slot),
                _ => {}
            }
        }
    }
}
