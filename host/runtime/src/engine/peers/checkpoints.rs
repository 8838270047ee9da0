//! Checkpoints of actors that other nodes host.
//!
//! The host sends each checkpoint to the owner, before the results of the call that it was made after. The owner fetches its
//! value. Once that is here, the actor can be restored from it if the host is lost. Of checkpoints that arrive meanwhile only
//! the last counts: an actor may make them faster than they go over the network.

use rustc_hash::FxHashMap;
use sandbar_core::{ActorId, Attempt, NodeId, ObjectId, TaskId};
use sandbar_sched::Event;
use sandbar_wire::Priority;

use super::super::context::Context;
use super::super::values::RemoteKey;
use super::super::values::StoredValue;
use super::borrowed::Borrowed;
use super::executor::{Executor, RemoteTask};
use super::owner::is_attempt;
use super::peer_values::{outgoing, receive, return_value, with_contents};
use super::proxy_tasks::ProxyTasks;
use super::remote_values::{CheckpointFetched, fetch};
use crate::peer::{PeerMessage, PeerValue};

/// Checkpoints that are being fetched.
#[derive(Debug, Default)]
pub(super) struct Checkpoints(FxHashMap<ActorId, Fetches>);

/// Checkpoints of an actor.
#[derive(Debug)]
struct Fetches {
    /// Host of the actor.
    node: NodeId,
    current: Checkpoint,
    next: Option<Checkpoint>,
}

#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    attempt: Attempt,
    object: ObjectId,
    key: RemoteKey,
}

/// A checkpoint that a host has sent.
pub(super) struct RemoteCheckpoint<'a> {
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
    pub(super) object: ObjectId,
    pub(super) value: PeerValue<'a>,
    pub(super) contains: Vec<ObjectId>,
}

/// Sends a checkpoint of an actor that this node hosts to its owner.
pub(super) fn send(cx: &mut Context, proxies: &mut ProxyTasks, executor: &Executor, actor: ActorId, object: ObjectId) {
    let Some(hosted) = executor.get(actor.creation_task()).filter(|hosted| hosted.is_actor) else { return };
    let (owner, job, RemoteTask { task, attempt, .. }) = (hosted.owner, hosted.job, hosted.remote);
    if cx.scheduler.actor(actor).and_then(|actor| actor.checkpoint) != Some(object) {
        return;
    }
    let (Some(worker), Some(proxy)) = (cx.peers.proxy_worker(owner), proxies.get_or_start_known(cx, owner, job)) else {
        return;
    };
    let Some(value) = outgoing(cx, object) else { return };
    let (value, contains) = with_contents(cx, object, value);
    for object in contains.iter().copied().chain((!value.is_complete()).then_some(object)) {
        cx.step(Event::ReferenceAdded { object, worker, task: proxy });
    }
    let value = value.as_message();
    cx.peers.send(owner, &PeerMessage::Checkpoint { task, attempt, object, value, contains });
}

impl Checkpoints {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Handles a checkpoint of an actor that another node hosts.
    pub(super) fn handle(
        &mut self,
        cx: &mut Context,
        borrowed: &mut Borrowed,
        node: NodeId,
        checkpoint: RemoteCheckpoint<'_>,
    ) {
        let RemoteCheckpoint { task, attempt, object, value, contains } = checkpoint;
        let actor = ActorId(task.0);
        let worker = cx.peers.proxy_worker(node);
        let is_new = cx.scheduler.object(object).is_none() && !cx.ids.is_own(object.0);
        let view =
            cx.scheduler.task(task).filter(|view| worker.is_some_and(|worker| is_attempt(view, worker, attempt)));
        let job = view.filter(|_| is_new && cx.scheduler.actor(actor).is_some()).map(|view| view.job);
        let (Some(worker), Some(job)) = (worker, job) else {
            return return_value(cx, node, value, contains);
        };
        contains.iter().for_each(|content| borrowed.add(cx, node, *content, task, worker));
        if let Ok(value) = receive(cx, job, object, value, Some(node)) {
            let key = if let StoredValue::Remote(key) = &value { Some(*key) } else { None };
            cx.step(Event::Put { object, task, worker, value, refs: contains.clone() });
            match key {
                None => set(cx, actor, attempt, node, object),
                Some(key) => self.fetch(cx, actor, node, Checkpoint { attempt, object, key }),
            }
        }
        cx.steps(contains.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
    }

    fn fetch(&mut self, cx: &mut Context, actor: ActorId, node: NodeId, checkpoint: Checkpoint) {
        // The scheduler may have refused the object.
        let object = checkpoint.object;
        if !matches!(cx.scheduler.value(object), Some(Ok(StoredValue::Remote(key))) if *key == checkpoint.key) {
            return release(cx, node, object);
        }
        match self.0.get_mut(&actor).filter(|fetches| fetches.node == node) {
            Some(fetches) => {
                if let Some(older) = fetches.next.replace(checkpoint) {
                    release(cx, node, older.object);
                }
            }
            None => {
                let before = self.0.insert(actor, Fetches { node, current: checkpoint, next: None });
                // The actor was on another node before.
                if let Some(Fetches { node, current, next }) = before {
                    next.into_iter().chain([current]).for_each(|older| release(cx, node, older.object));
                }
                cx.remote_values.mark_checkpoint(checkpoint.key, actor);
                fetch(cx, checkpoint.key, Priority::Argument);
            }
        }
    }

    /// The value of a checkpoint has arrived, or won't.
    pub(super) fn fetched(&mut self, cx: &mut Context, fetched: CheckpointFetched) {
        let CheckpointFetched { actor, key, is_copied } = fetched;
        let Some(Fetches { node, current, next }) = self.0.remove(&actor) else { return };
        if current.key != key {
            self.0.insert(actor, Fetches { node, current, next });
            return;
        }
        match is_copied {
            true => set(cx, actor, current.attempt, node, current.object),
            false => release(cx, node, current.object),
        }
        if let Some(next) = next {
            self.fetch(cx, actor, node, next);
        }
    }

    pub(super) fn node_lost(&mut self, node: NodeId) {
        self.0.retain(|_, fetches| fetches.node != node);
    }
}

/// Makes an object the checkpoint of an actor.
fn set(cx: &mut Context, actor: ActorId, attempt: Attempt, node: NodeId, object: ObjectId) {
    if let Some(worker) = cx.peers.proxy_worker(node) {
        cx.step_later(Event::Checkpointed { actor, attempt, worker, object });
    }
    release(cx, node, object);
}

/// The host no longer holds a checkpoint.
fn release(cx: &mut Context, node: NodeId, object: ObjectId) {
    if let Some(worker) = cx.peers.proxy_worker(node) {
        cx.step_later(Event::ReferencesReleased { object, worker, count: 1 });
    }
}
