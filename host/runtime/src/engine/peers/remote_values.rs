//! Values that lie on other nodes: fetched when somebody here wants them.

use rustc_hash::FxHashMap;
use sandbar_core::{ActorId, JobId, NodeId, ObjectId, TaskId, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{LendResult, SealedFile, ValueKey, ValueMemory};
use sandbar_wire::Priority;

use super::super::store::Awaited;
use super::super::{Command, State, Stored};
use super::lent::Sending;
use crate::peer::{self, Fetched, PeerMessage, Tell};

/// A value that lies, or lay, on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct AwayKey {
    number: u64,
    pub(in super::super) node: NodeId,
    pub(in super::super) bytes: u64,
}

/// Such values.
#[derive(Default)]
pub(super) struct Aways {
    all: FxHashMap<u64, Away>,
    next: u64,
    /// Who wants a value of this node that is on its way from disk.
    asked: FxHashMap<ValueKey, Vec<Tell<Result<SealedFile, String>>>>,
    /// Who is to have a value from this node, since it was not to be had from where it is.
    missed: FxHashMap<u64, Vec<Wanted>>,
}

/// Another node wants an object.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    object: ObjectId,
    anchor: WorkerId,
}

impl Wanted {
    fn event<C, V>(self) -> Event<C, V> {
        // It holds it, of whatever task it has that.
        Event::ObjectRequested { object: self.object, worker: self.anchor, task: TaskId(0) }
    }
}

#[derive(Debug)]
struct Away {
    /// Whose value it is here.
    object: ObjectId,
    /// The node that has it, and the object that it is the value of there.
    node: NodeId,
    name: ObjectId,
    bytes: u64,
    /// The node that is to be told when it is not needed any more.
    holder: Option<NodeId>,
    /// It was not to be had there: who wants it is to have the copy here.
    was_missed: bool,
    state: AwayState,
    /// It is what an actor was saved as that another node keeps.
    saves: Option<ActorId>,
}

#[derive(Debug)]
enum AwayState {
    There,
    /// On its way, and who is told of it.
    Fetching(Vec<Awaited>),
    Here(ValueKey),
}

impl Aways {
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.asked.len() + self.missed.len()
    }

    pub(super) fn add(
        &mut self,
        object: ObjectId,
        node: NodeId,
        name: ObjectId,
        bytes: u64,
        holder: Option<NodeId>,
    ) -> AwayKey {
        let key = AwayKey { number: self.next, node, bytes };
        self.next += 1;
        self.all.insert(
            key.number,
            Away { object, node, name, bytes, holder, was_missed: false, state: AwayState::There, saves: None },
        );
        key
    }

    /// Who waits for a value is an actor that was saved as it.
    pub(super) fn save(&mut self, key: AwayKey, actor: ActorId) {
        if let Some(away) = self.all.get_mut(&key.number) {
            away.saves = Some(actor);
        }
    }

    /// Values that only a node has, or that it is to be told of when they are not needed any more, and that are not here.
    fn only_at(&self, node: NodeId) -> Vec<AwayKey> {
        let is_there = |away: &Away| {
            let is_of = away.node == node || away.holder == Some(node);
            is_of && !matches!(away.state, AwayState::Here(_))
        };
        let there = self.all.iter().filter(|(_, away)| is_there(away));
        let keys = there.map(|(number, away)| AwayKey { number: *number, node: away.node, bytes: away.bytes });
        let mut keys: Vec<AwayKey> = keys.collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn sending(&self, key: AwayKey) -> Sending {
        match self.all.get(&key.number) {
            Some(away) => Sending::Away { node: away.node, object: away.name, bytes: away.bytes },
            None => Sending::Failed(Vec::new()),
        }
    }
}

impl State {
    /// The bytes of a value that is away, and the key of the copy here.
    pub(in super::super) fn away(&self, key: AwayKey) -> (u64, Option<ValueKey>) {
        self.peers.aways.all.get(&key.number).map_or((0, None), |away| match away.state {
            AwayState::Here(copy) => (away.bytes, Some(copy)),
            _ => (away.bytes, None),
        })
    }

