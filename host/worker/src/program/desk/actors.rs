//! Actors: sandboxes that stay, and the calls that wait for them, run or wait in them.
//!
//! At a resident's place among the tasks stands who its code runs for: the call at hand, or, while there is none, the task
//! that made it. What the actor holds goes from the one to the other: it keeps objects between calls.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, ObjectId, TaskKind};
use sandbar_sandbox::{Next, Refusal, TaskCall};

use super::ended::finished;
use super::{Cost, Desk, Returned, TaskDesk, gone};
use crate::program::clock::monotonic_nanos;
use crate::program::link::words;
use crate::program::messages::{MakeOptions, Took, Up, ValueUp};
use crate::program::objects::Slot;

/// A name by which an actor is looked for has so many bytes at most.
const NAME_BYTES_MAX: usize = 1024;
/// What is awaited at once by one call.
const AWAITS_MAX: usize = 100_000;
/// The value of a handle: that no other actor is meant, in postcard.
const THIS_ACTOR: [u8; 1] = [0];
/// No arguments, in postcard.
const NOTHING: [u8; 1] = [0];

/// A call of an actor that is not begun.
pub(in crate::program) struct Queued {
    pub own: TaskDesk,
    pub function: u32,
    pub arguments: Box<[u8]>,
    /// Whether the node is told when it is begun.
    pub is_timed: bool,
}

/// An actor, or what is going to be one.
pub(in crate::program) struct Resident {
    pub attempt: u32,
    options: MakeOptions,
    is_made: bool,
    queue: VecDeque<Queued>,
    /// Calls that wait, by their numbers.
    parked: FxHashMap<u64, Parked>,
    /// What can go on, or is not wanted any more.
    ready: VecDeque<Turn>,
    /// The task that made it, while a call is at hand.
    maker: Option<TaskDesk>,
    at_hand: Option<AtHand>,
    /// Calls since it was saved.
    unsaved: u32,
    /// A call that has ended, and is not said to have before the actor is saved.
    unsaid: Option<(TaskDesk, Result<(), Fault>, Cost)>,
}

struct Parked {
    own: TaskDesk,
    call: AtHand,
    /// The objects of which it waits for any.
    awaits: Vec<u64>,
    /// Whether it stands among those that can go on.
    is_ready: bool,
}

#[derive(Debug, Clone, Copy)]
struct AtHand {
    /// When it began, in nanoseconds of the machine's clock, and how long GPUs have worked for it.
    begun: u64,
    gpu_nanos: u64,
    /// It has the actor to itself.
    is_alone: bool,
    is_checkpoint: bool,
}

enum Turn {
    Resume(u64),
    Abandon(u64),
}

impl Resident {
    pub(in crate::program) fn new(attempt: u32, options: MakeOptions) -> Resident {
        Resident {
            attempt,
            options,
            is_made: false,
            queue: VecDeque::new(),
            parked: FxHashMap::default(),
            ready: VecDeque::new(),
            maker: None,
            at_hand: None,
            unsaved: 0,
            unsaid: None,
        }
    }

    /// Whether a call of it is at hand.
    fn is_called(&self) -> bool {
        self.at_hand.is_some()
    }

    /// Calls that wait beside each other and can't go on: their numbers, the objects of which each waits for any, and whether
    /// no other call begins before it has ended.
    pub(super) fn parked_calls(&self) -> impl Iterator<Item = (u64, &[u64], bool)> {
        let next = self.queue.front();
        let is_next_alone =
            next.is_some_and(|next| next.own.kinds.get(next.function as usize) != Some(&TaskKind::Shared));
        let waiting = self.parked.iter().filter(|(_, parked)| !parked.is_ready);
        waiting.map(move |(id, parked)| (*id, &parked.awaits[..], parked.call.is_alone || is_next_alone))
    }

    /// Whether it is made, and no call of it is at hand.
    pub(in crate::program) fn is_idle(&self) -> bool {
        self.is_made && !self.is_called()
    }
}

impl Desk {
    pub(super) fn find(&mut self, slot: Slot, name: &str) -> Result<ObjectId, Refusal> {
        if name.len() > NAME_BYTES_MAX {
            let message = format!("it looks for an actor by a name of {} bytes of {NAME_BYTES_MAX}", name.len());
            return Err(Refusal::bad_request(message));
        }
        self.announce(slot);
        let object = self.take_ids(1)?;
        let Some(task) = self.task(slot) else { return Err(gone()) };
        task.holds.insert(object);
        let (task, attempt, job) = (task.id, task.attempt, task.job);
        self.objects.made((job, object));
        self.say(&Up::Find { object, task, attempt, name });
        self.publish_in_time();
        Ok(ObjectId(object))
    }

