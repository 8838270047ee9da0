//! Actors: resident sandboxes, with their queued, running and waiting calls.
//!
//! The task context in an actor's slot is the one for which its code runs: the current call, or, without a call, the
//! task that created the actor. References of the actor move between these contexts, because it keeps objects between
//! calls.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use sandbar_core::{Fault, TaskKind};

use super::context::{AttemptReport, TaskContext};
use crate::program::clock::monotonic_nanos;
use crate::program::messages::ActorSettings;

/// A call of an actor that has not started.
pub(in crate::program) struct QueuedCall {
    pub own: TaskContext,
    pub function: u32,
    pub arguments: Box<[u8]>,
    /// Whether the worker notifies the node when the call starts.
    pub is_timed: bool,
}

impl QueuedCall {
    /// Returns whether no other call may run or wait beside this one.
    pub(super) fn is_alone(&self) -> bool {
        self.own.kinds.get(self.function as usize) != Some(&TaskKind::Shared)
    }
}

/// An actor, or a task that is creating one.
pub(in crate::program) struct ResidentActor {
    pub attempt: u32,
    options: ActorSettings,
    is_created: bool,
    queue: VecDeque<QueuedCall>,
    /// Waiting calls by their numbers.
    parked: FxHashMap<u64, ParkedCall>,
    /// Calls that can continue, or that were withdrawn, by their numbers.
    ready: VecDeque<ReadyCall<u64>>,
    /// The current call, and the task that created the actor.
    current: Option<(CurrentCall, TaskContext)>,
    /// Number of calls since the last checkpoint.
    unsaved: u32,
    /// A finished call that is reported only after the checkpoint that follows it.
    unreported: Option<FinishedCall>,
    clock: ActorClock,
}

/// Computing time of an actor, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct ActorClock {
    /// Time so far, and since when its code runs.
    ran: u64,
    runs_since: Option<u64>,
    /// Time of calls that report it.
    of_calls: u64,
}

impl ActorClock {
    fn now(&self) -> u64 {
        self.ran + self.runs_since.map_or(0, |since| monotonic_nanos().saturating_sub(since))
    }

    /// Adds the time of the current call since it became that.
    fn count(&mut self, call: &mut CurrentCall) {
        let nanos = self.now().saturating_sub(call.from);
        call.nanos += nanos;
        if !call.is_checkpoint {
            self.of_calls += nanos;
        }
    }
}

struct ParkedCall {
    own: TaskContext,
    call: CurrentCall,
    /// Objects of which it waits for any.
    awaits: Vec<u64>,
    /// Whether it is in the queue of calls that can continue.
    is_ready: bool,
}

/// The call for which the actor's code runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentCall {
    /// Start time in nanoseconds of the machine's clock, GPU time so far, and computing time so far.
    pub started: u64,
    pub gpu_nanos: u64,
    pub nanos: u64,
    /// Computing time of the actor when the call last became the current one, in nanoseconds.
    from: u64,
    /// Whether no other call may run or wait beside it.
    is_alone: bool,
    pub is_checkpoint: bool,
}

impl CurrentCall {
    /// Starts a call.
    pub(super) fn start(is_alone: bool) -> CurrentCall {
        CurrentCall { started: monotonic_nanos(), gpu_nanos: 0, nanos: 0, from: 0, is_alone, is_checkpoint: false }
    }

    /// Starts a checkpoint.
    pub(super) fn start_checkpoint() -> CurrentCall {
        CurrentCall { is_checkpoint: true, ..CurrentCall::start(true) }
    }
}

/// A waiting call that the actor takes up again.
pub(super) enum ReadyCall<C> {
    /// It continues.
    Resume(C),
    /// It was withdrawn, and is dropped.
    Abandon(C),
}

/// A finished call of which the node does not know yet.
pub(super) struct FinishedCall {
    pub own: TaskContext,
    pub result: Result<(), Fault>,
    pub report: AttemptReport,
}

/// The calls that an ended actor leaves.
pub(super) struct UnfinishedCalls {
    /// The current call, and the task that created the actor.
    pub current: Option<(CurrentCall, TaskContext)>,
    /// The call before the current checkpoint.
    pub unreported: Option<FinishedCall>,
    pub parked: Vec<(TaskContext, CurrentCall)>,
    pub queued: VecDeque<QueuedCall>,
    /// Computing time of its calls, which is not that of the task that created it, in nanoseconds.
    pub nanos_of_calls: u64,
}

impl ResidentActor {
    pub(in crate::program) fn new(attempt: u32, options: ActorSettings) -> ResidentActor {
        ResidentActor {
            attempt,
            options,
            is_created: false,
            queue: VecDeque::new(),
            parked: FxHashMap::default(),
            ready: VecDeque::new(),
            current: None,
            unsaved: 0,
            unreported: None,
            clock: ActorClock::default(),
        }
    }

    /// Its code runs from now on.
    pub(in crate::program) fn start_running(&mut self, now: u64) {
        self.clock.runs_since = Some(now);
    }

    /// Its code waits from now on.
    pub(in crate::program) fn stop_running(&mut self, now: u64) {
        self.clock.ran += self.clock.runs_since.take().map_or(0, |since| now.saturating_sub(since));
    }

    /// Marks the actor as created.
    pub(super) fn set_created(&mut self) {
        self.is_created = true;
    }

    /// Returns whether a call is current.
    pub(super) fn is_called(&self) -> bool {
        self.current.is_some()
    }

    /// Returns whether the actor exists and has no current call.
    pub(in crate::program) fn is_idle(&self) -> bool {
        self.is_created && !self.is_called()
    }

