//! Actors: resident sandboxes, with their queued, running and waiting calls.
//!
//! The task context in an actor's slot is the one for which its code runs: the current call, or, without a call, the
//! task that created the actor. References of the actor move between these contexts, because it keeps objects between
//! calls.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, ObjectId, TaskKind};
use sandbar_sandbox::{ActorStep, Refusal, TaskCall};

use super::results::finished;
use super::{AttemptReport, OutputValue, TaskContext, WorkerRuntime, task_gone};
use crate::program::clock::monotonic_nanos;
use crate::program::messages::{ActorSettings, AttemptUsage, SentValue, WorkerMessage};
use crate::program::objects::TaskSlot;
use crate::program::worker::words;

/// Maximum bytes of the name in a look-up of an actor.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum number of objects that one call awaits at once.
const AWAITS_MAX: usize = 100_000;
/// Value of an actor handle that refers to this very actor, in postcard.
const THIS_ACTOR: [u8; 1] = [0];
/// An empty list of arguments, in postcard.
const NOTHING: [u8; 1] = [0];

/// A call of an actor that has not started.
pub(in crate::program) struct QueuedCall {
    pub own: TaskContext,
    pub function: u32,
    pub arguments: Box<[u8]>,
    /// Whether the worker notifies the node when the call starts.
    pub is_timed: bool,
}

/// An actor, or a task that is creating one.
pub(in crate::program) struct ResidentActor {
    pub attempt: u32,
    options: ActorSettings,
    is_created: bool,
    queue: VecDeque<QueuedCall>,
    /// Waiting calls by their numbers.
    parked: FxHashMap<u64, ParkedCall>,
    /// Calls that can continue, or that were withdrawn.
    ready: VecDeque<ReadyCall>,
    /// The task that created the actor, while a call is current.
    creator: Option<TaskContext>,
    current_call: Option<CurrentCall>,
    /// Number of calls since the last checkpoint.
    unsaved: u32,
    /// A finished call that is reported only after the checkpoint that follows it.
    unreported: Option<(TaskContext, Result<(), Fault>, AttemptReport)>,
}

struct ParkedCall {
    own: TaskContext,
    call: CurrentCall,
    /// Objects of which it waits for any.
    awaits: Vec<u64>,
    /// Whether it is in the queue of calls that can continue.
    is_ready: bool,
}

#[derive(Debug, Clone, Copy)]
struct CurrentCall {
    /// Start time in nanoseconds of the machine's clock, and GPU time so far.
    started: u64,
    gpu_nanos: u64,
    /// Whether no other call may run or wait beside it.
    is_alone: bool,
    is_checkpoint: bool,
}

enum ReadyCall {
    Resume(u64),
    Abandon(u64),
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
            creator: None,
            current_call: None,
            unsaved: 0,
            unreported: None,
        }
    }

    /// Returns whether a call is current.
    fn is_called(&self) -> bool {
        self.current_call.is_some()
    }

    /// Returns the calls that wait in the actor and cannot continue: their numbers, the objects of which each waits for
    /// any, and whether no other call starts before it has finished.
    pub(super) fn parked_calls(&self) -> impl Iterator<Item = (u64, &[u64], bool)> {
        let next = self.queue.front();
        let is_next_alone =
            next.is_some_and(|next| next.own.kinds.get(next.function as usize) != Some(&TaskKind::Shared));
        let waiting = self.parked.iter().filter(|(_, parked)| !parked.is_ready);
        waiting.map(move |(id, parked)| (*id, &parked.awaits[..], parked.call.is_alone || is_next_alone))
    }

    /// Returns whether the actor exists and has no current call.
    pub(in crate::program) fn is_idle(&self) -> bool {
        self.is_created && !self.is_called()
    }
}

impl WorkerRuntime {
    pub(super) fn find(&mut self, slot: TaskSlot, name: &str) -> Result<ObjectId, Refusal> {
        if name.len() > NAME_BYTES_MAX {
            let message =
                format!("it looks up an actor by a name of {} bytes, the limit is {NAME_BYTES_MAX}", name.len());
            return Err(Refusal::bad_request(message));
        }
        self.announce(slot);
        let object = self.take_ids(1)?;
        let Some(task) = self.task(slot) else { return Err(task_gone()) };
        task.holds.insert(object);
        let (task, attempt, job) = (task.id, task.attempt, task.job);
        self.objects.created((job, object));
        self.send(&WorkerMessage::FindActor { object, task, attempt, name });
        self.publish_in_time();
        Ok(ObjectId(object))
    }

