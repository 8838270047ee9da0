//! Values on other nodes, fetched when a task of this node needs them.

use rustc_hash::FxHashMap;
use sandbar_core::{ActorId, Code, Fault, JobId, NodeId, ObjectId, TaskId, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{SealedFile, ValueMemory};
use sandbar_wire::Priority;

use super::super::context::Context;
use super::super::deliveries::{request_again, split_by_job};
use super::super::effects::Effect;
use super::super::values::{FetchState, Recipient, RemoteKey, RemoteValue, StoredValue};
use super::borrowed::Borrowed;
use crate::peer::{PeerMessage, RemoteObject};

/// A checkpoint whose value has arrived, or won't.
pub(super) struct CheckpointFetched {
    pub(super) actor: ActorId,
    pub(super) key: RemoteKey,
    pub(super) is_copied: bool,
}

/// A node that has requested an object.
#[derive(Debug, Clone, Copy)]
struct PeerRequest {
    object: ObjectId,
    proxy_worker: WorkerId,
}

impl PeerRequest {
    fn event<C, V>(self) -> Event<C, V> {
        // The proxy worker holds it, whatever its task.
        Event::ObjectRequested { object: self.object, worker: self.proxy_worker, task: TaskId(0) }
    }
}

/// Fetches a value, unless it was fetched or is being fetched.
pub(super) fn fetch(cx: &mut Context, key: RemoteKey, priority: Priority) {
    let own = cx.node();
    let Some(value) = cx.remote_values.all.get_mut(&key.number) else { return };
    if !matches!(value.state, FetchState::NotFetched) {
        return;
    }
    value.state = FetchState::Fetching(Vec::new());
    let (node, object, bytes) = (value.node, value.id_there, value.bytes);
    if node == own {
        // A task for another node has computed it here.
        cx.push(Effect::FetchLocally(key.number, object));
    } else {
        cx.driver.fetch(key.number, RemoteObject { node, object, bytes, priority });
    }
}

/// Requests of other nodes for values that they could not fetch.
#[derive(Debug, Default)]
pub(super) struct MissedValues(FxHashMap<u64, Vec<PeerRequest>>);

impl MissedValues {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn take(&mut self, number: u64) -> Vec<PeerRequest> {
        self.0.remove(&number).unwrap_or_default()
    }

    /// Delivers a value to a worker, once it is on this node.
    pub(super) fn deliver(cx: &mut Context, key: RemoteKey, recipient: Recipient) {
        fetch(cx, key, Priority::Get);
        match cx.remote_values.all.get_mut(&key.number).map(|value| &mut value.state) {
            Some(FetchState::Copied(copy)) => {
                let copy = *copy;
                cx.push(Effect::Deliver(copy, recipient));
            }
            Some(FetchState::Fetching(recipients)) => recipients.push(recipient),
            Some(FetchState::NotFetched) | None => request_again(cx, recipient),
        }
    }

    /// Drops a value that no object has any more.
    pub(super) fn drop_value(&mut self, cx: &mut Context, key: RemoteKey) -> Option<CheckpointFetched> {
        let value = cx.remote_values.all.remove(&key.number)?;
        for request in self.take(key.number) {
            cx.step_later(request.event());
        }
        if let FetchState::Copied(copy) = value.state {
            cx.values.drop_value(copy);
        }
        if let Some(node) = value.holder {
            cx.peers.send(node, &PeerMessage::Release(value.id_there, 1));
        }
        value.checkpoint_of.map(|actor| CheckpointFetched { actor, key, is_copied: false })
    }

    /// Handles the result of a fetch, by the value's number.
    pub(super) fn fetched(
        &mut self,
        cx: &mut Context,
        borrowed: &mut Borrowed,
        number: u64,
        fetched: Result<SealedFile, Fault>,
    ) -> Option<CheckpointFetched> {
        let value = cx.remote_values.all.get_mut(&number)?;
        let key = RemoteKey { number, node: value.node, bytes: value.bytes };
        let FetchState::Fetching(recipients) = std::mem::replace(&mut value.state, FetchState::NotFetched) else {
            return None;
        };
        let (object, bytes, checkpoint_of) = (value.object, value.bytes, value.checkpoint_of);
        let job = cx.scheduler.job_of_object(object).unwrap_or(JobId(0));
        let copy = match fetched {
            Ok(value) if value.bytes() == bytes => {
                // A value that a task computed here for another node is not fetched from one.
                if key.node != cx.node() {
                    cx.usage.book(job, |amounts| amounts.network_bytes = amounts.network_bytes.saturating_add(bytes));
                }
                cx.values.add(job, object, ValueMemory::Sealed(value))
            }
            Ok(value) => Err(Fault::new(Code::Host, format!("it has {} bytes instead of {bytes}", value.bytes()))),
            Err(why) => Err(why),
        };
        let is_copied = copy.is_ok();
        match copy {
            Ok(copy) => {
                if let Some(value) = cx.remote_values.all.get_mut(&number) {
                    value.state = FetchState::Copied(copy);
                }
                recipients.into_iter().for_each(|recipient| cx.push(Effect::Deliver(copy, recipient)));
            }
            Err(fault) => {
                log::info!("object {object} can't be fetched from node {}: {}", key.node, fault.message);
                borrowed.missed(object);
                value_lost(cx, key, recipients);
            }
        }
        cx.steps(self.take(number).into_iter().map(PeerRequest::event));
        checkpoint_of.map(|actor| CheckpointFetched { actor, key, is_copied })
    }

    /// A node requests an object. If it could not fetch the value at its location, it gets a copy of this node.
    pub(super) fn handle_request(
        &mut self,
        cx: &mut Context,
        object: ObjectId,
        proxy_worker: WorkerId,
        is_missed: bool,
    ) {
        let request = PeerRequest { object, proxy_worker };
        if is_missed && let Some(Ok(StoredValue::Remote(key))) = cx.scheduler.value(object) {
            let key = *key;
            if let Some(value) = cx.remote_values.all.get_mut(&key.number) {
                value.is_missed = true;
            }
            if cx.remote_values.local_copy(key).is_none() {
                self.0.entry(key.number).or_default().push(request);
                return fetch(cx, key, Priority::Get);
            }
        }
        cx.step(request.event());
    }

    /// Fetches the values that only a draining node has. Returns whether there are any.
    pub(super) fn fetch_all(cx: &mut Context, node: NodeId) -> bool {
        let keys = cx.remote_values.only_on(node);
        keys.iter().for_each(|key| fetch(cx, *key, Priority::Argument));
        !keys.is_empty()
    }

    /// A node is lost, with the values that it has.
    pub(super) fn node_lost(&mut self, cx: &mut Context, node: NodeId) {
        let is_lost = |value: &RemoteValue| value.node == node && !matches!(value.state, FetchState::Copied(_));
        for key in cx.remote_values.keys(is_lost) {
            let Some(value) = cx.remote_values.all.get_mut(&key.number) else { continue };
            let state = std::mem::replace(&mut value.state, FetchState::NotFetched);
            value.holder = None;
            value_lost(cx, key, if let FetchState::Fetching(recipients) = state { recipients } else { Vec::new() });
            cx.steps(self.take(key.number).into_iter().map(PeerRequest::event));
        }
    }
}

/// Reports a value as lost, with the workers that wait for it.
fn value_lost(cx: &mut Context, key: RemoteKey, recipients: Vec<Recipient>) {
    let Some(object) = cx.remote_values.all.get(&key.number).map(|value| value.object) else { return };
    let has_it = matches!(cx.scheduler.value(object), Some(Ok(StoredValue::Remote(own))) if *own == key);
    let others = if has_it {
        let (waiters, visitors) = split_by_job(cx, object, recipients);
        cx.step(Event::ObjectLost { object, waiters });
        visitors
    } else {
        recipients
    };
    others.into_iter().for_each(|recipient| request_again(cx, recipient));
}
