//! Deadlocks of actors' calls, found in reports of workers on the waits of their tasks.
//!
//! Once a second, actors whose first call is the same as in the last check, with other calls behind it, are suspects: their
//! workers report what the calls wait for, and in rounds what those wait for in turn. A call that two checks find in a cycle
//! fails with an error that names the cycle; the other calls continue with its error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{Fault, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Event, TaskState, WaitSet};
use sandbar_worker::program::{NodeMessage, WAIT_OBJECTS_MAX};

use super::actors::withdraw;
use super::context::Context;
use super::effects::{Effect, JobEffect};

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the rounds between two checks.
const ROUND_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of tasks and actors whose waits the engine requests from workers between two checks.
const REPORTS_MAX: usize = 1000;
/// Number of checks after which the engine warns of a call that blocks others and waits for another node. No node sees a
/// cycle through several nodes.
const REMOTE_CHECKS: u32 = 10;
/// Maximum number of warnings of such calls.
const WARNINGS_MAX: usize = 100;

/// Waiting calls, as workers have reported them since the last check.
#[derive(Debug, Default)]
pub(super) struct Deadlocks {
    last_check: Option<Instant>,
    last_round: Option<Instant>,
    /// First calls of busy actors, by the actor's creation task.
    busy: HashMap<TaskId, TaskId>,
    requested: BTreeSet<TaskId>,
    waits: BTreeMap<TaskId, WaitSet>,
    /// Whether reports have arrived since the last round.
    has_new_waits: bool,
    /// Calls that the last check found in a cycle.
    found: BTreeSet<TaskId>,
    remote: RemoteWaits,
    /// Errors of calls that were withdrawn, and end unless they start first.
    failing: FxHashMap<TaskId, Fault>,
    /// Tasks that wait for a time, as their workers report.
    sleeping: FxHashSet<TaskId>,
}

/// Calls that wait for another node.
#[derive(Debug, Default)]
struct RemoteWaits {
    /// Number of checks that found each.
    checks: BTreeMap<TaskId, u32>,
    warnings: usize,
}

impl Deadlocks {
    /// Checks for deadlocks when a check or a round is due.
    pub(super) fn tick(&mut self, cx: &mut Context) {
        let now = cx.time.now;
        let is_due =
            |last: Option<Instant>, interval| last.is_none_or(|last| now.saturating_duration_since(last) >= interval);
        if is_due(self.last_check, INTERVAL) {
            self.last_check = Some(now);
            self.fail_deadlocked(cx);
            self.request_reports(cx);
        } else if self.has_new_waits && is_due(self.last_round, ROUND_INTERVAL) {
            self.last_round = Some(now);
            self.has_new_waits = false;
            let unknown = cx.scheduler.find_deadlocks(&self.waits).unresolved;
            unknown.into_iter().for_each(|task| self.request_report(cx, task));
        }
    }

    /// Fails calls that this check and the last one find in a cycle.
    fn fail_deadlocked(&mut self, cx: &mut Context) {
        let deadlocks = match self.waits.is_empty() {
            true => Vec::new(),
            false => cx.scheduler.find_deadlocks(&self.waits).deadlocks,
        };
        let found_before = std::mem::take(&mut self.found);
        self.found = deadlocks.iter().map(|deadlock| deadlock.call).collect();
        self.sleeping.retain(|task| cx.scheduler.task(*task).is_some_and(|view| view.state == TaskState::Blocked));
        self.failing.retain(|call, _| cx.scheduler.task(*call).is_some());
        self.remote.check(cx, &self.waits);
        for deadlock in deadlocks.into_iter().filter(|deadlock| found_before.contains(&deadlock.call)) {
            let Some(view) = cx.scheduler.task(deadlock.call) else { continue };
            match (view.state, view.worker, view.attempt) {
                (TaskState::Running, Some(worker), attempt) => {
                    self.failing.insert(deadlock.call, deadlock.fault);
                    withdraw(cx, worker, deadlock.call, attempt);
                }
                _ => cx.step(Event::DeadlockDetected { call: deadlock.call, fault: deadlock.fault }),
            }
        }
    }

    /// Removes and returns the error of a call that was withdrawn for a deadlock.
    pub(super) fn take_fault(&mut self, call: TaskId) -> Option<Fault> {
        // The map is usually empty.
        if self.failing.is_empty() { None } else { self.failing.remove(&call) }
    }

