//! Deadlines: time limits of tasks, and attempts that were requested to end.
//!
//! An attempt that does not end in time takes its worker with it. A running call of an actor can't be interrupted alone: it
//! ends with its actor.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{Attempt, Code, Fault, TaskId, WorkerId};

/// Time after which a worker is killed if an attempt does not end, though no other task keeps the worker busy.
const END_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    limits: FxHashMap<TaskId, TimeLimit>,
    ending: FxHashMap<TaskId, EndingAttempt>,
    /// Calls of actors that must end, wherever they are.
    calls: FxHashMap<TaskId, EndingCall>,
}

/// Time limit of each attempt of a task.
#[derive(Debug)]
struct TimeLimit {
    duration: Duration,
    /// Start of the attempt, if known.
    started: Option<Instant>,
}

/// An attempt that was requested to end.
#[derive(Debug)]
struct EndingAttempt {
    worker: WorkerId,
    /// Last time at which its worker could not have ended it yet.
    since: Instant,
    /// Error of the attempt, instead of its own.
    reason: Option<Fault>,
}

/// A call of an actor that must end.
#[derive(Debug)]
struct EndingCall {
    worker: WorkerId,
    reason: Fault,
}

/// An attempt on a worker, for [`Deadlines::expired`].
#[derive(Debug, Clone, Copy)]
pub(super) struct AssignedAttempt {
    pub(super) worker: WorkerId,
    pub(super) attempt: Attempt,
    pub(super) is_started: bool,
    /// Its worker reports its start: other calls of its actor may run before it.
    pub(super) is_actor_call: bool,
}

/// An attempt that exceeded its time limit.
#[derive(Debug, PartialEq)]
pub(super) struct ExpiredAttempt {
    pub(super) task: TaskId,
    pub(super) worker: WorkerId,
    pub(super) attempt: Attempt,
    pub(super) is_actor_call: bool,
    pub(super) reason: Fault,
}

impl Deadlines {
    /// Limits each attempt of a task. Replaces the task's previous limit.
    pub(super) fn limit(&mut self, task: TaskId, duration: Duration) {
        self.limits.insert(task, TimeLimit { duration, started: None });
    }

    /// An attempt has started.
    pub(super) fn started(&mut self, task: TaskId, now: Instant) {
        if let Some(limit) = self.limits.get_mut(&task) {
            limit.started.get_or_insert(now);
        }
    }

    /// Removes an attempt that has ended. Returns the reason for which it was requested to end, if any.
    pub(super) fn finished(&mut self, task: TaskId) -> Option<Fault> {
        let ending = self.ending.remove(&task);
        let call = self.calls.remove(&task);
        self.limits.remove(&task);
        call.map(|call| call.reason).or_else(|| ending.and_then(|ending| ending.reason))
    }

    /// A task has ended that may not have run.
    pub(super) fn forget(&mut self, task: TaskId) {
        self.limits.remove(&task);
        self.calls.remove(&task);
    }

    /// Removes an attempt that was taken back before its start, even if it was requested to end.
    pub(super) fn recalled(&mut self, task: TaskId) {
        self.ending.remove(&task);
    }

    pub(super) fn forget_worker(&mut self, worker: WorkerId) {
        self.ending.retain(|_, ending| ending.worker != worker);
        self.calls.retain(|_, call| call.worker != worker);
    }

    /// Records that an attempt was requested to end.
    pub(super) fn ending(&mut self, task: TaskId, worker: WorkerId, reason: Option<Fault>, now: Instant) {
        self.ending.entry(task).or_insert(EndingAttempt { worker, since: now, reason });
    }

    pub(super) fn is_ending(&self, task: TaskId) -> bool {
        self.ending.contains_key(&task)
    }

    /// A call of an actor must end, wherever it is.
    pub(super) fn end_call(&mut self, call: TaskId, worker: WorkerId, reason: Fault) {
        self.calls.entry(call).or_insert(EndingCall { worker, reason });
    }

    pub(super) fn must_end_call(&self, call: TaskId) -> bool {
        self.calls.contains_key(&call)
    }

    /// Returns the attempts that exceed their limits, and forgets them. `exists` and `assigned` describe tasks; the latter is
    /// `None` for a task that no worker has.
    pub(super) fn expired(
        &mut self,
        now: Instant,
        exists: impl Fn(TaskId) -> bool,
        assigned: impl Fn(TaskId) -> Option<AssignedAttempt>,
    ) -> Vec<ExpiredAttempt> {
        // Tasks may have ended before they started, and workers may name tasks that never existed.
        self.limits.retain(|task, _| exists(*task));
        let mut expired = Vec::new();
        for (task, limit) in &mut self.limits {
            let Some(AssignedAttempt { worker, attempt, is_started, is_actor_call }) = assigned(*task) else {
                continue;
            };
            match limit.started {
                None if is_actor_call => {}
                None if is_started => limit.started = Some(now),
                Some(started) if now.saturating_duration_since(started) >= limit.duration => {
                    let message = format!("it ran longer than {} ms (timeout)", limit.duration.as_millis());
                    let reason = Fault::new(Code::TimeOut, message);
                    expired.push(ExpiredAttempt { task: *task, worker, attempt, is_actor_call, reason });
                }
                _ => {}
            }
        }
        for attempt in &expired {
            self.limits.remove(&attempt.task);
            if attempt.is_actor_call {
                self.calls.insert(attempt.task, EndingCall { worker: attempt.worker, reason: attempt.reason.clone() });
            }
        }
        expired
    }

