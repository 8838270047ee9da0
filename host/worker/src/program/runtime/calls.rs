//! Calls of the actors of a worker.

use std::task::Poll;

use sandbar_core::{Code, Fault, ObjectId};
use sandbar_sandbox::{ActorStep, Level, Refusal, TaskCall};

use super::WorkerRuntime;
use super::actors::{CurrentCall, FinishedCall, QueuedCall, ReadyCall, ResidentActor, UnfinishedCalls};
use super::context::{AttemptReport, TaskContext};
use super::results::finished;
use crate::program::clock::monotonic_nanos;
use crate::program::messages::{AttemptUsage, SentValue, WorkerMessage};
use crate::program::objects::{ObjectKey, TaskSlot, Waiter};

/// Maximum bytes of the name in a lookup of an actor.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum number of objects that one call awaits at once.
const AWAITS_MAX: usize = 100_000;
/// Value of an actor handle that refers to this very actor, in postcard.
const THIS_ACTOR: [u8; 1] = [0];
/// An empty list of arguments, in postcard.
const NO_ARGUMENTS: [u8; 1] = [0];

impl WorkerRuntime {
    pub(super) fn find(&mut self, slot: TaskSlot, name: &str) -> Result<ObjectId, Refusal> {
        if name.len() > NAME_BYTES_MAX {
            let message =
                format!("it looks up an actor by a name of {} bytes, the limit is {NAME_BYTES_MAX}", name.len());
            return Err(Refusal::bad_request(message));
        }
        self.announce(slot);
        let object = self.take_ids(1)?;
        let task = self.tasks.require(slot)?;
        task.holds.insert(object);
        let (task, attempt, job) = (task.id, task.attempt, task.job);
        self.objects.created(ObjectKey::new(job, object));
        self.node.send(&WorkerMessage::FindActor { object, task, attempt, name });
        self.node.publish_in_time();
        Ok(ObjectId(object))
    }

    pub(super) fn awaits(&mut self, slot: TaskSlot, objects: &[u64]) -> Result<(), Refusal> {
        if objects.len() > AWAITS_MAX {
            return Err(Refusal::bad_request(format!(
                "it awaits {} objects, the limit is {AWAITS_MAX}",
                objects.len()
            )));
        }
        self.tasks.require(slot)?.awaits = objects.to_vec();
        Ok(())
    }

    /// Lends an actor the objects that its arguments contain: it has handles of them, and may keep them.
    pub(in crate::program) fn lend(&mut self, own: &mut TaskContext, refs: &[u64]) {
        let new: Vec<u64> = refs.iter().copied().filter(|object| own.holds.insert(*object)).collect();
        new.iter().for_each(|object| self.objects.hold(ObjectKey::new(own.job, *object)));
        own.lent.extend(new);
    }

    /// Retains the lent objects that an actor keeps, and notifies the node.
    fn retain_lent(&mut self, slot: TaskSlot) {
        let Some(own) = self.tasks.get_mut(slot) else { return };
        for object in std::mem::take(&mut own.lent) {
            if own.holds.contains(&object) && self.objects.entry(ObjectKey::new(own.job, object)).retain() {
                self.node.send(&WorkerMessage::Retain(object, own.id));
            }
        }
    }

    /// Marks a task's actor as created.
    pub(super) fn actor_created(&mut self, slot: TaskSlot) {
        if let Some(actor) = self.actors.get_mut(&slot) {
            actor.set_created();
        }
        self.retain_lent(slot);
        let Some(creator) = self.tasks.get_mut(slot) else { return };
        // The actor decides which of the constructor's arguments it holds.
        let needs = std::mem::take(&mut creator.needs);
        let job = creator.job;
        creator.returned.clear();
        let returned = Ok(vec![(SentValue::Inline(&THIS_ACTOR), Vec::new())]);
        self.node.send(&finished(creator, returned));
        needs.into_iter().for_each(|object| self.release_needed(ObjectKey::new(job, object)));
        self.node.publish_in_time();
    }

    /// Queues a call of an actor. Returns whether the actor is idle; false if there is none.
    pub(in crate::program) fn queue_call(&mut self, slot: TaskSlot, call: QueuedCall) -> bool {
        let Some(actor) = self.actors.get_mut(&slot) else { return false };
        actor.queue(call);
        actor.is_idle()
    }

