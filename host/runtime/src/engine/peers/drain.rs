//! Nodes that are to go: others give them nothing more, and fetch what only they have. Then they go.

use rustc_hash::FxHashSet;
use sandbar_core::{NodeId, ObjectId};
use sandbar_sched::Event;

use super::super::State;
use crate::peer::{PeerMessage, Tell};

/// What comes of it that a node is to go.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Objects that it has lent and was asked for since.
    asked: FxHashSet<ObjectId>,
    /// It was told that nothing is needed of it.
    is_spared: bool,
}

impl State {
    /// This node is to go. Who asks is told once no other needs it, and no job of its own runs.
    pub(in super::super) fn set_out(&mut self, told: Tell<()>) {
        self.peers.leaves = Some(told);
        for node in self.peers.all.keys().copied().collect::<Vec<_>>() {
            self.peers.say(node, &PeerMessage::Leaving);
        }
    }

    /// Another node is to go.
    pub(super) fn hear_leaving(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.all.get_mut(&node) {
            peer.leaving = Some(Leaving::default());
            self.step(Event::NodeDraining { node });
        }
    }

    /// Looks after nodes that are to go, this one among them.
    pub(in super::super) fn look_after_leaving(&mut self) {
        let leaving = self.peers.all.iter().filter(|(_, peer)| peer.leaving.is_some());
        for node in leaving.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.spare(node);
        }
        let may_go = self.jobs.is_empty() && self.peers.given.is_empty();
        if may_go
            && self.peers.all.values().all(|peer| peer.spares)
            && let Some(told) = self.peers.leaves.take()
        {
            told(());
        }
    }

    /// Takes over what only a node has that is to go, and tells it when that is done.
    fn spare(&mut self, node: NodeId) {
        let mut is_needed = self.fetch_all(node);
        for object in self.lent_by(node) {
            is_needed = true;
            let Some(leaving) = self.peers.all.get_mut(&node).and_then(|peer| peer.leaving.as_mut()) else { return };
            if !leaving.asked.insert(object) {
                continue;
            }
            self.peers.say(node, &PeerMessage::RequestObject(object, false));
        }
        let has_task = |worker: &sandbar_sched::WorkerView| {
            let mut tasks = worker.assigned.iter().chain(&worker.blocked);
            tasks.any(|task| !self.peers.seats.is_one(*task)) || !worker.actors.is_empty()
        };
        is_needed = is_needed || self.sched.workers().any(|worker| worker.node == node && has_task(&worker));
        let Some(leaving) = self.peers.all.get_mut(&node).and_then(|peer| peer.leaving.as_mut()) else { return };
        if !is_needed && !std::mem::replace(&mut leaving.is_spared, true) {
            self.peers.say(node, &PeerMessage::Released);
        }
    }
}
