//! Other nodes: tasks that they run for this one, tasks that this one runs for them, and objects of either.
//!
//! To the scheduler another node is a node that is far, with so many workers that can be given tasks, its *slots*, and one
//! that runs none: its *anchor*, which holds what the node uses of ours. For a job of another node that runs tasks here, the
//! scheduler has a job whose first task is the *seat* of its owner, as a client's is. See [`crate::program::peer`] for what
//! is said.

mod away;
mod helper;
mod leave;
mod lent;
mod owner;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{JobId, NodeId, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Event, Role};

use self::away::Aways;
use self::helper::{GivenErrand, Guest, Known};
use self::leave::Leaving;
use self::lent::Borrowed;
use super::State;
use crate::program::peer::{NewPeer, PeerLine, Said, Tell};

pub(super) use self::away::AwayKey;

/// Messages of one node before another's turn.
const MESSAGES_A_TURN: usize = 256;

/// Other nodes.
#[derive(Default)]
pub(super) struct Peers {
    all: BTreeMap<NodeId, Peer>,
    /// Workers that are other nodes, for the scheduler: those that are given tasks, and those that hold objects.
    slots: FxHashMap<WorkerId, NodeId>,
    anchors: FxHashMap<WorkerId, NodeId>,
    /// Jobs of other nodes that run tasks here, by their seats.
    guests: FxHashMap<WorkerId, Guest>,
    /// As above, by the owner and its number.
    seats: BTreeMap<(NodeId, u32), WorkerId>,
    /// As above, by the jobs' numbers here.
    guest_jobs: FxHashMap<JobId, WorkerId>,
    /// What is run for others, by its number here; and by what it returns here, and by the owner's number.
    errands: FxHashMap<TaskId, GivenErrand>,
    returns: FxHashMap<ObjectId, TaskId>,
    theirs: FxHashMap<(NodeId, u64), TaskId>,
    borrowed: FxHashMap<ObjectId, Borrowed>,
    aways: Aways,
    /// This node is to go: who is told when it may.
    leaves: Option<Tell<()>>,
}

/// Another node.
struct Peer {
    line: PeerLine,
    anchor: WorkerId,
    /// Numbers of programs that it was told of.
    told: FxHashSet<u32>,
    /// Jobs of this node that run tasks there.
    jobs: BTreeSet<JobId>,
    /// Its programs, by its numbers.
    programs: FxHashMap<u32, Known>,
    /// If it is to go.
    leaving: Option<Leaving>,
    /// It needs nothing of this node, which is to go.
    spares: bool,
}

/// What a worker is that is none of this node's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    None,
    /// Another node, for which this one holds what it uses.
    Anchor,
    /// The owner of a job that runs tasks here.
    Seat,
}

impl Peers {
    #[inline]
    pub(super) fn part(&self, worker: WorkerId) -> Part {
        if self.all.is_empty() {
            Part::None
        } else if self.anchors.contains_key(&worker) {
            Part::Anchor
        } else if self.guests.contains_key(&worker) {
            Part::Seat
        } else {
            Part::None
        }
    }

    pub(super) fn is_any(&self) -> bool {
        !self.all.is_empty()
    }

    #[inline]
    pub(super) fn is_slot(&self, worker: WorkerId) -> bool {
        !self.all.is_empty() && self.slots.contains_key(&worker)
    }

    /// Whether somebody has said something.
    pub(super) fn has_some(&self) -> bool {
        self.all.values().any(|peer| peer.line.has_some())
    }

    pub(super) fn flush(&mut self) {
        self.all.values_mut().for_each(|peer| peer.line.flush());
    }

    fn say(&mut self, node: NodeId, what: &Said<'_>) {
        if let Some(peer) = self.all.get_mut(&node)
            && let Ok(frame) = postcard::to_stdvec(what)
        {
            peer.line.say(frame);
        }
    }
}

impl State {
    /// There is a connection to another node.
    pub(super) fn join(&mut self, new: NewPeer) {
        let NewPeer { node, resources, slots, line } = new;
        self.lose_peer(node);
        self.step(Event::NodeJoined { node, resources, far: true });
        let Some(anchor) = self.number_worker() else { return };
        self.peers.anchors.insert(anchor, node);
        let (told, jobs, programs) = Default::default();
        self.peers.all.insert(node, Peer { line, anchor, told, jobs, programs, leaving: None, spares: false });
        if self.peers.leaves.is_some() {
            self.peers.say(node, &Said::Leaving);
        }
        self.step(Event::WorkerReady { worker: anchor, node, role: Role::Peer });
        for _ in 0..slots {
            let Some(slot) = self.number_worker() else { return };
            self.peers.slots.insert(slot, node);
            self.step(Event::WorkerReady { worker: slot, node, role: Role::Tasks });
        }
    }

    /// A node is gone, or the connection to it.
    pub(super) fn lose_peer(&mut self, node: NodeId) {
        if self.peers.all.remove(&node).is_none() {
            return;
        }
        self.peers.slots.retain(|_, of| *of != node);
        self.peers.anchors.retain(|_, of| *of != node);
        // Before anything that is made again is given to it.
        self.step(Event::NodeLost { node });
        let guests = self.peers.guests.iter().filter(|(_, guest)| guest.owner == node);
        let seats: Vec<WorkerId> = guests.map(|(seat, _)| *seat).collect();
        seats.into_iter().for_each(|seat| self.end_guest(seat));
        self.lose_lent(node);
        self.lose_aways(node);
    }

    /// Hears other nodes. Says whether any had something to say.
    pub(super) fn hear_peers(&mut self) -> bool {
        if self.peers.all.is_empty() {
            return false;
        }
        let nodes: Vec<NodeId> = self.peers.all.keys().copied().collect();
        let mut heard = false;
        for node in nodes {
            for _ in 0..MESSAGES_A_TURN {
                let Some(frame) = self.peers.all.get(&node).and_then(|peer| peer.line.hear()) else { break };
                heard = true;
                self.clock = sandbar_worker::program::monotonic_nanos();
                if self.hear_peer(node, &frame).is_err() {
                    // It is no node that could be talked to.
                    self.lose_peer(node);
                }
            }
            if self.peers.all.get(&node).is_some_and(|peer| peer.line.is_closed()) {
                heard = true;
                self.lose_peer(node);
            }
        }
        heard
    }

    fn hear_peer(&mut self, node: NodeId, frame: &[u8]) -> io::Result<()> {
        match postcard::from_bytes(frame).map_err(io::Error::other)? {
            Said::Owner(said) => self.hear_owner(node, said, frame),
            Said::Helper(said) => self.hear_helper(node, said),
            Said::Leaving => {
                self.hear_leaving(node);
                Ok(())
            }
            Said::Spared => {
                if let Some(peer) = self.peers.all.get_mut(&node) {
                    peer.spares = true;
                }
                Ok(())
            }
        }
    }

    /// Steps, with all that comes of it.
    fn steps(&mut self, events: impl IntoIterator<Item = Event<super::Call, super::Stored>>) {
        events.into_iter().for_each(|event| self.step(event));
    }
}