    pub(super) fn awaits(&mut self, slot: TaskSlot, objects: &[u64]) -> Result<(), Refusal> {
        if objects.len() > AWAITS_MAX {
            return Err(Refusal::bad_request(format!(
                "it awaits {} objects, the limit is {AWAITS_MAX}",
                objects.len()
            )));
        }
        self.task(slot).ok_or_else(task_gone)?.awaits = objects.to_vec();
        Ok(())
    }

    /// Lends an actor the objects that its arguments contain: it has handles of them, and may keep them.
    pub(in crate::program) fn lend(&mut self, own: &mut TaskContext, refs: &[u64]) {
        let new: Vec<u64> = refs.iter().copied().filter(|object| own.holds.insert(*object)).collect();
        new.iter().for_each(|object| self.objects.hold((own.job, *object)));
        own.lent.extend(new);
    }

    /// Retains the lent objects that an actor keeps, and tells the node.
    fn retain_lent(&mut self, own: &mut TaskContext) {
        for object in std::mem::take(&mut own.lent) {
            if !own.holds.contains(&object) {
                continue;
            }
            let entry = self.objects.entry((own.job, object));
            if entry.held == 0 {
                entry.held += 1;
                self.send(&WorkerMessage::Retain(object, own.id));
            }
        }
    }

    /// Marks a task's actor as created.
    pub(super) fn actor_created(&mut self, slot: TaskSlot) {
        if let Some(actor) = self.actors.get_mut(&slot) {
            actor.is_created = true;
        }
        let Some(creator) = self.task(slot) else { return };
        // The actor decides which of the constructor's arguments it holds.
        let needs = std::mem::take(&mut creator.needs);
        let job = creator.job;
        creator.returned.clear();
        if let Some(mut own) = self.tasks.get_mut(slot).and_then(Option::take) {
            self.retain_lent(&mut own);
            self.tasks[slot] = Some(own);
        }
        let returned = Ok(vec![(SentValue::Inline(&THIS_ACTOR), Vec::new())]);
        if let Some(creator) = self.tasks.get(slot).and_then(Option::as_ref) {
            let message = finished(creator, returned);
            self.send(&message);
        }
        needs.into_iter().for_each(|object| self.release_needed((job, object)));
        self.publish_in_time();
    }

    /// Queues a call. Returns whether its actor is idle.
    pub(in crate::program) fn queue(&mut self, slot: TaskSlot, call: QueuedCall) -> bool {
        let Some(actor) = self.actors.get_mut(&slot) else { return false };
        actor.queue.push_back(call);
        actor.is_idle()
    }

    /// Returns the next step of an actor without a current call.
    pub(super) fn poll_next(&mut self, slot: TaskSlot) -> Poll<ActorStep> {
        let Some(actor) = self.actors.get_mut(&slot) else { return Poll::Pending };
        if let Some((ended, ..)) = &actor.unreported
            && let Some(function) = actor.options.checkpoint
        {
            let own =
                TaskContext::new(ended.id, ended.attempt, ended.job, ended.seed, ended.kinds.clone(), Vec::new(), None);
            let call = TaskCall { function, call: own.id, seed: own.seed, arguments: NOTHING.into() };
            self.set_current_call(
                slot,
                own,
                CurrentCall { started: monotonic_nanos(), gpu_nanos: 0, is_alone: true, is_checkpoint: true },
            );
            return Poll::Ready(ActorStep::Run(call));
        }
        while let Some(turn) = actor.ready.pop_front() {
            match turn {
                ReadyCall::Resume(id) => {
                    let Some(ParkedCall { own, call, .. }) = actor.parked.remove(&id) else { continue };
                    self.set_current_call(slot, own, call);
                    return Poll::Ready(ActorStep::Resume(id));
                }
                ReadyCall::Abandon(id) => {
                    let Some(ParkedCall { own, .. }) = actor.parked.remove(&id) else { continue };
                    self.reject(&own, Fault::new(Code::Cancelled, "it was cancelled while it waited"));
                    return Poll::Ready(ActorStep::Abandon(id));
                }
            }
        }
        let Some(QueuedCall { own, function, .. }) = actor.queue.front() else { return Poll::Pending };
        let is_alone = own.kinds.get(*function as usize) != Some(&TaskKind::Shared);
        let is_taken = actor.parked.values().any(|parked| parked.call.is_alone);
        let is_full = actor.parked.len() >= actor.options.concurrency.max(1) as usize;
        if is_taken || is_full || is_alone && !actor.parked.is_empty() {
            return Poll::Pending;
        }
        let queued = actor.queue.pop_front();
        let Some(QueuedCall { own, function, arguments, is_timed }) = queued else { return Poll::Pending };
        if is_timed {
            self.send(&WorkerMessage::CallStarted(own.id, own.attempt));
        }
        let call = TaskCall { function, call: own.id, seed: own.seed, arguments };
        self.set_current_call(
            slot,
            own,
            CurrentCall { started: monotonic_nanos(), gpu_nanos: 0, is_alone, is_checkpoint: false },
        );
        Poll::Ready(ActorStep::Run(call))
    }

