//! Other nodes: tasks that they run for this one, tasks that this one runs for them, and objects and actors of either.
//!
//! To the scheduler another node is a node that is far, with so many workers that can be given tasks, its *slots*, and one
//! that is its scheduler: its *anchor*, which holds what the node uses of ours, has the actors that it keeps for this one, and
//! gets the calls of those that it owns. Tasks that it has run here are of the same job, children of a task in the anchor, its
//! *seat*. See [`crate::peer`] for what is said.

mod actors;
mod away;
mod groups;
mod helper;
mod leave;
mod lent;
mod owner;
mod remains;
mod saved;
mod seats;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{ActorId, JobId, NodeId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_sched::{Event, WorkerKind};
use sandbar_wire::Priority;
use sandbar_worker::program::AttemptUsage;

use self::away::Aways;
use self::groups::{Aside, AsideKey, ToldLoad};
use self::helper::{Given, Known};
use self::leave::Leaving;
use self::lent::Borrowed;
use self::remains::Remains;
use self::saved::Saving;
use self::seats::Seats;
use super::State;
use crate::peer::{NewPeer, PeerLine, PeerMessage, Tell};

pub(super) use self::away::AwayKey;
pub(super) use self::remains::Lasting;

/// Messages of one node before another's turn.
const MESSAGES_A_TURN: usize = 256;

/// Other nodes.
#[derive(Default)]
pub(super) struct Peers {
    all: BTreeMap<NodeId, Peer>,
    /// Workers that are other nodes, for the scheduler.
    far: FxHashMap<WorkerId, NodeId>,
    seats: Seats,
    /// What is run for others, by its number here; and by what it returns here, and by the owner's number.
    given: FxHashMap<TaskId, Given>,
    returns: FxHashMap<ObjectId, TaskId>,
    theirs: FxHashMap<(NodeId, TaskId), TaskId>,
    /// Actors kept for others that have ended, which these are not told yet.
    dead: Vec<(TaskId, TaskError)>,
    borrowed: FxHashMap<ObjectId, Borrowed>,
    aways: Aways,
    /// What actors were saved as that other nodes keep, on its way here.
    saving: FxHashMap<ActorId, Saving>,
    remains: Remains,
    /// Room that is set aside here for others.
    asides: BTreeMap<AsideKey, Aside>,
    /// This node is to go: who is told when it may.
    leaves: Option<Tell<()>>,
}

/// Another node.
struct Peer {
    line: PeerLine,
    anchor: WorkerId,
    /// Numbers of programs that it was told of.
    told: FxHashSet<u32>,
    /// Jobs of which it has tasks from this node.
    jobs: BTreeSet<JobId>,
    /// The tasks that stand for it, by job.
    seats: BTreeMap<JobId, TaskId>,
    /// Its programs, by its numbers.
    programs: FxHashMap<u32, Known>,
    /// If it is to go.
    leaving: Option<Leaving>,
    /// It needs nothing of this node, which is to go.
    spares: bool,
    told_load: Option<ToldLoad>,
}

impl Peers {
    pub(super) fn is_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Whether a worker is another node.
    #[inline]
    pub(super) fn is_far(&self, worker: WorkerId) -> bool {
        !self.all.is_empty() && self.far.contains_key(&worker)
    }

    /// How much there is of each kind.
    pub(super) fn left(&self) -> [usize; 8] {
        let (given, returns, theirs) = (self.given.len(), self.returns.len(), self.theirs.len());
        let (seats, asides) = (self.seats.len(), self.asides.len());
        [
            given,
            returns,
            theirs,
            self.borrowed.len(),
            self.aways.len() + self.saving.len(),
            seats,
            asides,
            self.far.len(),
        ]
    }

    fn anchor(&self, node: NodeId) -> Option<WorkerId> {
        self.all.get(&node).map(|peer| peer.anchor)
    }

    /// Whether somebody has said something.
    pub(super) fn has_some(&self) -> bool {
        self.all.values().any(|peer| peer.line.has_some())
    }

    pub(super) fn flush(&mut self) {
        self.all.values_mut().for_each(|peer| peer.line.flush());
    }

    fn say(&mut self, node: NodeId, what: &PeerMessage<'_>) {
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
        self.step(Event::NodeJoined { node, resources, remote: true });
        let Some(anchor) = self.number_worker() else { return };
        self.peers.far.insert(anchor, node);
        let (told, jobs, seats, programs) = Default::default();
        let (leaving, spares, told_load) = (None, false, None);
        self.peers.all.insert(node, Peer { line, anchor, told, jobs, seats, programs, leaving, spares, told_load });
        if self.peers.leaves.is_some() {
            self.peers.say(node, &PeerMessage::Leaving);
        }
        self.step(Event::WorkerReady { worker: anchor, node, kind: WorkerKind::PeerProxy });
        for _ in 0..slots {
            let Some(slot) = self.number_worker() else { return };
            self.peers.far.insert(slot, node);
            self.step(Event::WorkerReady { worker: slot, node, kind: WorkerKind::Tasks });
        }
    }

