//! Placement groups with bundles on several nodes: the owner's scheduler has others set room aside, and these say whether they
//! have. There it is a group of the owner's seat, on that node alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sandbar_core::{Attempt, Code, Fault, GroupId, GroupStrategy, NodeId, Strategy, TaskId};
use sandbar_sched::{Event, GroupSpec, GroupState, ResourceSet, TaskState};

use super::super::{State, Stored};
use super::helper::Known;
use crate::peer::{Amounts, JobRoot, PeerMessage};

/// What others use of this node is told so often when it changes, and so often otherwise: who was refused tries again then.
const TELL_LOAD: Duration = Duration::from_millis(100);
const TELL_LOAD_AGAIN: Duration = Duration::from_secs(1);
/// Each node tells it at times of its own: two that were refused by each other would try again at once.
const TELL_LOAD_APART: Duration = Duration::from_millis(7);

/// What was set aside for another node: its group, and which attempt to place that.
pub(super) type AsideKey = (NodeId, GroupId, Attempt);

/// Room that is set aside for another node.
#[derive(Debug)]
pub(super) struct Aside {
    /// The group that it is here, and the task that stands for its owner.
    group: GroupId,
    seat: TaskId,
    /// Which bundles of the owner's group it has, in its own order.
    bundles: Vec<u32>,
    total: ResourceSet,
}

/// What a node was told that others use here.
#[derive(Debug)]
pub(super) struct ToldLoad {
    at: Instant,
    others: ResourceSet,
}

impl State {
    /// A node is to set room aside.
    pub(in super::super) fn ask_aside(
        &mut self,
        node: NodeId,
        (group, attempt): (GroupId, Attempt),
        bundles: &[(u32, ResourceSet)],
    ) {
        let job = self.sched.group(group).map(|view| view.job);
        let (Some(job), Some(program)) = (job, job.and_then(|job| self.program_of(job))) else {
            return self.events.push_back(Event::ReserveReply { group, node, attempt, granted: false });
        };
        self.tell_program(node, &program);
        self.introduce(node, job);
        let bundles = bundles.iter().map(|(index, demand)| (*index, Amounts::of(demand))).collect();
        let (job, program) = (self.root(job), program.compiled.number());
        self.peers.say(node, &PeerMessage::ReserveBundles { group, attempt, job, program, bundles });
    }

    /// What was set aside is not wanted any more.
    pub(in super::super) fn give_back(&mut self, node: NodeId, group: GroupId, attempt: Attempt) {
        self.peers.say(node, &PeerMessage::ReleaseBundles(group, attempt));
    }

    /// A node wants room set aside: it is now, or not at all. It asks again once something has changed.
    pub(super) fn hear_set_aside(
        &mut self,
        node: NodeId,
        (group, attempt): (GroupId, Attempt),
        (job, program): (JobRoot, u32),
        bundles: Vec<(u32, Amounts)>,
    ) {
        let done = self.set_aside(node, (group, attempt), (job, program), bundles).is_some();
        self.peers.say(node, &PeerMessage::ReserveReply(group, attempt, done));
    }

    fn set_aside(
        &mut self,
        node: NodeId,
        (theirs, attempt): (GroupId, Attempt),
        (job, program): (JobRoot, u32),
        bundles: Vec<(u32, Amounts)>,
    ) -> Option<()> {
        let key = (node, theirs, attempt);
        let known = self.peers.all.get(&node)?.programs.get(&program)?;
        let Known::Loaded(Ok(program)) = known else { return None };
        let program = program.clone();
        if self.peers.asides.contains_key(&key) {
            return None;
        }
        let job = self.job_of_root(job)?;
        let (seat, worker) = (self.seat_of(node, job, &program)?, self.peers.anchor(node)?);
        let group = GroupId(self.ids.take(1)?);
        let (bundles, demands): (Vec<u32>, Vec<ResourceSet>) =
            bundles.into_iter().map(|(index, amounts)| (index, amounts.demand())).unzip();
        let total = ResourceSet::sum(demands.iter());
        let spec = GroupSpec { name: None, strategy: GroupStrategy::Pack, local_only: true, bundles: demands };
        let value = Stored::Inline(Box::default());
        self.step(Event::GroupCreated { group, task: seat, worker, spec, value });
        let is_there = self.sched.group(group).is_some_and(|view| view.state == GroupState::Created);
        if is_there {
            self.peers.asides.insert(key, Aside { group, seat, bundles, total });
        } else {
            self.step(Event::GroupRemoved { group, task: seat, worker });
        }
        self.step(Event::ReferencesReleased { object: group.ready(), worker, count: 1 });
        is_there.then_some(())
    }