    /// Makes a call the current one of an actor.
    fn set_current_call(&mut self, slot: TaskSlot, mut own: TaskContext, call: CurrentCall) {
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        actor.current_call = Some(call);
        let Some(mut creator) = self.tasks.get_mut(slot).and_then(Option::take) else { return };
        // Objects of another job are held only during the call, and objects of the actor's job are not accessible
        // meanwhile.
        if own.job == creator.job {
            // An object that both contexts hold has two references.
            let twice: Vec<u64> = own.holds.intersection(&creator.holds).copied().collect();
            own.holds.extend(std::mem::take(&mut creator.holds));
            twice.into_iter().for_each(|object| self.objects.release((own.job, object)));
        }
        actor.creator = Some(creator);
        self.memory.atomic(words::CURRENT_CALL).store(own.id, Relaxed);
        self.tasks[slot] = Some(own);
    }

    /// Publishes the current call again, after other tasks of this worker have run.
    pub(super) fn publish_current_call(&self, slot: TaskSlot) {
        if self.actors.get(&slot).is_some_and(ResidentActor::is_called)
            && let Some(Some(own)) = self.tasks.get(slot)
        {
            self.memory.atomic(words::CURRENT_CALL).store(own.id, Relaxed);
        }
    }

    /// Ends the current call, and makes the creating task current again.
    fn clear_current_call(&mut self, slot: TaskSlot) -> Option<(TaskContext, CurrentCall)> {
        let actor = self.actors.get_mut(&slot)?;
        let call = actor.current_call.take()?;
        let mut creator = actor.creator.take()?;
        let mut own = self.tasks.get_mut(slot)?.take()?;
        if own.job == creator.job {
            creator.holds = std::mem::take(&mut own.holds);
        }
        self.tasks[slot] = Some(creator);
        self.memory.atomic(words::CURRENT_CALL).store(u64::MAX, Relaxed);
        Some((own, call))
    }

    /// Handles the return of the current call, which has finished or waits. `gpu_nanos` is its GPU time since it last
    /// continued.
    pub(super) fn call_returned(
        &mut self,
        slot: TaskSlot,
        answer: Result<bool, Fault>,
        (memory_bytes, gpu_nanos): (u64, u64),
    ) {
        if let Some(mut own) = self.tasks.get_mut(slot).and_then(Option::take) {
            self.retain_lent(&mut own);
            self.tasks[slot] = Some(own);
        }
        let Some((own, mut call)) = self.clear_current_call(slot) else { return };
        if call.is_checkpoint {
            return self.finish_checkpoint(slot, own, answer);
        }
        call.gpu_nanos = call.gpu_nanos.saturating_add(gpu_nanos);
        let result = match answer {
            Ok(false) if !own.awaits.is_empty() => return self.park(slot, own, call),
            Ok(false) => Err(Fault::new(Code::BadOutput, "it waits for nothing")),
            Ok(true) => Ok(()),
            Err(fault) => Err(fault),
        };
        let CurrentCall { started, gpu_nanos, .. } = call;
        let nanos = monotonic_nanos().saturating_sub(started);
        let usage = AttemptUsage { started, nanos, waited_nanos: 0, gpu_nanos, memory_bytes };
        let report = AttemptReport { usage, ..AttemptReport::default() };
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        actor.unsaved += 1;
        let is_due = actor.options.checkpoint.is_some() && actor.unsaved >= actor.options.checkpoint_every;
        if is_due && actor.parked.is_empty() {
            actor.unsaved = 0;
            actor.unreported = Some((own, result, report));
        } else {
            self.finish(own, result, report);
        }
    }

    /// Handles the result of a checkpoint, and reports the call before it.
    fn finish_checkpoint(&mut self, slot: TaskSlot, checkpoint: TaskContext, answer: Result<bool, Fault>) {
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        let Some((own, result, report)) = actor.unreported.take() else { return };
        let mut saved = None;
        if answer == Ok(true)
            && let Some((value, refs)) = checkpoint.returned.first()
            && let Ok(object) = self.take_ids(1)
        {
            let (task, refs) = (checkpoint.id, refs.clone());
            let stored = match value {
                OutputValue::Inline(bytes) => {
                    self.send(&WorkerMessage::Put { object, task, value: SentValue::Inline(bytes), refs });
                    true
                }
                OutputValue::File(file) => {
                    let sent = self.send_file(file).is_ok();
                    if sent {
                        self.send(&WorkerMessage::Put { object, task, value: file.named(), refs });
                    }
                    sent
                }
            };
            saved = stored.then_some(object);
        } else if let Err(fault) = &answer {
            let line = format!("the checkpoint of the actor failed: {fault}");
            self.send(&WorkerMessage::Log(own.id, sandbar_sandbox::Level::Warn as u8, &line));
        }
        self.finish(own, result, AttemptReport { saved, ..report });
        if let Some(object) = saved {
            self.send(&WorkerMessage::Release(object, 1));
        }
    }