    /// What is to be sent of a value that is away: where it is, or, if that node has it no more, or not for long, the copy here.
    pub(super) fn sending_away(&self, key: AwayKey, object: ObjectId) -> Sending {
        let was_missed = self.peers.aways.all.get(&key.number).is_some_and(|away| away.was_missed);
        let peer = self.peers.all.get(&key.node);
        let stays = key.node == self.options.node || peer.is_some_and(|peer| peer.leaving.is_none());
        match self.away(key) {
            (bytes, Some(_)) if was_missed || !stays => Sending::Away { node: self.options.node, object, bytes },
            _ => self.peers.aways.sending(key),
        }
    }

    /// Nobody needs a value any more.
    pub(in super::super) fn discard_away(&mut self, key: AwayKey) {
        let Some(away) = self.peers.aways.all.remove(&key.number) else { return };
        let missed = self.peers.aways.missed.remove(&key.number).unwrap_or_default();
        self.events.extend(missed.into_iter().map(Wanted::event));
        if let AwayState::Here(copy) = away.state {
            self.store.values.drop_value(copy);
        }
        if let Some(actor) = away.saves {
            self.end_saving(actor, key, false);
        }
        if let Some(node) = away.holder {
            self.peers.say(node, &PeerMessage::Release(away.name, 1));
        }
    }

    /// Tells a worker of a value that it wanted, once it is here.
    pub(in super::super) fn hand_away(&mut self, key: AwayKey, awaited: Awaited) {
        self.fetch(key, Priority::Get);
        let Some(away) = self.peers.aways.all.get_mut(&key.number) else { return };
        match &mut away.state {
            AwayState::Here(copy) => {
                let copy = *copy;
                self.hand(copy, awaited);
            }
            AwayState::Fetching(all) => all.push(awaited),
            AwayState::There => {}
        }
    }

    /// Has a value come, if it is not here nor on its way.
    pub(super) fn fetch(&mut self, key: AwayKey, priority: Priority) {
        let Some(away) = self.peers.aways.all.get_mut(&key.number) else { return };
        if !matches!(away.state, AwayState::There) {
            return;
        }
        away.state = AwayState::Fetching(Vec::new());
        let (asker, ticket) = (self.asker.clone(), key.number);
        let told = move |value| asker.command(Command::Fetched(Fetched { ticket, value }));
        let (node, name, bytes) = (away.node, away.name, away.bytes);
        let wanted = peer::Wanted { node, object: name, bytes, priority };
        match &self.options.outside {
            // It was made here, for its owner.
            Some(_) if node == self.options.node => self.share(name, Box::new(told)),
            Some(outside) => outside.fetch(wanted, Box::new(told)),
            None => told(Err("this node knows no others".to_owned())),
        }
    }

    /// A value has come, or will not.
    pub(in super::super) fn fetched(&mut self, fetched: Fetched) {
        let Some(away) = self.peers.aways.all.get_mut(&fetched.ticket) else { return };
        let key = AwayKey { number: fetched.ticket, node: away.node, bytes: away.bytes };
        let AwayState::Fetching(awaited) = std::mem::replace(&mut away.state, AwayState::There) else { return };
        let (object, bytes, saves) = (away.object, away.bytes, away.saves);
        let job = self.sched.job_of_object(object).unwrap_or(JobId(0));
        let added = match fetched.value {
            Ok(value) if value.bytes() == bytes => {
                self.store.values.add(job, object, ValueMemory::Sealed(value)).map_err(|fault| fault.to_string())
            }
            Ok(value) => Err(format!("it has {} bytes, where {bytes} were to come", value.bytes())),
            Err(why) => Err(why),
        };
        let missed = self.peers.aways.missed.remove(&key.number).unwrap_or_default();
        match added {
            Ok(copy) => {
                if let Some(away) = self.peers.aways.all.get_mut(&key.number) {
                    away.state = AwayState::Here(copy);
                }
                awaited.into_iter().for_each(|awaited| self.hand(copy, awaited));
                if let Some(actor) = saves {
                    self.end_saving(actor, key, true);
                }
            }
            Err(_) => {
                self.missed(object);
                self.lose_away(key, awaited);
                if let Some(actor) = saves {
                    self.end_saving(actor, key, false);
                }
            }
        }
        self.steps(missed.into_iter().map(Wanted::event));
        self.settle();
        self.carry_out();
    }

