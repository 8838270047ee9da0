//! Circles of actors' calls, found by asking workers what their tasks wait for.
//!
//! Once a second the workers of actors are asked that have calls waiting behind one that was there the last time; what the
//! answers lead to is asked in rounds in between. A call that was found in a circle twice fails, and names it: the others
//! go on with its error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{Attempt, Fault, ObjectId, TaskId, WorkerId};
use sandbar_jobs::LogEntry;
use sandbar_sched::{Event, TaskState, WaitSet};
use sandbar_worker::program::{NodeMessage, WAIT_OBJECTS_MAX};

use super::State;

/// How often actors are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often what the answers lead to is asked for.
const ROUND: Duration = Duration::from_millis(100);
/// Tasks and actors that are asked about between two looks.
const ASKED_MAX: usize = 1000;
/// A call that keeps others waiting and waits for another node is warned of after so many looks: no node sees a circle
/// through several.
const FAR_LOOKS: u32 = 10;
/// Warnings of that kind.
const WARNED_MAX: usize = 100;
/// The level of what is worth a look.
const WARN: u8 = 2;

/// What is known since the last look.
#[derive(Debug, Default)]
pub(super) struct Circles {
    last: Option<Instant>,
    last_round: Option<Instant>,
    /// By the makers of actors, the first call that each had.
    busy: HashMap<TaskId, TaskId>,
    asked: BTreeSet<TaskId>,
    waits: BTreeMap<TaskId, WaitSet>,
    /// There are answers that nobody has followed.
    is_news: bool,
    /// Calls that were found in a circle by the last look.
    found: BTreeSet<TaskId>,
    /// Calls that wait for another node, and for how many looks; those that were warned of stay.
    far: BTreeMap<TaskId, u32>,
    warned: usize,
    /// Calls that end for it, unless they begin before.
    doomed: FxHashMap<TaskId, Fault>,
}

impl State {
    /// Looks for circles, if it is time to.
    pub(super) fn look_for_circles(&mut self, now: Instant) {
        let is_over = |last: Option<Instant>, time| last.is_none_or(|last| now - last >= time);
        if is_over(self.circles.last, LOOK) {
            self.circles.last = Some(now);
            self.break_circles();
            self.ask_busy();
        } else if self.circles.is_news && is_over(self.circles.last_round, ROUND) {
            self.circles.last_round = Some(now);
            self.circles.is_news = false;
            let unknown = self.sched.find_deadlocks(&self.circles.waits).unresolved;
            unknown.into_iter().for_each(|task| self.ask_waits(task));
        }
    }

    /// Fails calls that were in a circle the last time, and are now.
    fn break_circles(&mut self) {
        let found = match self.circles.waits.is_empty() {
            true => Vec::new(),
            false => self.sched.find_deadlocks(&self.circles.waits).deadlocks,
        };
        let before = std::mem::take(&mut self.circles.found);
        self.circles.found = found.iter().map(|circle| circle.call).collect();
        self.asleep.retain(|task| self.sched.task(*task).is_some_and(|view| view.state == TaskState::Blocked));
        self.circles.doomed.retain(|call, _| self.sched.task(*call).is_some());
        self.warn_of_far();
        for circle in found.into_iter().filter(|circle| before.contains(&circle.call)) {
            let Some(view) = self.sched.task(circle.call) else { continue };
            match (view.state, view.worker, view.attempt) {
                (TaskState::Running, Some(worker), attempt) => self.doom(worker, circle.call, attempt, circle.fault),
                _ => self.step(Event::DeadlockDetected { call: circle.call, fault: circle.fault }),
            }
        }
    }

    /// Warns of calls that keep others of their actor waiting, and wait for another node for long.
    fn warn_of_far(&mut self) {
        let mut before = std::mem::take(&mut self.circles.far);
        for (call, awaited) in self.sched.remote_waits(&self.circles.waits) {
            let looks = before.remove(&call).unwrap_or(0) + 1;
            self.circles.far.insert(call, looks);
            if looks == FAR_LOOKS && self.circles.warned < WARNED_MAX {
                self.circles.warned += 1;
                self.warn(call, awaited);
            }
        }
    }

    fn warn(&self, call: TaskId, awaited: TaskId) {
        let (Some(call), Some(awaited)) = (self.sched.task(call), self.sched.task(awaited)) else { return };
        let line = format!(
            "`{}` ({}) has waited for {} s for `{}` ({}) on another node, and later calls of its actor wait for it; if they \
             wait for each other, that never ends",
            call.name,
            call.id.short(),
            FAR_LOOKS,
            awaited.name,
            awaited.id.short()
        );
        if let Some(job) = self.jobs.get(&call.job) {
            job.log.send(LogEntry { task: None, level: WARN, line: &line });
        }
    }

    /// Takes a call back that its actor's worker has, and says why.
    fn doom(&mut self, worker: WorkerId, call: TaskId, attempt: Attempt, fault: Fault) {
        self.circles.doomed.insert(call, fault);
        self.withdraw(worker, call, attempt);
    }

    /// Why a call was taken back, if it was for a circle.
    pub(super) fn take_doomed(&mut self, call: TaskId) -> Option<Fault> {
        // Mostly there are none.
        if self.circles.doomed.is_empty() { None } else { self.circles.doomed.remove(&call) }
    }

    fn ask_busy(&mut self) {
        self.circles.asked.clear();
        self.circles.waits.clear();
        let busy: HashMap<TaskId, TaskId> =
            self.sched.busy_actors().take(ASKED_MAX).map(|(maker, _, first)| (maker, first)).collect();
        let mut suspects: Vec<TaskId> = busy
            .iter()
            .filter(|(maker, first)| self.circles.busy.get(maker) == Some(first))
            .map(|(maker, _)| *maker)
            .collect();
        suspects.sort_unstable();
        self.circles.busy = busy;
        suspects.into_iter().for_each(|maker| self.ask_waits(maker));
    }

    /// Asks what a task waits for, or the calls of an actor, by what made it.
    fn ask_waits(&mut self, task: TaskId) {
        let worker = self.sched.task(task).and_then(|view| view.worker);
        if let Some(worker) = worker.filter(|worker| !self.peers.is_far(*worker))
            && self.circles.asked.len() < ASKED_MAX
            && self.circles.asked.insert(task)
        {
            self.tell(worker, &NodeMessage::ReportWaits(task.0));
        }
    }

    /// A worker says what a task waits for.
    pub(super) fn waits(&mut self, worker: WorkerId, task: TaskId, waits: WaitSet) {
        let is_asked = |id: TaskId| self.circles.asked.contains(&id);
        let of_actor = self.sched.actor_of(task).is_some_and(|actor| is_asked(actor.creation_task()));
        let is_there = self.sched.task(task).is_some_and(|view| view.worker == Some(worker));
        if is_there && (of_actor || is_asked(task)) && waits.objects.len() <= WAIT_OBJECTS_MAX {
            self.circles.waits.insert(task, waits);
            self.circles.is_news = true;
        }
    }
}

/// What was said, as the scheduler has it.
pub(super) fn waits(objects: Vec<u64>, needed: u32, holds_actor: bool) -> WaitSet {
    let objects: Vec<ObjectId> = objects.into_iter().map(ObjectId).collect();
    let needed = (needed as usize).min(objects.len());
    WaitSet { objects, needed, holds_actor }
}