    /// Makes a call wait for objects, so that the actor can run other calls.
    fn park(&mut self, slot: TaskSlot, mut own: TaskContext, call: CurrentCall) {
        let (id, job) = (own.id, own.job);
        let awaits = std::mem::take(&mut own.awaits);
        let mut is_ready = false;
        for object in &awaits {
            is_ready |= self.objects.value((job, *object)).is_some();
        }
        if !is_ready {
            // The objects are retained until the call has them, including those that were only lent.
            let holder = self.tasks.get_mut(slot).and_then(Option::as_mut).filter(|creator| creator.job == job);
            let holds = holder.map_or(&mut own.holds, |creator| &mut creator.holds);
            let new: Vec<u64> = awaits.iter().copied().filter(|object| holds.insert(*object)).collect();
            new.into_iter().for_each(|object| self.objects.hold((job, object)));
            for object in &awaits {
                let entry = self.objects.entry((job, *object));
                if entry.waiters.last() != Some(&(slot, id)) {
                    entry.waiters.push((slot, id));
                }
                if !std::mem::replace(&mut entry.requested, true) {
                    self.send(&WorkerMessage::RequestObject(*object, id));
                }
            }
        }
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        if is_ready {
            actor.ready.push_back(ReadyCall::Resume(id));
        }
        actor.parked.insert(id, ParkedCall { own, call, awaits, is_ready });
    }

    /// Queues a waiting call, because one of its objects has arrived.
    pub(super) fn resume_call(&mut self, slot: TaskSlot, id: u64) {
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        let is_called = actor.is_called();
        let Some(parked) = actor.parked.get_mut(&id).filter(|parked| !parked.is_ready) else { return };
        parked.is_ready = true;
        actor.ready.push_back(ReadyCall::Resume(id));
        if !is_called {
            self.woken.push(slot);
        }
    }

    /// Withdraws a call. Returns whether the actor must continue to drop it.
    pub(in crate::program) fn withdraw(&mut self, slot: TaskSlot, task: u64, attempt: u32) -> bool {
        let Some(actor) = self.actors.get_mut(&slot) else { return false };
        let is_it = |own: &TaskContext| own.id == task && own.attempt == attempt;
        if let Some(at) = actor.queue.iter().position(|queued| is_it(&queued.own)) {
            if let Some(queued) = actor.queue.remove(at) {
                self.reject(&queued.own, Fault::new(Code::Cancelled, "it was cancelled before it started"));
            }
            return false;
        }
        let is_parked = actor.parked.get(&task).is_some_and(|parked| is_it(&parked.own));
        if is_parked {
            actor.ready.push_back(ReadyCall::Abandon(task));
        }
        is_parked && actor.is_idle()
    }

    /// Ends an actor and its calls.
    pub(in crate::program) fn end_actor(
        &mut self,
        mut own: TaskContext,
        mut actor: ResidentActor,
        fault: Fault,
        report: AttemptReport,
    ) {
        let lost = AttemptReport { lost: true, ..AttemptReport::default() };
        let death = |of: &str| Fault::new(Code::ActorDied, format!("the actor died while {of}: {}", fault.message));
        if let Some(mut creator) = actor.creator.take() {
            if own.job == creator.job {
                creator.holds = std::mem::take(&mut own.holds);
            }
            let call = std::mem::replace(&mut own, creator);
            match actor.unreported.take() {
                Some((ended, ..)) => self.finish(ended, Err(death("its checkpoint ran")), lost),
                None => self.finish(call, Err(fault.clone()), AttemptReport { lost: true, ..report }),
            }
        }
        for parked in actor.parked.into_values() {
            self.finish(parked.own, Err(death("this call waited")), lost);
        }
        for QueuedCall { own, .. } in actor.queue {
            self.send(&WorkerMessage::CallDropped(own.id));
            self.release_all(&own);
        }
        self.finish(own, Err(fault), report);
    }

    /// Drops a call of an actor that has left this worker.
    pub(in crate::program) fn drop_call(&mut self, own: &TaskContext) {
        self.send(&WorkerMessage::CallDropped(own.id));
        self.release_all(own);
        self.publish_in_time();
    }
}