    pub(super) fn awaits(&mut self, slot: Slot, objects: &[u64]) -> Result<(), Refusal> {
        if objects.len() > AWAITS_MAX {
            return Err(Refusal::bad_request(format!("it awaits {} objects of {AWAITS_MAX}", objects.len())));
        }
        self.task(slot).ok_or_else(gone)?.awaits = objects.to_vec();
        Ok(())
    }

    /// What an actor's arguments contain: it has handles to that, and keeps those that it likes.
    pub(in crate::program) fn lend(&mut self, own: &mut TaskDesk, refs: &[u64]) {
        let new: Vec<u64> = refs.iter().copied().filter(|object| own.holds.insert(*object)).collect();
        new.iter().for_each(|object| self.objects.hold((own.job, *object)));
        own.lent.extend(new);
    }

    /// What an actor keeps of what it was lent is held here from now on, as the node sees it.
    fn keep_lent(&mut self, own: &mut TaskDesk) {
        for object in std::mem::take(&mut own.lent) {
            if !own.holds.contains(&object) {
                continue;
            }
            let entry = self.objects.entry((own.job, object));
            if entry.held == 0 {
                entry.held += 1;
                self.say(&Up::Held(object, own.id));
            }
        }
    }

    /// A task has made an actor.
    pub(super) fn made(&mut self, slot: Slot) {
        if let Some(resident) = self.residents.get_mut(&slot) {
            resident.is_made = true;
        }
        let Some(maker) = self.task(slot) else { return };
        // What it is made with it holds or not, as it likes.
        let needs = std::mem::take(&mut maker.needs);
        let job = maker.job;
        maker.returned.clear();
        if let Some(mut own) = self.tasks.get_mut(slot).and_then(Option::take) {
            self.keep_lent(&mut own);
            self.tasks[slot] = Some(own);
        }
        let returned = Ok(vec![(ValueUp::Inline(&THIS_ACTOR), Vec::new())]);
        if let Some(maker) = self.tasks.get(slot).and_then(Option::as_ref) {
            let said = finished(maker, returned);
            self.say(&said);
        }
        needs.into_iter().for_each(|object| self.unneeded((job, object)));
        self.publish_in_time();
    }

    /// A call waits for its actor. Says whether that has nothing else to do.
    pub(in crate::program) fn queue(&mut self, slot: Slot, call: Queued) -> bool {
        let Some(resident) = self.residents.get_mut(&slot) else { return false };
        resident.queue.push_back(call);
        resident.is_idle()
    }

    /// What an actor does next, which has nothing at hand.
    pub(super) fn poll_next(&mut self, slot: Slot) -> Poll<Next> {
        let Some(resident) = self.residents.get_mut(&slot) else { return Poll::Pending };
        if let Some((ended, ..)) = &resident.unsaid
            && let Some(function) = resident.options.checkpoint
        {
            let own =
                TaskDesk::new(ended.id, ended.attempt, ended.job, ended.seed, ended.kinds.clone(), Vec::new(), None);
            let call = TaskCall { function, call: own.id, seed: own.seed, arguments: NOTHING.into() };
            self.take_up(
                slot,
                own,
                AtHand { begun: monotonic_nanos(), gpu_nanos: 0, is_alone: true, is_checkpoint: true },
            );
            return Poll::Ready(Next::Run(call));
        }
        while let Some(turn) = resident.ready.pop_front() {
            match turn {
                Turn::Resume(id) => {
                    let Some(Parked { own, call, .. }) = resident.parked.remove(&id) else { continue };
                    self.take_up(slot, own, call);
                    return Poll::Ready(Next::Resume(id));
                }
                Turn::Abandon(id) => {
                    let Some(Parked { own, .. }) = resident.parked.remove(&id) else { continue };
                    self.refused(&own, Fault::new(Code::Cancelled, "it was ended while it waited"));
                    return Poll::Ready(Next::Abandon(id));
                }
            }
        }
        let Some(Queued { own, function, .. }) = resident.queue.front() else { return Poll::Pending };
        let is_alone = own.kinds.get(*function as usize) != Some(&TaskKind::Shared);
        let is_taken = resident.parked.values().any(|parked| parked.call.is_alone);
        let is_full = resident.parked.len() >= resident.options.concurrency.max(1) as usize;
        if is_taken || is_full || is_alone && !resident.parked.is_empty() {
            return Poll::Pending;
        }
        let queued = resident.queue.pop_front();
        let Some(Queued { own, function, arguments, is_timed }) = queued else { return Poll::Pending };
        if is_timed {
            self.say(&Up::Called(own.id, own.attempt));
        }
        let call = TaskCall { function, call: own.id, seed: own.seed, arguments };
        self.take_up(slot, own, AtHand { begun: monotonic_nanos(), gpu_nanos: 0, is_alone, is_checkpoint: false });
        Poll::Ready(Next::Run(call))
    }