    /// Returns the next step of an actor without a current call.
    pub(super) fn poll_next(&mut self, slot: TaskSlot) -> Poll<ActorStep> {
        let Some(actor) = self.actors.get_mut(&slot) else { return Poll::Pending };
        if let Some((function, own)) = actor.due_checkpoint() {
            let call = TaskCall { function, call: own.id, seed: own.seed, arguments: NO_ARGUMENTS.into() };
            self.begin_call(slot, own, CurrentCall::start_checkpoint());
            return Poll::Ready(ActorStep::Run(call));
        }
        match actor.next_ready() {
            Some(ReadyCall::Resume((own, call))) => {
                let id = own.id;
                self.begin_call(slot, own, call);
                return Poll::Ready(ActorStep::Resume(id));
            }
            Some(ReadyCall::Abandon((own, _))) => {
                self.reject(&own, Fault::new(Code::Cancelled, "it was cancelled while it waited"));
                return Poll::Ready(ActorStep::Abandon(own.id));
            }
            None => {}
        }
        let Some(queued) = actor.next_queued() else { return Poll::Pending };
        let is_alone = queued.is_alone();
        let QueuedCall { own, function, arguments, is_timed } = queued;
        if is_timed {
            self.node.send(&WorkerMessage::CallStarted(own.id, own.attempt));
        }
        let call = TaskCall { function, call: own.id, seed: own.seed, arguments };
        self.begin_call(slot, own, CurrentCall::start(is_alone));
        Poll::Ready(ActorStep::Run(call))
    }

    /// Makes a call the current one of an actor.
    fn begin_call(&mut self, slot: TaskSlot, mut own: TaskContext, call: CurrentCall) {
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        let id = own.id;
        let creator = self.tasks.exchange(slot, |mut creator| {
            // Objects of another job are held only during the call, and objects of the actor's job are not accessible
            // meanwhile.
            if own.job == creator.job {
                // An object that both contexts hold has two references.
                let twice: Vec<u64> = own.holds.intersection(&creator.holds).copied().collect();
                own.holds.extend(std::mem::take(&mut creator.holds));
                twice.into_iter().for_each(|object| self.objects.release(ObjectKey::new(own.job, object)));
            }
            (own, creator)
        });
        if let Some(creator) = creator {
            actor.begin_call(call, creator);
            self.node.show_current_call(Some(id));
        }
    }

    /// Shows the node the current call again, after other tasks of this worker have run.
    pub(super) fn show_current_call(&self, slot: TaskSlot) {
        if self.actors.get(&slot).is_some_and(ResidentActor::is_called)
            && let Some(own) = self.tasks.get(slot)
        {
            self.node.show_current_call(Some(own.id));
        }
    }

    /// Ends the current call, and makes the creating task current again.
    fn end_call(&mut self, slot: TaskSlot) -> Option<(TaskContext, CurrentCall)> {
        let (call, mut creator) = self.actors.get_mut(&slot)?.end_call()?;
        let own = self.tasks.exchange(slot, |mut own| {
            if own.job == creator.job {
                creator.holds = std::mem::take(&mut own.holds);
            }
            (creator, own)
        })?;
        self.node.show_current_call(None);
        Some((own, call))
    }

    /// Handles the return of the current call, which has finished or waits. `gpu_nanos` is its GPU time since it last
    /// continued.
    pub(super) fn call_returned(
        &mut self,
        slot: TaskSlot,
        outcome: Result<bool, Fault>,
        memory_bytes: u64,
        gpu_nanos: u64,
    ) {
        self.retain_lent(slot);
        let Some((own, mut call)) = self.end_call(slot) else { return };
        if call.is_checkpoint {
            return self.finish_checkpoint(slot, own, outcome);
        }
        call.gpu_nanos = call.gpu_nanos.saturating_add(gpu_nanos);
        let result = match outcome {
            Ok(false) if !own.awaits.is_empty() => return self.park(slot, own, call),
            Ok(false) => Err(Fault::new(Code::BadOutput, "it waits for nothing")),
            Ok(true) => Ok(()),
            Err(fault) => Err(fault),
        };
        let report = AttemptReport { usage: usage_of(&call, memory_bytes), ..AttemptReport::default() };
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        if let Some(FinishedCall { own, result, report }) = actor.finish_call(FinishedCall { own, result, report }) {
            self.finish(own, result, report);
        }
    }

    /// Handles the result of a checkpoint, and reports the call before it.
    fn finish_checkpoint(&mut self, slot: TaskSlot, checkpoint: TaskContext, outcome: Result<bool, Fault>) {
        let Some(actor) = self.actors.get_mut(&slot) else { return };
        let Some(FinishedCall { own, result, report }) = actor.take_unreported() else { return };
        let mut saved = None;
        if outcome == Ok(true)
            && let Some((value, refs)) = checkpoint.returned.first()
            && let Ok(object) = self.take_ids(1)
        {
            if let Ok(value) = self.send_value(value) {
                let (task, refs) = (checkpoint.id, refs.clone());
                self.node.send(&WorkerMessage::Put { object, task, value, refs });
                saved = Some(object);
            }
        } else if let Err(fault) = &outcome {
            let line = format!("the checkpoint of the actor failed: {fault}");
            self.node.send(&WorkerMessage::Log(own.id, Level::Warn as u8, &line));
        }
        self.finish(own, result, AttemptReport { saved, ..report });
        if let Some(object) = saved {
            self.node.send(&WorkerMessage::Release(object, 1));
        }
    }

