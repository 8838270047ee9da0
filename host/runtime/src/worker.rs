//! A worker or client of the runtime: its link, and the tasks assigned to it.

use std::collections::VecDeque;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{Fault, JobId, TaskId, WorkerId};
use sandbar_sched::WorkerKind;
use sandbar_store::ValueKey;
use sandbar_worker::program::TaskPosition;

use super::link::BoxedWorkerLink;

/// A worker or a client, and its tasks.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) kind: WorkerKind,
    pub(super) link: BoxedWorkerLink,
    /// Assigned tasks and their positions in the worker's queue, in order.
    assigned: VecDeque<AssignedTask>,
    /// Started tasks that are no longer in `assigned`, with their jobs.
    started: FxHashMap<TaskId, JobId>,
    /// When it last finished a task, or was assigned one while it had none, in nanoseconds.
    busy_since: u64,
    /// Tasks that the full queue did not take.
    pub(super) overflow: VecDeque<TaskId>,
    /// Numbers of the programs that the worker has.
    pub(super) programs: FxHashSet<u32>,
    /// Admitted values of the current message, or why they were refused.
    pub(super) admitted: VecDeque<Result<ValueKey, Fault>>,
    /// A message whose values wait for memory. Later messages wait too.
    pub(super) held_message: Option<Vec<u8>>,
    pub(super) created: Instant,
    /// Since when it has had nothing to do, as of the last check.
    pub(super) idle_since: Option<Instant>,
    /// Whether it has sent a message, which shows that its start succeeded.
    pub(super) has_sent: bool,
    /// Reason for which it must be killed.
    pub(super) failure: Option<String>,
}

/// A task in the queue of a worker.
#[derive(Debug, Clone, Copy)]
struct AssignedTask {
    position: TaskPosition,
    task: TaskId,
    job: JobId,
}

impl Worker {
    pub(super) fn new(id: WorkerId, kind: WorkerKind, link: BoxedWorkerLink, created: Instant) -> Worker {
        Worker {
            id,
            kind,
            link,
            assigned: VecDeque::new(),
            started: FxHashMap::default(),
            busy_since: 0,
            overflow: VecDeque::new(),
            programs: FxHashSet::default(),
            admitted: VecDeque::new(),
            held_message: None,
            created,
            idle_since: None,
            has_sent: false,
            failure: None,
        }
    }

    /// Records the first failure, for which the worker is killed.
    pub(super) fn fail(&mut self, why: impl ToString) {
        self.failure.get_or_insert_with(|| why.to_string());
    }

    /// Adds a task, at this time in nanoseconds.
    pub(super) fn task_assigned(&mut self, task: TaskId, job: JobId, position: TaskPosition, now: u64) {
        if self.assigned.is_empty() && self.started.is_empty() {
            self.busy_since = now;
        }
        self.assigned.push_back(AssignedTask { position, task, job });
    }

    /// Adds a task that has started without an assignment.
    pub(super) fn task_started_inline(&mut self, task: TaskId, job: JobId) {
        self.started.insert(task, job);
    }

    /// Removes a task that has finished, at this time in nanoseconds. Returns its job, if the worker had the task.
    pub(super) fn task_finished(&mut self, task: TaskId, now: u64) -> Option<JobId> {
        self.busy_since = now;
        // Usually the first assigned one.
        if let Some(first) = self.assigned.pop_front_if(|first| first.task == task) {
            return Some(first.job);
        }
        self.started.remove(&task).or_else(|| self.call_dropped(task))
    }

    /// Returns whether a task is the first of those that were assigned and have not finished.
    pub(super) fn has_next(&self, task: TaskId) -> bool {
        self.assigned.front().is_some_and(|first| first.task == task)
    }

    /// Returns whether a task has started before earlier assigned ones ended, or without an assignment.
    pub(super) fn has_started_early(&self, task: TaskId) -> bool {
        self.started.contains_key(&task)
    }

    /// A task that was never assigned has finished in the worker, for this one, at this time in nanoseconds. Returns its job.
    pub(super) fn inline_task_finished(&mut self, parent: TaskId, now: u64) -> Option<JobId> {
        self.busy_since = now;
        self.job_of(parent)
    }

    /// Removes an assigned call that will not start. Returns its job.
    pub(super) fn call_dropped(&mut self, task: TaskId) -> Option<JobId> {
        let at = self.assigned.iter().position(|assigned| assigned.task == task)?;
        self.assigned.remove(at).map(|assigned| assigned.job)
    }

    /// Returns the job of a task that the worker has.
    pub(super) fn job_of(&self, task: TaskId) -> Option<JobId> {
        let assigned = || self.assigned.iter().find(|assigned| assigned.task == task).map(|assigned| assigned.job);
        self.started.get(&task).copied().or_else(assigned)
    }

    /// Returns whether the worker has tasks of a job.
    pub(super) fn has_tasks_of(&self, job: JobId) -> bool {
        self.started.values().any(|other| *other == job) || self.assigned.iter().any(|assigned| assigned.job == job)
    }

    /// Returns the job of the task whose code runs, and since when it may run, in nanoseconds.
    pub(super) fn running_job(&self) -> Option<(JobId, u64)> {
        let current = self.link.current_task()?;
        // A worker could claim to run a task that it does not have.
        let job = |task: u64| self.job_of(TaskId(task)).filter(|_| self.has_started(TaskId(task)));
        let job = self.link.current_call().and_then(job).or_else(|| job(current))?;
        Some((job, self.busy_since))
    }

    /// Handles a waiting task: others may start before it finishes.
    pub(super) fn task_blocked(&mut self, task: TaskId) {
        if let Some(first) = self.assigned.pop_front_if(|first| first.task == task) {
            self.started.insert(task, first.job);
        }
    }

    /// Returns whether a task has started.
    pub(super) fn has_started(&self, task: TaskId) -> bool {
        let up_to = self.link.started_up_to();
        let mut assigned = self.assigned.iter();
        self.started.contains_key(&task)
            || assigned.any(|assigned| assigned.task == task && assigned.position.is_started(up_to))
    }

    /// Takes back the tasks that have not started.
    pub(super) fn reclaim_tasks(&mut self) -> Vec<TaskId> {
        let up_to = self.link.reclaim_tasks();
        let kept = self.assigned.partition_point(|assigned| assigned.position.is_started(up_to));
        let reclaimed = self.assigned.split_off(kept);
        reclaimed.into_iter().map(|assigned| assigned.task).collect()
    }

    /// Returns the started tasks that have not finished, sorted.
    pub(super) fn started_tasks(&self) -> Vec<TaskId> {
        let up_to = self.link.started_up_to();
        let assigned = self.assigned.iter().filter(|assigned| assigned.position.is_started(up_to));
        let assigned = assigned.map(|assigned| assigned.task);
        let mut started: Vec<_> = assigned.chain(self.started.keys().copied()).collect();
        started.sort_unstable();
        started
    }

    /// Returns whether it has work that others wait for. A client's task does not count: it may be idle for any time.
    pub(super) fn is_busy(&self) -> bool {
        let has_tasks = !self.assigned.is_empty() || !self.started.is_empty();
        has_tasks && !self.link.is_client() || self.held_message.is_some()
    }
}
