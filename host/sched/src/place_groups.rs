//! When placement groups are placed: all bundles of one at once, in the order in which they were made. Where some would lie
//! on nodes that are far, these are asked first: `far_groups`.

use sandbar_core::{Code, Fault, GroupId, GroupStrategy, Strategy};

use crate::assign::{Found, Place, assign};
use crate::cluster::Node;
use crate::groups::Group;
use crate::places::{BundleAt, NodeAt};
use crate::queue::Shape;
use crate::resources::{Demand, Free};
use crate::scheduler::Scheduler;

/// So many groups are tried before the rest waits.
const TRIED_MAX: usize = 16;

impl<C, V> Scheduler<C, V> {
    /// Places groups that wait. For the first of those that could be placed once all tasks have ended nothing else is begun
    /// where it would be: its turn comes.
    pub(crate) fn place_groups(&mut self) {
        if self.groups.waiting.is_empty() {
            return;
        }
        let mut is_held = false;
        let waits = |id: &GroupId| self.groups.all[id].trial.is_none();
        for id in self.groups.waiting.values().copied().filter(waits).take(TRIED_MAX).collect::<Vec<GroupId>>() {
            if let Some(nodes) = self.nodes_for(id, |node| node.free.beside(&node.others)) {
                self.set_aside(id, &nodes);
            } else if !is_held && let Some(nodes) = self.nodes_for(id, |node| node.at_rest.beside(&node.others)) {
                is_held = true;
                for node in nodes {
                    self.cluster.nodes[node].is_held = true;
                    self.held.push(node);
                }
            }
        }
    }

    /// Nodes where bundles of a group may lie: those that are near first.
    fn nodes_of(&self, group: &Group<V>) -> Vec<NodeAt> {
        let all = self.cluster.node_ids.values().copied().filter(|node| group.may_lie_on(&self.cluster.nodes[*node]));
        let (far, mut near): (Vec<NodeAt>, Vec<NodeAt>) = all.partition(|node| self.cluster.nodes[*node].is_far);
        near.extend(far);
        near
    }

    /// A node for each bundle of a group that is not placed, by what is left of those that are not held.
    fn nodes_for(&self, id: GroupId, left: impl Fn(&Node) -> Free) -> Option<Vec<NodeAt>> {
        let group = &self.groups.all[&id];
        let is_able = |node: &Node| !node.is_held && !node.is_draining && !group.refused.contains(&node.id);
        let mut nodes = self.nodes_of(group);
        nodes.retain(|node| is_able(&self.cluster.nodes[*node]));
        match self.look_for(group, &nodes, |node| left(&self.cluster.nodes[node])) {
            Found::All(places) => Some(places.into_iter().map(|place| nodes[place]).collect()),
            Found::Nothing | Found::GaveUp => None,
        }
    }

    fn look_for(&self, group: &Group<V>, nodes: &[NodeAt], left: impl Fn(NodeAt) -> Free) -> Found {
        let on = |node: NodeAt| {
            let placed = group.bundles.iter().flatten();
            placed.filter(|bundle| self.cluster.bundles[**bundle].node == node).count()
        };
        let places = nodes.iter().map(|node| Place { free: left(*node), bundles: on(*node) }).collect();
        let bundles = group.spec.bundles.iter().zip(&group.bundles);
        let missing: Vec<&Demand> = bundles.filter(|(_, at)| at.is_none()).map(|(demand, _)| demand).collect();
        assign(group.spec.strategy, &missing, places)
    }

    /// Groups fail that can never be placed, after nodes came or went.
    pub(crate) fn fail_infeasible_groups(&mut self) {
        for id in self.groups.waiting.values().copied().collect::<Vec<GroupId>>() {
            self.fail_if_infeasible(id);
        }
    }

    /// A group fails if it could not be placed if nothing else were, unless no node is known yet on which it might lie.
    pub(crate) fn fail_if_infeasible(&mut self, id: GroupId) {
        let Some(group) = self.groups.all.get(&id) else { return };
        let nodes = self.nodes_of(group);
        let left = |node: NodeAt| {
            let mut free = Free::all_of(&self.cluster.nodes[node].total);
            let placed = group.bundles.iter().flatten().map(|bundle| &self.cluster.bundles[*bundle]);
            placed.filter(|bundle| bundle.node == node).for_each(|bundle| free.take(&bundle.total));
            free
        };
        if !nodes.is_empty() && self.look_for(group, &nodes, left) == Found::Nothing {
            let message = format!("{} {}", group.name(id), self.beyond_all(group));
            self.close_group(id, Fault::new(Code::Infeasible, message));
        }
    }

    /// Why the nodes that there are will never do for a group.
    fn beyond_all(&self, group: &Group<V>) -> String {
        let all = self.cluster.nodes.iter().filter(|(_, node)| group.may_lie_on(node));
        let nodes: Vec<&Demand> = all.map(|(_, node)| &node.total).collect();
        let are_all = nodes.len() == self.cluster.nodes.len();
        let none = if are_all { "no node has" } else { "no node that is near has" };
        let there = format!("{}{}", nodes.len(), if are_all { "" } else { " that are near" });
        let (bundles, count) = (&group.spec.bundles, group.spec.bundles.len());
        let is_beyond = |demand: &Demand| !nodes.iter().any(|node| demand.is_within(node));
        if let Some(index) = bundles.iter().position(is_beyond) {
            return format!("can't be placed: bundle {index} {}", bundles[index].beyond(none, &nodes));
        }
        let together = Demand::sum(bundles.iter());
        match group.spec.strategy {
            GroupStrategy::StrictPack if is_beyond(&together) => {
                format!("can't be placed: its bundles together, on one node, {}", asks(&together, none, &nodes))
            }
            GroupStrategy::StrictSpread if count > nodes.len() => {
                format!("can't be placed: it asks for {count} nodes, there are {there}")
            }
            strategy => {
                let strategy = strategy.as_str();
                format!("can't be placed: its {count} bundles don't fit on the nodes there are ({there}), {strategy}")
            }
        }
    }

    /// The bundle that a task of a group would run in, on a node.
    pub(crate) fn bundle_for(&self, node: NodeAt, shape: &Shape) -> Option<BundleAt> {
        let Strategy::Group { group, bundle } = shape.strategy else { return None };
        let placed = self.groups.all.get(&group)?.bundles.iter().zip(0u32..);
        let wanted = placed.filter(|(_, index)| bundle.is_none_or(|bundle| bundle == *index));
        wanted.filter_map(|(at, _)| *at).find(|at| {
            let bundle = &self.cluster.bundles[*at];
            bundle.node == node && bundle.free.fits(&shape.demand)
        })
    }

    /// Whether tasks may run on a node, of those that are in no group, if that has enough.
    pub(crate) fn may_be_on(&self, node_at: NodeAt, shape: &Shape) -> bool {
        match shape.strategy {
            Strategy::Default | Strategy::Spread => true,
            Strategy::Group { .. } => false,
            Strategy::Node { node, soft } => {
                let could = |at: &NodeAt| {
                    let node = &self.cluster.nodes[*at];
                    !node.is_draining && shape.demand.is_within(&node.total)
                };
                match self.cluster.node_ids.get(&node) {
                    Some(at) if *at == node_at => true,
                    other => soft && !other.is_some_and(could),
                }
            }
        }
    }
}

/// As [`Demand::beyond`], of several.
fn asks(together: &Demand, none: &str, nodes: &[&Demand]) -> String {
    together.beyond(none, nodes).replacen("asks", "ask", 1)
}