    fn request_reports(&mut self, cx: &mut Context) {
        self.requested.clear();
        self.waits.clear();
        let busy: HashMap<TaskId, TaskId> =
            cx.scheduler.busy_actors().take(REPORTS_MAX).map(|(creation, _, first)| (creation, first)).collect();
        let is_suspect = |(creation, first): &(&TaskId, &TaskId)| self.busy.get(creation) == Some(first);
        let mut suspects: Vec<TaskId> = busy.iter().filter(is_suspect).map(|(creation, _)| *creation).collect();
        suspects.sort_unstable();
        self.busy = busy;
        suspects.into_iter().for_each(|creation| self.request_report(cx, creation));
    }

    /// Requests a report of the objects that a task waits for, or that the calls of an actor wait for. An actor is identified
    /// by its creation task.
    fn request_report(&mut self, cx: &mut Context, task: TaskId) {
        let worker = cx.scheduler.task(task).and_then(|view| view.worker);
        if let Some(worker) = worker.filter(|worker| !cx.peers.is_remote(*worker))
            && self.requested.len() < REPORTS_MAX
            && self.requested.insert(task)
        {
            cx.send(worker, &NodeMessage::ReportWaits(task.0));
        }
    }

    /// Handles a worker's report of the objects that a task waits for.
    pub(super) fn handle_waits(&mut self, cx: &Context, worker: WorkerId, task: TaskId, waits: WaitSet) {
        let is_requested = |id: TaskId| self.requested.contains(&id);
        let of_actor = cx.scheduler.actor_of(task).is_some_and(|actor| is_requested(actor.creation_task()));
        let is_there = cx.scheduler.task(task).is_some_and(|view| view.worker == Some(worker));
        if is_there && (of_actor || is_requested(task)) && waits.objects.len() <= WAIT_OBJECTS_MAX {
            self.waits.insert(task, waits);
            self.has_new_waits = true;
        }
    }

    /// A worker reports that a task waits for a time.
    pub(super) fn task_sleeps(&mut self, cx: &Context, worker: WorkerId, task: TaskId) {
        if cx.scheduler.task(task).is_some_and(|view| view.worker == Some(worker)) {
            self.sleeping.insert(task);
        }
    }

    /// Removes the waits of a task that continues.
    pub(super) fn task_unblocked(&mut self, task: TaskId) {
        if !self.sleeping.is_empty() {
            self.sleeping.remove(&task);
        }
    }

    pub(super) fn is_sleeping(&self, task: TaskId) -> bool {
        self.sleeping.contains(&task)
    }
}

impl RemoteWaits {
    /// Warns of calls that hold up others of their actor, and wait for another node for long.
    fn check(&mut self, cx: &mut Context, waits: &BTreeMap<TaskId, WaitSet>) {
        let mut before = std::mem::take(&mut self.checks);
        for (call, awaited) in cx.scheduler.remote_waits(waits) {
            let checks = before.remove(&call).unwrap_or(0) + 1;
            self.checks.insert(call, checks);
            if checks == REMOTE_CHECKS && self.warnings < WARNINGS_MAX {
                self.warnings += 1;
                warn(cx, call, awaited);
            }
        }
    }
}

fn warn(cx: &mut Context, call: TaskId, awaited: TaskId) {
    let (Some(call), Some(awaited)) = (cx.scheduler.task(call), cx.scheduler.task(awaited)) else { return };
    let line = format!(
        "`{}` ({}) has waited for {} s for `{}` ({}) on another node, and later calls of its actor wait for it; if they \
         wait for each other, that never ends",
        call.name,
        call.id.short(),
        REMOTE_CHECKS,
        awaited.name,
        awaited.id.short()
    );
    let job = call.job;
    cx.push(Effect::Job(JobEffect::Warn(job, line)));
}

/// Converts a worker's report.
pub(super) fn wait_set(objects: Vec<u64>, needed: u32, holds_actor: bool) -> WaitSet {
    let objects: Vec<ObjectId> = objects.into_iter().map(ObjectId).collect();
    let needed = (needed as usize).min(objects.len());
    WaitSet { objects, needed, holds_actor }
}
