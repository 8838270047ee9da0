//! Bundles that lie far: their nodes are asked to set room aside, which is there for nobody else meanwhile. All of a group's
//! bundles are placed once each node that was asked has said yes. When one says no, or is gone, what the others have set
//! aside is given back, and the group waits again: for other nodes, or for that one to say that something has changed there.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Attempt, GroupId, NodeId};

use crate::bundles::Bundle;
use crate::cluster::Node;
use crate::event::Action;
use crate::groups::Group;
use crate::places::{BundleAt, NodeAt, TaskAt};
use crate::resources::{Demand, Free};
use crate::scheduler::Scheduler;

/// Room that is set aside for the bundles of a group that lie nowhere, if all nodes agree.
#[derive(Debug)]
pub(crate) struct Trial {
    attempt: Attempt,
    /// By their places in the group.
    pub(crate) bundles: BTreeMap<u32, BundleAt>,
    /// Nodes that have not answered.
    pub(crate) asked: BTreeSet<NodeId>,
}

impl<V> Group<V> {
    /// Whether bundles may lie on a node, if that has room.
    pub(crate) fn may_lie_on(&self, node: &Node) -> bool {
        !node.is_far || !self.spec.near
    }

    /// All of its bundles that lie somewhere, or might.
    pub(crate) fn take_bundles(&mut self) -> Vec<BundleAt> {
        let placed = std::mem::take(&mut self.bundles).into_iter().flatten();
        placed.chain(self.trial.take().into_iter().flat_map(|trial| trial.bundles.into_values())).collect()
    }
}

impl<C, V> Scheduler<C, V> {
    /// Sets room aside on these nodes for the bundles of a group that lie nowhere. Those that are far are asked.
    pub(crate) fn set_aside(&mut self, id: GroupId, nodes: &[NodeAt]) {
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        let mut trial = Trial { attempt: group.attempt, bundles: BTreeMap::new(), asked: BTreeSet::new() };
        let mut wanted: BTreeMap<NodeId, Vec<(u32, Demand)>> = BTreeMap::new();
        let missing = group.spec.bundles.iter().zip(&group.bundles).zip(0..).filter(|((_, at), _)| at.is_none());
        for (((total, _), index), node) in missing.zip(nodes.iter().copied()) {
            let record = &self.cluster.nodes[node];
            if record.is_far {
                wanted.entry(record.id).or_default().push((index, total.clone()));
            }
            let (attempt, free) = (record.is_far.then_some(trial.attempt), Free::all_of(total));
            let bundle = Bundle { group: id, index, node, total: total.clone(), free, attempt };
            trial.bundles.insert(index, self.cluster.reserve(bundle));
        }
        let attempt = trial.attempt;
        trial.asked.extend(wanted.keys().copied());
        group.trial = Some(trial);
        if wanted.is_empty() {
            return self.place_group(id);
        }
        group.attempt.0 += 1;
        for (node, bundles) in wanted {
            self.out.push(Action::SetAside { group: id, node, attempt, bundles });
        }
    }

    /// A node says whether it has set room aside. It may have been asked for what is not wanted any more.
    pub(crate) fn answer(&mut self, id: GroupId, node: NodeId, attempt: Attempt, is_done: bool) {
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        let Some(trial) = group.trial.as_mut().filter(|trial| trial.attempt == attempt) else { return };
        if !trial.asked.remove(&node) {
            return;
        }
        if !is_done {
            group.refused.insert(node);
            self.give_up_trial(id, Some(node));
        } else if trial.asked.is_empty() {
            self.place_group(id);
        }
    }

    /// All nodes have set aside what a group needs.
    fn place_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        for (index, at) in group.trial.take().into_iter().flat_map(|trial| trial.bundles) {
            group.bundles[index as usize] = Some(at);
        }
        self.groups.waiting.remove(&group.number);
        // Somebody may wait for the room in it.
        self.is_stale = true;
        if let Some(value) = group.value.take()
            && let Some(object) = self.find_object(id.ready())
        {
            self.set_ready(object, value, Vec::new());
        }
    }

    /// A group waits again: a node has refused it, or is gone.
    pub(crate) fn give_up_trial(&mut self, id: GroupId, refused_by: Option<NodeId>) {
        let trial = self.groups.all.get_mut(&id).and_then(|group| group.trial.take());
        if let Some(trial) = trial {
            self.unplace(trial.bundles.into_values().collect(), refused_by);
        }
    }

    /// Gives bundles back, also to nodes that were asked for them, but for one that has `refused`. Gives the tasks in them.
    pub(crate) fn unplace(&mut self, bundles: Vec<BundleAt>, refused: Option<NodeId>) -> Vec<TaskAt> {
        self.is_stale = true;
        // Those of a node that is gone are gone by now.
        let far = bundles.iter().filter_map(|at| self.cluster.bundles.get(*at)).filter_map(|bundle| {
            let node = self.cluster.nodes[bundle.node].id;
            bundle.attempt.filter(|_| Some(node) != refused).map(|attempt| (bundle.group, node, attempt))
        });
        for (group, node, attempt) in far.collect::<BTreeSet<(GroupId, NodeId, Attempt)>>() {
            self.out.push(Action::GiveBack { group, node, attempt });
        }
        bundles.into_iter().flat_map(|at| self.cluster.unreserve(at, &self.queue)).collect()
    }

    /// A node may have room for groups that it has refused, or is gone.
    pub(crate) fn forget_refusals(&mut self, node: NodeId) {
        for group in self.groups.all.values_mut() {
            group.refused.remove(&node);
        }
    }
}