    /// The actor's code runs for a call from here on.
    fn take_up(&mut self, slot: Slot, mut own: TaskDesk, call: AtHand) {
        let Some(resident) = self.residents.get_mut(&slot) else { return };
        resident.at_hand = Some(call);
        let Some(mut maker) = self.tasks.get_mut(slot).and_then(Option::take) else { return };
        // What is of another job is held as long as the call, and nothing of the actor's job is found meanwhile.
        if own.job == maker.job {
            // What it was lent twice is held here twice.
            let twice: Vec<u64> = own.holds.intersection(&maker.holds).copied().collect();
            own.holds.extend(std::mem::take(&mut maker.holds));
            twice.into_iter().for_each(|object| self.objects.release((own.job, object)));
        }
        resident.maker = Some(maker);
        self.memory.atomic(words::CALL).store(own.id, Relaxed);
        self.tasks[slot] = Some(own);
    }

    /// It goes on running for a call that has waited, where others of this worker ran meanwhile.
    pub(super) fn show_call(&self, slot: Slot) {
        if self.residents.get(&slot).is_some_and(Resident::is_called)
            && let Some(Some(own)) = self.tasks.get(slot)
        {
            self.memory.atomic(words::CALL).store(own.id, Relaxed);
        }
    }

    /// And for none any more.
    fn put_down(&mut self, slot: Slot) -> Option<(TaskDesk, AtHand)> {
        let resident = self.residents.get_mut(&slot)?;
        let call = resident.at_hand.take()?;
        let mut maker = resident.maker.take()?;
        let mut own = self.tasks.get_mut(slot)?.take()?;
        if own.job == maker.job {
            maker.holds = std::mem::take(&mut own.holds);
        }
        self.tasks[slot] = Some(maker);
        self.memory.atomic(words::CALL).store(u64::MAX, Relaxed);
        Some((own, call))
    }

    /// The call at hand has ended, or waits. Since it went on, GPUs worked for it for so long.
    pub(super) fn answered(&mut self, slot: Slot, answer: Result<bool, Fault>, (memory_bytes, gpu_nanos): (u64, u64)) {
        if let Some(mut own) = self.tasks.get_mut(slot).and_then(Option::take) {
            self.keep_lent(&mut own);
            self.tasks[slot] = Some(own);
        }
        let Some((own, mut call)) = self.put_down(slot) else { return };
        if call.is_checkpoint {
            return self.saved(slot, own, answer);
        }
        call.gpu_nanos = call.gpu_nanos.saturating_add(gpu_nanos);
        let result = match answer {
            Ok(false) if !own.awaits.is_empty() => return self.park(slot, own, call),
            Ok(false) => Err(Fault::new(Code::BadOutput, "it waits, and not for anything")),
            Ok(true) => Ok(()),
            Err(fault) => Err(fault),
        };
        let AtHand { begun, gpu_nanos, .. } = call;
        let nanos = monotonic_nanos().saturating_sub(begun);
        let took = Took { begun, nanos, waited: 0, gpu_nanos, memory_bytes };
        let cost = Cost { took, ..Cost::default() };
        let Some(resident) = self.residents.get_mut(&slot) else { return };
        resident.unsaved += 1;
        let is_due = resident.options.checkpoint.is_some() && resident.unsaved >= resident.options.checkpoint_every;
        if is_due && resident.parked.is_empty() {
            resident.unsaved = 0;
            resident.unsaid = Some((own, result, cost));
        } else {
            self.ended(own, result, cost);
        }
    }

    /// The actor has said what it can be made anew with.
    fn saved(&mut self, slot: Slot, checkpoint: TaskDesk, answer: Result<bool, Fault>) {
        let Some(resident) = self.residents.get_mut(&slot) else { return };
        let Some((own, result, cost)) = resident.unsaid.take() else { return };
        let mut saved = None;
        if answer == Ok(true)
            && let Some((value, refs)) = checkpoint.returned.first()
            && let Ok(object) = self.take_ids(1)
        {
            let (task, refs) = (checkpoint.id, refs.clone());
            let stored = match value {
                Returned::Inline(bytes) => {
                    self.say(&Up::Put { object, task, value: ValueUp::Inline(bytes), refs });
                    true
                }
                Returned::File(file) => {
                    let sent = self.send_file(file).is_ok();
                    if sent {
                        self.say(&Up::Put { object, task, value: file.named(), refs });
                    }
                    sent
                }
            };
            saved = stored.then_some(object);
        } else if let Err(fault) = &answer {
            let line = format!("the actor can't be saved: {fault}");
            self.say(&Up::Log(own.id, sandbar_sandbox::Level::Warn as u8, &line));
        }
        self.ended(own, result, Cost { saved, ..cost });
        if let Some(object) = saved {
            self.say(&Up::Released(object, 1));
        }
    }