    /// Another node wants an object. Where it has `missed` it before, it is to have it from this one.
    pub(super) fn want_for(&mut self, object: ObjectId, anchor: WorkerId, missed: bool) {
        let wanted = Wanted { object, anchor };
        if missed && let Some(Ok(Stored::Away(key))) = self.sched.value(object) {
            let key = *key;
            if let Some(away) = self.peers.aways.all.get_mut(&key.number) {
                away.was_missed = true;
            }
            if self.away(key).1.is_none() {
                self.peers.aways.missed.entry(key.number).or_default().push(wanted);
                return self.fetch(key, Priority::Get);
            }
        }
        self.step(wanted.event());
    }

    /// Has all come that only a node has which is to go. Says whether there is anything.
    pub(super) fn fetch_all(&mut self, node: NodeId) -> bool {
        let keys = self.peers.aways.only_at(node);
        keys.iter().for_each(|key| self.fetch(*key, Priority::Argument));
        !keys.is_empty()
    }

    /// A value can't be had from where it was. Who waits for it is told what comes of that.
    fn lose_away(&mut self, key: AwayKey, awaited: Vec<Awaited>) {
        let Some(object) = self.peers.aways.all.get(&key.number).map(|away| away.object) else { return };
        let is_so = matches!(self.sched.value(object), Some(Ok(Stored::Away(own))) if *own == key);
        if is_so {
            let (waiters, visitors) = self.split_visitors(object, awaited);
            self.step(Event::ObjectLost { object, waiters });
            visitors.into_iter().for_each(|awaited| self.want_again(awaited));
            self.settle();
        } else {
            awaited.into_iter().for_each(|awaited| self.want_again(awaited));
            self.settle();
        }
    }

    /// A node that has values is gone.
    pub(super) fn lose_aways(&mut self, node: NodeId) {
        let is_lost = |away: &Away| away.node == node && !matches!(away.state, AwayState::Here(_));
        let lost = self.peers.aways.all.iter().filter(|(_, away)| is_lost(away));
        let lost = lost.map(|(number, away)| AwayKey { number: *number, node, bytes: away.bytes });
        let mut lost: Vec<AwayKey> = lost.collect();
        lost.sort_unstable();
        for key in lost {
            let Some(away) = self.peers.aways.all.get_mut(&key.number) else { continue };
            let state = std::mem::replace(&mut away.state, AwayState::There);
            away.holder = None;
            self.lose_away(key, if let AwayState::Fetching(awaited) = state { awaited } else { Vec::new() });
            let missed = self.peers.aways.missed.remove(&key.number).unwrap_or_default();
            self.steps(missed.into_iter().map(Wanted::event));
        }
    }

    /// Another node wants a value of this one.
    pub(in super::super) fn share(&mut self, object: ObjectId, told: Tell<Result<SealedFile, String>>) {
        let value = match self.sched.value(object) {
            Some(Ok(Stored::Kept(key, _))) => {
                let key = *key;
                match self.store.values.share(key) {
                    LendResult::Bytes(bytes) => SealedFile::new(&bytes).map_err(|e| e.to_string()),
                    LendResult::File(file) => Ok(file),
                    LendResult::Pending => {
                        self.peers.aways.asked.entry(key).or_default().push(told);
                        return self.carry_out();
                    }
                    LendResult::AlreadyLent => Err("it is not to be had".to_owned()),
                    LendResult::Lost(why) => Err(why),
                }
            }
            Some(Ok(Stored::Inline(bytes))) => SealedFile::new(bytes).map_err(|e| e.to_string()),
            Some(Ok(Stored::Away(key))) => match self.away(*key) {
                (_, Some(copy)) => self.shared(copy),
                _ => Err("it is not here".to_owned()),
            },
            Some(Err(_)) | None => self.peers.remains.file(object).ok_or_else(|| "there is no such value".to_owned()),
        };
        told(value);
    }

    fn shared(&mut self, key: ValueKey) -> Result<SealedFile, String> {
        match self.store.values.share(key) {
            LendResult::Bytes(bytes) => SealedFile::new(&bytes).map_err(|e| e.to_string()),
            LendResult::File(file) => Ok(file),
            LendResult::AlreadyLent | LendResult::Pending => Err("it is on its way from disk".to_owned()),
            LendResult::Lost(why) => Err(why),
        }
    }

    /// A value is back from disk, or can't be read.
    pub(in super::super) fn share_restored(&mut self, key: ValueKey, read: &Result<(), String>) {
        for told in self.peers.aways.asked.remove(&key).unwrap_or_default() {
            let value = match read {
                Ok(()) => self.shared(key),
                Err(e) => Err(e.clone()),
            };
            told(value);
        }
    }
}