    /// A node does not need any more what was set aside for it.
    pub(super) fn hear_give_back(&mut self, node: NodeId, group: GroupId, attempt: Attempt) {
        let Some(aside) = self.peers.asides.remove(&(node, group, attempt)) else { return };
        if let Some(worker) = self.peers.anchor(node) {
            self.step(Event::GroupRemoved { group: aside.group, task: aside.seat, worker });
        }
    }

    /// What is set aside here for a bundle of another node's group.
    pub(super) fn aside(&self, node: NodeId, (group, index): (GroupId, u32)) -> Result<Strategy, Fault> {
        let of_group = self.peers.asides.range((node, group, Attempt(0))..=(node, group, Attempt(u32::MAX)));
        let found = of_group.rev().find_map(|(_, aside)| {
            let place = aside.bundles.iter().position(|other| *other == index)?;
            Some(Strategy::Group { group: aside.group, bundle: Some(place as u32) })
        });
        found.ok_or_else(|| Fault::new(Code::GroupRemoved, "its bundle was given back"))
    }

    /// What was set aside for a seat went with it.
    pub(super) fn forget_asides(&mut self, is_gone: impl Fn(NodeId, TaskId) -> bool) {
        self.peers.asides.retain(|(node, ..), aside| !is_gone(*node, aside.seat));
    }

    /// Tells other nodes what of this one is in use, and not by them.
    pub(in super::super) fn tell_loads(&mut self, now: Instant) {
        let every = TELL_LOAD + TELL_LOAD_APART * (self.options.node.0 % 8);
        let is_due = |told: &Option<ToldLoad>| told.as_ref().is_none_or(|told| now - told.at >= every);
        let due = self.peers.all.iter().filter(|(_, peer)| is_due(&peer.told_load));
        let due: Vec<NodeId> = due.map(|(node, _)| *node).collect();
        if due.is_empty() {
            return;
        }
        let Some(used) = self.in_use() else { return };
        let by_owners = self.used_by_owners();
        for node in due {
            let others = by_owners.get(&node).map_or_else(|| used.clone(), |of_node| used.saturating_sub(of_node));
            let Some(peer) = self.peers.all.get_mut(&node) else { continue };
            let is_same =
                peer.told_load.as_ref().is_some_and(|told| told.others == others && now - told.at < TELL_LOAD_AGAIN);
            if !is_same {
                let load = PeerMessage::Load(Amounts::of(&others));
                peer.told_load = Some(ToldLoad { at: now, others });
                self.peers.say(node, &load);
            }
        }
    }

    /// What of this node somebody was given.
    fn in_use(&self) -> Option<ResourceSet> {
        let node = self.sched.nodes().find(|view| view.id == self.options.node)?;
        let free_cpus = u64::try_from(node.free_cpus.max(0)).unwrap_or(u64::MAX);
        Some(node.total.saturating_sub(&ResourceSet { cpus: free_cpus, ..node.free_rest.clone() }))
    }

    /// What other nodes have been given of this one, as far as they know of that: what each gave itself, and what is set aside
    /// for it.
    fn used_by_owners(&self) -> BTreeMap<NodeId, ResourceSet> {
        let mut all = BTreeMap::<NodeId, ResourceSet>::new();
        for ((owner, ..), aside) in &self.peers.asides {
            all.entry(*owner).or_default().add(&aside.total);
        }
        for (id, given) in &self.peers.given {
            let Some(view) = self.sched.task(*id) else { continue };
            let of_owner = all.entry(given.owner).or_default();
            match (view.strategy, view.state) {
                // It is of what is set aside.
                (Strategy::Group { .. }, _) => {}
                (_, TaskState::Running) => of_owner.add(view.demand),
                (_, TaskState::Blocked) => of_owner.add(&ResourceSet { cpus: 0, ..view.demand.clone() }),
                _ => {}
            }
        }
        all
    }

    /// A node is told at once how busy this one is: it may ask again for what it was refused.
    pub(super) fn tell_load_soon(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.all.get_mut(&node) {
            peer.told_load = None;
        }
    }
}
