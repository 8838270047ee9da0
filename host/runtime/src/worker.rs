//! A worker or client of the runtime: its link, and the tasks assigned to it.

use std::collections::VecDeque;
use std::time::Instant;

use rustc_hash::FxHashSet;
use sandbar_core::{Fault, TaskId, WorkerId};
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
    assigned: VecDeque<(TaskPosition, TaskId)>,
    /// Started tasks that are no longer in `assigned`.
    started: FxHashSet<TaskId>,
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

impl Worker {
    pub(super) fn new(id: WorkerId, kind: WorkerKind, link: BoxedWorkerLink, created: Instant) -> Worker {
        Worker {
            id,
            kind,
            link,
            assigned: VecDeque::new(),
            started: FxHashSet::default(),
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

    pub(super) fn task_assigned(&mut self, task: TaskId, position: TaskPosition) {
        self.assigned.push_back((position, task));
    }

    /// Adds a task that has started without an assignment.
    pub(super) fn task_started_inline(&mut self, task: TaskId) {
        self.started.insert(task);
    }

    pub(super) fn task_finished(&mut self, task: TaskId) {
        // Usually the first assigned one.
        match self.assigned.front() {
            Some((_, first)) if *first == task => drop(self.assigned.pop_front()),
            _ => {
                if !self.started.remove(&task) {
                    self.assigned.retain(|(_, assigned)| *assigned != task);
                }
            }
        }
    }

    /// Returns whether a task is the first of those that were assigned and have not finished.
    pub(super) fn has_next(&self, task: TaskId) -> bool {
        self.assigned.front().is_some_and(|(_, first)| *first == task)
    }

    /// Returns whether a task has started before earlier assigned ones ended, or without an assignment.
    pub(super) fn has_started_early(&self, task: TaskId) -> bool {
        self.started.contains(&task)
    }

    /// Returns whether a task was assigned and has not finished.
    pub(super) fn is_assigned(&self, task: TaskId) -> bool {
        self.assigned.iter().any(|(_, assigned)| *assigned == task)
    }

    /// Removes an assigned call that will not start.
    pub(super) fn call_dropped(&mut self, task: TaskId) {
        if let Some(at) = self.assigned.iter().position(|(_, assigned)| *assigned == task) {
            self.assigned.remove(at);
        }
    }

    /// Handles a waiting task: others may start before it finishes.
    pub(super) fn task_blocked(&mut self, task: TaskId) {
        if let Some((_, first)) = self.assigned.front()
            && *first == task
        {
            self.assigned.pop_front();
            self.started.insert(task);
        }
    }

    /// Returns whether a task has started.
    pub(super) fn has_started(&self, task: TaskId) -> bool {
        let up_to = self.link.started_up_to();
        let mut assigned = self.assigned.iter();
        self.started.contains(&task) || assigned.any(|(at, other)| *other == task && at.is_started(up_to))
    }

    /// Takes back the tasks that have not started.
    pub(super) fn reclaim_tasks(&mut self) -> Vec<TaskId> {
        let up_to = self.link.reclaim_tasks();
        let kept = self.assigned.partition_point(|(position, _)| position.is_started(up_to));
        let reclaimed = self.assigned.split_off(kept);
        reclaimed.into_iter().map(|(_, task)| task).collect()
    }

    /// Returns the started tasks that have not finished, sorted.
    pub(super) fn started_tasks(&self) -> Vec<TaskId> {
        let up_to = self.link.started_up_to();
        let assigned = self.assigned.iter().filter(|(at, _)| at.is_started(up_to)).map(|(_, task)| *task);
        let mut started: Vec<_> = assigned.chain(self.started.iter().copied()).collect();
        started.sort_unstable();
        started
    }

    /// Returns whether it has work that others wait for. A client's task does not count: it may be idle for any time.
    pub(super) fn is_busy(&self) -> bool {
        let has_tasks = !self.assigned.is_empty() || !self.started.is_empty();
        has_tasks && !self.link.is_client() || self.held_message.is_some()
    }
}