    /// Makes a call wait for objects, so that the actor can run other calls.
    fn park(&mut self, slot: TaskSlot, mut own: TaskContext, call: CurrentCall) {
        let (id, job) = (own.id, own.job);
        let awaits = std::mem::take(&mut own.awaits);
        let mut is_ready = false;
        for object in &awaits {
            is_ready |= self.objects.value(ObjectKey::new(job, *object)).is_some();
        }
        if !is_ready {
            // The objects are retained until the call has them, including those that were only lent.
            let holder = self.tasks.get_mut(slot).filter(|creator| creator.job == job);
            let holds = holder.map_or(&mut own.holds, |creator| &mut creator.holds);
            let new: Vec<u64> = awaits.iter().copied().filter(|object| holds.insert(*object)).collect();
            new.into_iter().for_each(|object| self.objects.hold(ObjectKey::new(job, object)));
            for object in &awaits {
                let entry = self.objects.entry(ObjectKey::new(job, *object));
                entry.add_waiter(Waiter { slot, task: id });
                if entry.request() {
                    self.node.send(&WorkerMessage::RequestObject(*object, id));
                }
            }
        }
        if let Some(actor) = self.actors.get_mut(&slot) {
            actor.park(own, call, awaits, is_ready);
        }
    }

    /// Lets a waiting call continue, because one of its objects has arrived.
    pub(super) fn resume_call(&mut self, waiter: Waiter) {
        if self.actors.get_mut(&waiter.slot).is_some_and(|actor| actor.resume(waiter.task)) {
            self.tasks.wake(waiter.slot);
        }
    }

    /// Withdraws a call. Returns whether the actor must continue to drop it.
    pub(in crate::program) fn withdraw(&mut self, slot: TaskSlot, task: u64, attempt: u32) -> bool {
        let Some(actor) = self.actors.get_mut(&slot) else { return false };
        if let Some(queued) = actor.unqueue(task, attempt) {
            self.reject(&queued.own, Fault::new(Code::Cancelled, "it was cancelled before it started"));
            return false;
        }
        actor.abandon(task, attempt) && actor.is_idle()
    }

    /// Ends an actor and its calls. `own` is the context of its slot.
    pub(in crate::program) fn end_actor(
        &mut self,
        mut own: TaskContext,
        actor: ResidentActor,
        fault: Fault,
        report: AttemptReport,
    ) {
        let lost = |usage| AttemptReport { usage, lost: true, ..AttemptReport::default() };
        let death = |of: &str| Fault::new(Code::ActorDied, format!("the actor died while {of}: {}", fault.message));
        let UnfinishedCalls { current, unreported, parked, queued, nanos_of_calls } = actor.end();
        let memory_bytes = report.usage.memory_bytes;
        if let Some((call, mut creator)) = current {
            let usage = usage_of(&call, memory_bytes);
            if own.job == creator.job {
                creator.holds = std::mem::take(&mut own.holds);
            }
            let called = std::mem::replace(&mut own, creator);
            match unreported {
                Some(FinishedCall { own, report, .. }) => {
                    self.finish(own, Err(death("its checkpoint ran")), lost(report.usage));
                }
                None => self.finish(called, Err(fault.clone()), lost(usage)),
            }
        }
        for (parked, call) in parked {
            self.finish(parked, Err(death("this call waited")), lost(usage_of(&call, memory_bytes)));
        }
        for QueuedCall { own, .. } in queued {
            self.node.send(&WorkerMessage::CallDropped(own.id));
            self.release_all(&own);
        }
        let mut report = report;
        report.usage.nanos = report.usage.nanos.saturating_sub(nanos_of_calls);
        self.finish(own, Err(fault), report);
    }

    /// Drops a call of an actor that has left this worker.
    pub(in crate::program) fn drop_call(&mut self, own: &TaskContext) {
        self.node.send(&WorkerMessage::CallDropped(own.id));
        self.release_all(own);
        self.node.publish_in_time();
    }
}

/// Returns what a call of an actor has used so far.
fn usage_of(call: &CurrentCall, memory_bytes: u64) -> AttemptUsage {
    let CurrentCall { started, gpu_nanos, nanos, .. } = *call;
    let waited_nanos = monotonic_nanos().saturating_sub(started).saturating_sub(nanos);
    AttemptUsage { started, nanos, waited_nanos, gpu_nanos, memory_bytes }
}
