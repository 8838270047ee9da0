//! What actors were saved as that other nodes keep.
//!
//! The node that keeps an actor tells its owner what it was saved as, before what the call returned that it was saved after.
//! The owner has the value come. Once it is here, the actor is made of it should that node be gone. Of what is said
//! meanwhile only the last counts: an actor may be saved faster than that goes over the network.

use sandbar_core::{ActorId, Attempt, NodeId, ObjectId, TaskId};
use sandbar_sched::Event;
use sandbar_wire::Priority;

use super::super::{State, Stored};
use super::away::AwayKey;
use super::owner::is_at;
use crate::peer::{PeerMessage, PeerValue};

/// A value that an actor was saved as, on its way here.
#[derive(Debug)]
pub(super) struct Saving {
    /// The node that keeps the actor.
    pub(super) node: NodeId,
    coming: Save,
    next: Option<Save>,
}

#[derive(Debug, Clone, Copy)]
struct Save {
    attempt: Attempt,
    object: ObjectId,
    key: AwayKey,
}

impl State {
    /// An actor was saved in an object. If another node's is kept here, that one is told.
    pub(in super::super) fn tell_saved(&mut self, actor: ActorId, object: ObjectId) {
        let Some(given) = self.peers.given.get(&actor.creation_task()).filter(|given| given.is_kept) else { return };
        let (owner, job, (task, attempt, _)) = (given.owner, given.job, given.errand());
        if self.sched.actor(actor).and_then(|actor| actor.checkpoint) != Some(object) {
            return;
        }
        let (Some(anchor), Some(seat)) = (self.peers.anchor(owner), self.seat_in(owner, job)) else { return };
        let Some(value) = self.sending(object) else { return };
        let contains = self.sched.contained_objects(object).collect();
        let (value, contains) = self.sendable(value, contains);
        let held = contains.iter().chain((!value.is_whole()).then_some(&object)).copied();
        let held: Vec<ObjectId> = held.collect();
        self.steps(held.into_iter().map(|object| Event::ReferenceAdded { object, worker: anchor, task: seat }));
        let value = value.as_sent();
        self.peers.say(owner, &PeerMessage::Checkpoint { task, attempt, object, value, contains });
    }

    /// An actor was saved that another node keeps.
    pub(super) fn saved_at(
        &mut self,
        node: NodeId,
        (task, attempt): (TaskId, Attempt),
        object: ObjectId,
        value: PeerValue<'_>,
        refs: Vec<ObjectId>,
    ) {
        let anchor = self.peers.anchor(node);
        let is_new = self.sched.object(object).is_none() && !self.is_own_number(object.0);
        let view = self.sched.task(task).filter(|view| anchor.is_some_and(|anchor| is_at(view, anchor, attempt)));
        let is_actor = self.sched.actor(ActorId(task.0)).is_some();
        let (Some(anchor), Some(job)) = (anchor, view.filter(|_| is_new && is_actor).map(|view| view.job)) else {
            return self.release_sent(node, value, refs);
        };
        refs.iter().for_each(|content| self.borrow(node, *content, task, anchor));
        if let Ok(value) = self.received(job, object, value, Some(node)) {
            let coming = if let Stored::Away(key) = &value { Some(*key) } else { None };
            self.step(Event::Put { object, task, worker: anchor, value, refs: refs.clone() });
            match coming {
                None => self.saved_here(ActorId(task.0), attempt, node, object),
                Some(key) => self.await_saved(ActorId(task.0), node, Save { attempt, object, key }),
            }
        }
        self.steps(refs.into_iter().map(|object| Event::ReferencesReleased { object, worker: anchor, count: 1 }));
        self.settle();
    }

    fn await_saved(&mut self, actor: ActorId, node: NodeId, save: Save) {
        // It may not have become one.
        if !matches!(self.sched.value(save.object), Some(Ok(Stored::Away(key))) if *key == save.key) {
            return self.drop_save(node, save.object);
        }
        match self.peers.saving.get_mut(&actor).filter(|saving| saving.node == node) {
            Some(saving) => {
                if let Some(older) = saving.next.replace(save) {
                    self.drop_save(node, older.object);
                }
            }
            None => {
                let before = self.peers.saving.insert(actor, Saving { node, coming: save, next: None });
                // It was with another node before.
                if let Some(Saving { node, coming, next }) = before {
                    next.into_iter().chain([coming]).for_each(|save| self.drop_save(node, save.object));
                }
                self.peers.aways.save(save.key, actor);
                self.fetch(save.key, Priority::Argument);
            }
        }
    }

    /// A value that an actor was saved as has come, or never will, or is not wanted any more.
    pub(super) fn end_saving(&mut self, actor: ActorId, key: AwayKey, is_here: bool) {
        let Some(Saving { node, coming, next }) = self.peers.saving.remove(&actor) else { return };
        if coming.key != key {
            self.peers.saving.insert(actor, Saving { node, coming, next });
            return;
        }
        match is_here {
            true => self.saved_here(actor, coming.attempt, node, coming.object),
            false => self.drop_save(node, coming.object),
        }
        if let Some(next) = next {
            self.await_saved(actor, node, next);
        }
    }

    fn saved_here(&mut self, actor: ActorId, attempt: Attempt, node: NodeId, object: ObjectId) {
        if let Some(worker) = self.peers.anchor(node) {
            self.events.push_back(Event::Checkpointed { actor, attempt, worker, object });
        }
        self.drop_save(node, object);
    }

    /// The keeper of an actor holds what that was saved as no more for itself.
    fn drop_save(&mut self, node: NodeId, object: ObjectId) {
        if let Some(worker) = self.peers.anchor(node) {
            self.events.push_back(Event::ReferencesReleased { object, worker, count: 1 });
        }
    }
}