    /// Returns the calls that must end and that `runs` on their worker, with the worker and the reason. Calls whose task does
    /// not exist any more are forgotten.
    pub(super) fn running_calls(
        &mut self,
        exists: impl Fn(TaskId) -> bool,
        runs: impl Fn(TaskId, WorkerId) -> bool,
    ) -> Vec<(TaskId, WorkerId, Fault)> {
        self.calls.retain(|call, _| exists(*call));
        let running = self.calls.iter().filter(|(call, ending)| runs(**call, ending.worker));
        running.map(|(call, ending)| (*call, ending.worker, ending.reason.clone())).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.ending.is_empty() && self.calls.is_empty()
    }

    /// Checks the attempts that were requested to end and have not ended. `current` returns the task that a worker runs,
    /// and interrupts the attempt if it is that one. While the worker runs another task, the attempt can't end: that
    /// time does not count.
    pub(super) fn check_ending(&mut self, now: Instant, current: impl Fn(TaskId, WorkerId) -> Option<TaskId>) {
        for (task, ending) in &mut self.ending {
            if current(*task, ending.worker).is_some_and(|current| current != *task) {
                ending.since = now;
            }
        }
    }

    /// Returns the workers of attempts that did not end in time, with their tasks.
    pub(super) fn stuck_workers(&self, now: Instant) -> Vec<(WorkerId, TaskId)> {
        let is_stuck = |ending: &EndingAttempt| now.saturating_duration_since(ending.since) > END_TIME_MAX;
        let stuck = self.ending.iter().filter(|(_, ending)| is_stuck(ending));
        stuck.map(|(task, ending)| (ending.worker, *task)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId(1);
    const WORKER: WorkerId = WorkerId(2);

    fn assigned(is_started: bool, is_actor_call: bool) -> impl Fn(TaskId) -> Option<AssignedAttempt> {
        move |_| Some(AssignedAttempt { worker: WORKER, attempt: Attempt(0), is_started, is_actor_call })
    }

    #[test]
    fn the_limit_counts_from_the_start() {
        let (mut deadlines, now) = (Deadlines::default(), Instant::now());
        deadlines.limit(TASK, Duration::from_secs(10));
        let late = now + Duration::from_secs(60);
        assert!(deadlines.expired(late, |_| true, |_| None).is_empty(), "no worker has it");
        assert!(deadlines.expired(late, |_| true, assigned(false, false)).is_empty(), "it has not started");
        assert!(deadlines.expired(now, |_| true, assigned(true, false)).is_empty(), "it starts");
        assert!(deadlines.expired(now, |_| true, assigned(true, false)).is_empty(), "it has time left");
        let expired = deadlines.expired(late, |_| true, assigned(true, false));
        assert_eq!(expired.iter().map(|attempt| attempt.task).collect::<Vec<_>>(), [TASK]);
        assert!(deadlines.expired(late, |_| true, assigned(true, false)).is_empty(), "once");
    }

    #[test]
    fn workers_report_the_start_of_actor_calls() {
        let (mut deadlines, late) = (Deadlines::default(), Instant::now() + Duration::from_secs(60));
        deadlines.limit(TASK, Duration::from_secs(10));
        assert!(deadlines.expired(late, |_| true, assigned(true, true)).is_empty());
        deadlines.started(TASK, Instant::now());
        assert_eq!(deadlines.expired(late, |_| true, assigned(true, true)).len(), 1);
        assert!(deadlines.must_end_call(TASK));
        assert_eq!(deadlines.running_calls(|_| true, |_, worker| worker == WORKER).len(), 1);
        assert_eq!(deadlines.finished(TASK).map(|fault| fault.code), Some(Code::TimeOut));
        assert!(!deadlines.must_end_call(TASK));
    }

    #[test]
    fn attempts_that_do_not_end_make_their_worker_stuck() {
        let (mut deadlines, now) = (Deadlines::default(), Instant::now());
        deadlines.ending(TASK, WORKER, Some(Fault::new(Code::Cancelled, "first")), now);
        deadlines.ending(TASK, WORKER, Some(Fault::new(Code::Cancelled, "second")), now);
        assert!(deadlines.stuck_workers(now).is_empty());
        assert_eq!(deadlines.stuck_workers(now + 2 * END_TIME_MAX), [(WORKER, TASK)]);
        assert_eq!(deadlines.finished(TASK).map(|fault| fault.message), Some("first".to_owned()));
        deadlines.ending(TASK, WORKER, None, now);
        let late = now + 2 * END_TIME_MAX;
        deadlines.check_ending(late, |_, _| Some(TASK));
        assert_eq!(deadlines.stuck_workers(late), [(WORKER, TASK)]);
        deadlines.check_ending(late, |_, _| None);
        assert_eq!(deadlines.stuck_workers(late), [(WORKER, TASK)]);
        deadlines.check_ending(late, |task, worker| (task == TASK && worker == WORKER).then_some(TaskId(9)));
        assert!(deadlines.stuck_workers(late + END_TIME_MAX / 2).is_empty(), "its worker ran another task");
        deadlines.forget_worker(WORKER);
        assert!(deadlines.stuck_workers(now + 2 * END_TIME_MAX).is_empty());
    }
}