    /// A call waits for objects, and the actor goes on with others.
    fn park(&mut self, slot: Slot, mut own: TaskDesk, call: AtHand) {
        let (id, job) = (own.id, own.job);
        let awaits = std::mem::take(&mut own.awaits);
        let mut is_ready = false;
        for object in &awaits {
            is_ready |= self.objects.value((job, *object)).is_some();
        }
        if !is_ready {
            // They stay until it has them, also those that it was only lent.
            let holder = self.tasks.get_mut(slot).and_then(Option::as_mut).filter(|maker| maker.job == job);
            let holds = holder.map_or(&mut own.holds, |maker| &mut maker.holds);
            let new: Vec<u64> = awaits.iter().copied().filter(|object| holds.insert(*object)).collect();
            new.into_iter().for_each(|object| self.objects.hold((job, object)));
            for object in &awaits {
                let entry = self.objects.entry((job, *object));
                if entry.waiters.last() != Some(&(slot, id)) {
                    entry.waiters.push((slot, id));
                }
                if !std::mem::replace(&mut entry.wanted, true) {
                    self.say(&Up::Want(*object, id));
                }
            }
        }
        let Some(resident) = self.residents.get_mut(&slot) else { return };
        if is_ready {
            resident.ready.push_back(Turn::Resume(id));
        }
        resident.parked.insert(id, Parked { own, call, awaits, is_ready });
    }

    /// Something has come that a call waits for, if it does.
    pub(super) fn can_resume(&mut self, slot: Slot, id: u64) {
        let Some(resident) = self.residents.get_mut(&slot) else { return };
        let is_called = resident.is_called();
        let Some(parked) = resident.parked.get_mut(&id).filter(|parked| !parked.is_ready) else { return };
        parked.is_ready = true;
        resident.ready.push_back(Turn::Resume(id));
        if !is_called {
            self.woken.push(slot);
        }
    }

    /// A call is not wanted any more. Says whether it was here, and its actor has to go on for that.
    pub(in crate::program) fn withdraw(&mut self, slot: Slot, task: u64, attempt: u32) -> bool {
        let Some(resident) = self.residents.get_mut(&slot) else { return false };
        let is_it = |own: &TaskDesk| own.id == task && own.attempt == attempt;
        if let Some(at) = resident.queue.iter().position(|queued| is_it(&queued.own)) {
            if let Some(queued) = resident.queue.remove(at) {
                self.refused(&queued.own, Fault::new(Code::Cancelled, "it was not begun"));
            }
            return false;
        }
        let is_parked = resident.parked.get(&task).is_some_and(|parked| is_it(&parked.own));
        if is_parked {
            resident.ready.push_back(Turn::Abandon(task));
        }
        is_parked && resident.is_idle()
    }

    /// An actor has ended, and with it its calls that were begun.
    pub(in crate::program) fn end_actor(
        &mut self,
        mut own: TaskDesk,
        mut resident: Resident,
        fault: Fault,
        cost: Cost,
    ) {
        let lost = Cost { lost: true, ..Cost::default() };
        let death = |of: &str| Fault::new(Code::ActorDied, format!("the actor died while {of}: {}", fault.message));
        if let Some(mut maker) = resident.maker.take() {
            if own.job == maker.job {
                maker.holds = std::mem::take(&mut own.holds);
            }
            let call = std::mem::replace(&mut own, maker);
            match resident.unsaid.take() {
                Some((ended, ..)) => self.ended(ended, Err(death("it was saved")), lost),
                None => self.ended(call, Err(fault.clone()), Cost { lost: true, ..cost }),
            }
        }
        for parked in resident.parked.into_values() {
            self.ended(parked.own, Err(death("it was called")), lost);
        }
        for Queued { own, .. } in resident.queue {
            self.say(&Up::Dropped(own.id));
            self.release_all(&own);
        }
        self.ended(own, Err(fault), cost);
    }

    /// A call came for an actor that is not here any more.
    pub(in crate::program) fn drop_call(&mut self, own: &TaskDesk) {
        self.say(&Up::Dropped(own.id));
        self.release_all(own);
        self.publish_in_time();
    }
}