    /// Returns the calls that wait in the actor and cannot continue: their numbers, the objects of which each waits for
    /// any, and whether no other call starts before it has finished.
    pub(super) fn parked_calls(&self) -> impl Iterator<Item = (u64, &[u64], bool)> {
        let is_next_alone = self.queue.front().is_some_and(QueuedCall::is_alone);
        let waiting = self.parked.iter().filter(|(_, parked)| !parked.is_ready);
        waiting.map(move |(id, parked)| (*id, &parked.awaits[..], parked.call.is_alone || is_next_alone))
    }

    pub(super) fn queue(&mut self, call: QueuedCall) {
        self.queue.push_back(call);
    }

    /// Removes a queued call.
    pub(super) fn unqueue(&mut self, task: u64, attempt: u32) -> Option<QueuedCall> {
        let is_it = |queued: &QueuedCall| queued.own.id == task && queued.own.attempt == attempt;
        let at = self.queue.iter().position(is_it)?;
        self.queue.remove(at)
    }

    /// Returns the checkpoint that is due: its function, and a context like that of the call before it.
    pub(super) fn due_checkpoint(&self) -> Option<(u32, TaskContext)> {
        let (FinishedCall { own, .. }, function) = (self.unreported.as_ref()?, self.options.checkpoint?);
        let kinds = own.kinds.clone();
        Some((function, TaskContext::new(own.id, own.attempt, own.job, own.seed, kinds, Vec::new(), None)))
    }

    /// Removes the next waiting call that can continue or was withdrawn.
    pub(super) fn next_ready(&mut self) -> Option<ReadyCall<(TaskContext, CurrentCall)>> {
        while let Some(ready) = self.ready.pop_front() {
            let (ReadyCall::Resume(id) | ReadyCall::Abandon(id)) = ready;
            if let Some(ParkedCall { own, call, .. }) = self.parked.remove(&id) {
                return Some(match ready {
                    ReadyCall::Resume(_) => ReadyCall::Resume((own, call)),
                    ReadyCall::Abandon(_) => {
                        // It reports no time: that counts for the task that created the actor.
                        self.clock.of_calls = self.clock.of_calls.saturating_sub(call.nanos);
                        ReadyCall::Abandon((own, call))
                    }
                });
            }
        }
        None
    }

    /// Removes the next queued call, if it may start beside the waiting ones.
    pub(super) fn next_queued(&mut self) -> Option<QueuedCall> {
        let is_alone = self.queue.front()?.is_alone();
        let is_taken = self.parked.values().any(|parked| parked.call.is_alone);
        let is_full = self.parked.len() >= self.options.concurrency.max(1) as usize;
        if is_taken || is_full || is_alone && !self.parked.is_empty() {
            return None;
        }
        self.queue.pop_front()
    }

    /// Makes a call the current one, and keeps the context of the creating task meanwhile.
    pub(super) fn begin_call(&mut self, call: CurrentCall, creator: TaskContext) {
        self.current = Some((CurrentCall { from: self.clock.now(), ..call }, creator));
    }

    /// Ends the current call. Returns it, with the context of the creating task.
    pub(super) fn end_call(&mut self) -> Option<(CurrentCall, TaskContext)> {
        let (mut call, creator) = self.current.take()?;
        self.clock.count(&mut call);
        Some((call, creator))
    }

    /// Makes a call wait until any of the objects has arrived.
    pub(super) fn park(&mut self, own: TaskContext, call: CurrentCall, awaits: Vec<u64>, is_ready: bool) {
        if is_ready {
            self.ready.push_back(ReadyCall::Resume(own.id));
        }
        self.parked.insert(own.id, ParkedCall { own, call, awaits, is_ready });
    }

    /// Lets a waiting call continue. Returns whether the actor waits for nothing but that.
    pub(super) fn resume(&mut self, id: u64) -> bool {
        let Some(parked) = self.parked.get_mut(&id).filter(|parked| !parked.is_ready) else { return false };
        parked.is_ready = true;
        self.ready.push_back(ReadyCall::Resume(id));
        !self.is_called()
    }

    /// Abandons a waiting call. Returns whether there is one.
    pub(super) fn abandon(&mut self, task: u64, attempt: u32) -> bool {
        let is_parked = self.parked.get(&task).is_some_and(|parked| parked.own.attempt == attempt);
        if is_parked {
            self.ready.push_back(ReadyCall::Abandon(task));
        }
        is_parked
    }

    /// Counts a finished call. Returns it if it can be reported now, and keeps it if a checkpoint comes first.
    pub(super) fn finish_call(&mut self, finished: FinishedCall) -> Option<FinishedCall> {
        self.unsaved += 1;
        let is_due = self.options.checkpoint.is_some() && self.unsaved >= self.options.checkpoint_every;
        if !is_due || !self.parked.is_empty() {
            return Some(finished);
        }
        self.unsaved = 0;
        self.unreported = Some(finished);
        None
    }

    /// Removes the call before a checkpoint, which can be reported now.
    pub(super) fn take_unreported(&mut self) -> Option<FinishedCall> {
        self.unreported.take()
    }

    /// Ends the actor.
    pub(super) fn end(mut self) -> UnfinishedCalls {
        let current = self.end_call();
        UnfinishedCalls {
            current,
            unreported: self.unreported,
            parked: self.parked.into_values().map(|parked| (parked.own, parked.call)).collect(),
            queued: self.queue,
            nanos_of_calls: self.clock.of_calls,
        }
    }
}
