//! Draining: a node that leaves gets no new work, and its peers fetch the objects that only it has. Then it may stop.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashSet;
use sandbar_core::{NodeId, ObjectId};
use sandbar_sched::Event;

use super::super::context::Context;
use super::borrowed::Borrowed;
use super::proxy_tasks::ProxyTasks;
use super::remote_values::MissedValues;
use crate::peer::{Callback, PeerMessage};

/// Draining of this node and of others.
#[derive(Default)]
pub(super) struct Drain {
    /// Called once this node may stop, if it drains.
    own: Option<Callback<()>>,
    /// Peers that need nothing more of this node.
    released_by: BTreeSet<NodeId>,
    draining: BTreeMap<NodeId, DrainingPeer>,
}

/// A peer that drains.
#[derive(Debug, Default)]
struct DrainingPeer {
    /// Objects that it has lent and that were requested since.
    requested: FxHashSet<ObjectId>,
    is_released: bool,
}

impl Drain {
    /// Drains this node. `reply` is called once no other node needs it, and no job of its own runs.
    pub(super) fn start(&mut self, cx: &mut Context, reply: Callback<()>) {
        self.own = Some(reply);
        for node in cx.peers.nodes() {
            cx.peers.send(node, &PeerMessage::Leaving);
        }
    }

    /// A node is connected.
    pub(super) fn node_joined(&mut self, cx: &mut Context, node: NodeId) {
        if self.own.is_some() {
            cx.peers.send(node, &PeerMessage::Leaving);
        }
    }

    pub(super) fn node_lost(&mut self, node: NodeId) {
        self.released_by.remove(&node);
        self.draining.remove(&node);
    }

    /// A peer drains.
    pub(super) fn handle_leaving(&mut self, cx: &mut Context, node: NodeId) {
        if cx.peers.drain(node) {
            self.draining.insert(node, DrainingPeer::default());
            cx.step(Event::NodeDraining { node });
        }
    }

    /// A peer needs nothing more of this node.
    pub(super) fn handle_released(&mut self, node: NodeId) {
        self.released_by.insert(node);
    }

    /// Releases draining peers, and reports that this node may stop if `is_idle`.
    pub(super) fn tick(&mut self, cx: &mut Context, borrowed: &Borrowed, proxies: &ProxyTasks, is_idle: bool) {
        for (node, peer) in &mut self.draining {
            peer.release(cx, *node, borrowed, proxies);
        }
        if is_idle
            && cx.peers.nodes().iter().all(|node| self.released_by.contains(node))
            && let Some(reply) = self.own.take()
        {
            reply(());
        }
    }
}

impl DrainingPeer {
    /// Fetches the objects that only the peer has, and releases the peer once none is left.
    fn release(&mut self, cx: &mut Context, node: NodeId, borrowed: &Borrowed, proxies: &ProxyTasks) {
        let mut is_needed = MissedValues::fetch_all(cx, node);
        for object in borrowed.without_value(cx, node) {
            is_needed = true;
            if self.requested.insert(object) {
                cx.peers.send(node, &PeerMessage::RequestObject(object, false));
            }
        }
        let has_task = |worker: &sandbar_sched::WorkerView| {
            let mut tasks = worker.assigned.iter().chain(&worker.blocked);
            tasks.any(|task| !proxies.is_proxy(*task)) || !worker.actors.is_empty()
        };
        is_needed = is_needed || cx.scheduler.workers().any(|worker| worker.node == node && has_task(&worker));
        if !is_needed && !std::mem::replace(&mut self.is_released, true) {
            cx.peers.send(node, &PeerMessage::Released);
        }
    }
}