    /// A node is gone, or the connection to it.
    pub(super) fn lose_peer(&mut self, node: NodeId) {
        if self.peers.all.remove(&node).is_none() {
            return;
        }
        let there = self.sched.workers().filter(|worker| worker.node == node);
        let mut lost: Vec<TaskId> =
            there.flat_map(|worker| worker.assigned.into_iter().chain(worker.blocked)).collect();
        lost.retain(|task| !self.peers.seats.is_one(*task));
        self.count_lost(&lost, &format!("node {node} is lost"), |counts| counts.lost_nodes += 1);
        self.peers.far.retain(|_, of| *of != node);
        self.forget_given(|given| given.owner == node);
        self.forget_asides(|owner, _| owner == node);
        self.peers.saving.retain(|_, saving| saving.node != node);
        // Before anything that is made again is given to it.
        self.step(Event::NodeLost { node });
        self.peers.remains.lose_roots(|root| root.node == node);
        self.lose_seats(node);
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
        let Some(anchor) = self.peers.anchor(node) else { return Ok(()) };
        match postcard::from_bytes(frame).map_err(io::Error::other)? {
            PeerMessage::Program { program, component, limits } => self.load_program(node, program, component, limits),
            PeerMessage::Job { root, name, lasting } => self.name_job(root, &name, lasting.as_deref()),
            PeerMessage::Submit(errand) => return self.hear_errand(node, errand, frame),
            PeerMessage::Recall(slot) => self.recall_given(node, slot),
            PeerMessage::Recalled(worker, tasks) => {
                if self.peers.far.get(&worker) == Some(&node) {
                    self.step(Event::Recalled { worker, tasks });
                }
            }
            PeerMessage::Cancel(task, attempt, anyhow) => self.cancel_given(node, (task, attempt), anyhow),
            PeerMessage::JobEnded(root) => self.hear_job_ended(node, root),
            PeerMessage::Finished { task, attempt, slot, returned, system, usage: took } => {
                let took = AttemptUsage { started: self.clock.saturating_sub(took.started), ..took };
                self.ended_at((node, slot), (task, attempt), returned, system, &took);
            }
            PeerMessage::Blocked(task, blocked) => {
                if let Some(worker) = self.sched.task(task).and_then(|view| view.worker)
                    && self.peers.far.get(&worker) == Some(&node)
                {
                    self.step(Event::Blocked { task, worker, blocked });
                }
            }
            PeerMessage::Yielded { task, attempt, slot, index, object, value, contains } => {
                self.yielded_at((node, slot), (task, attempt), (index, object), value, contains);
            }
            PeerMessage::Checkpoint { task, attempt, object, value, contains } => {
                self.saved_at(node, (task, attempt), object, value, contains);
            }
            PeerMessage::ItemsTaken(task, taken) => self.hear_taken(node, task, taken),
            PeerMessage::FindActor { object, job, name } => self.find_for(node, object, job, &name),
            PeerMessage::KillActor(actor, restart) => self.kill_for(node, actor, restart),
            PeerMessage::RequestObject(object, missed) => self.want_for(object, anchor, missed),
            PeerMessage::ObjectValue { object, value, contains } => {
                self.arrived(node, object, (value, Priority::Get), contains);
            }
            PeerMessage::Release(object, times) => {
                self.unmake(node, object);
                self.step(Event::ReferencesReleased { object, worker: anchor, count: times });
            }
            PeerMessage::Log { job, task, name, worker, level, line } => {
                if let Some(job) = self.jobs.get(&job) {
                    let name: Arc<str> = name.as_ref().into();
                    job.log.send(sandbar_jobs::LogEntry { task: Some((task, &name, worker)), level, line });
                }
            }
            PeerMessage::Progress { job, task, name, done, total } => {
                if let Some(job) = self.jobs.get(&job) {
                    job.bars.report(task, name, done, total);
                }
            }
            PeerMessage::ReserveBundles { group, attempt, job, program, bundles } => {
                self.hear_set_aside(node, (group, attempt), (job, program), bundles);
            }
            PeerMessage::ReserveReply(group, attempt, done) => {
                self.step(Event::ReserveReply { group, node, attempt, granted: done })
            }
            PeerMessage::ReleaseBundles(group, attempt) => self.hear_give_back(node, group, attempt),
            PeerMessage::Load(others) => self.step(Event::NodeLoad { node, external_usage: others.demand() }),
            PeerMessage::Leaving => self.hear_leaving(node),
            PeerMessage::Released => {
                if let Some(peer) = self.peers.all.get_mut(&node) {
                    peer.spares = true;
                }
            }
        }
        Ok(())
    }

    /// Does what is left to be done.
    fn settle(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.step(event);
        }
    }

    /// Steps, with all that comes of it.
    fn steps(&mut self, events: impl IntoIterator<Item = Event<super::Call, super::Stored>>) {
        events.into_iter().for_each(|event| self.step(event));
    }
}
