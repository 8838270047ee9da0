//! Placement of groups: all bundles of a group at once, in the order of creation. Requests go to remote nodes first, see
//! `reservations`.

use sandbar_core::{Code, Fault, GroupId, GroupStrategy, Strategy};

use crate::packing::{CandidateNode, PackResult, pack_bundles};
use crate::records::groups::Group;
use crate::records::keys::{BundleKey, NodeKey, TenantKey};
use crate::records::nodes::Node;
use crate::records::queue::Shape;
use crate::records::resources::{FreeResources, ResourceSet};
use crate::scheduler::Scheduler;

/// Maximum number of pending groups that one dispatch tries to place.
const TRIED_MAX: usize = 16;

impl<C, V> Scheduler<C, V> {
    /// Places the pending groups of a tenant. For the first one that finds no room now but would on idle nodes, these nodes
    /// are held: nothing else starts there. Returns whether it placed any.
    pub(crate) fn place_groups(&mut self, tenant: TenantKey) -> bool {
        let (mut is_held, mut is_any_placed) = (false, false);
        let waits = |id: &GroupId| self.groups.all[id].reservation.is_none();
        for id in self.groups.waiting_of(tenant).filter(waits).take(TRIED_MAX).collect::<Vec<GroupId>>() {
            if let Some(nodes) = self.find_nodes(id, |node| node.free.minus(&node.external_usage)) {
                self.reserve_bundles(id, &nodes);
                is_any_placed = true;
            } else if !is_held
                && let Some(nodes) = self.find_nodes(id, |node| node.idle_free.minus(&node.external_usage))
            {
                is_held = true;
                nodes.into_iter().for_each(|node| self.cluster.nodes.hold(node));
            }
        }
        is_any_placed
    }

    /// Returns the nodes where bundles of a group may be placed, local ones first.
    fn nodes_of(&self, group: &Group<V>) -> Vec<NodeKey> {
        let all = self.cluster.nodes.in_id_order().filter(|node| group.may_place_on(&self.cluster.nodes[*node]));
        let (remote, mut local): (Vec<NodeKey>, Vec<NodeKey>) =
            all.partition(|node| self.cluster.nodes[*node].is_remote);
        local.extend(remote);
        local
    }

    /// Returns a node for each unplaced bundle of a group, given the free resources `left` of each usable node.
    fn find_nodes(&self, id: GroupId, left: impl Fn(&Node) -> FreeResources) -> Option<Vec<NodeKey>> {
        let group = &self.groups.all[&id];
        let is_able = |node: &Node| !node.is_held && !node.is_draining && !group.refused_by.contains(&node.id);
        let mut nodes = self.nodes_of(group);
        nodes.retain(|node| is_able(&self.cluster.nodes[*node]));
        match self.pack(group, &nodes, |node| left(&self.cluster.nodes[node])) {
            PackResult::Placed(places) => Some(places.into_iter().map(|place| nodes[place]).collect()),
            PackResult::Infeasible | PackResult::GaveUp => None,
        }
    }

    fn pack(&self, group: &Group<V>, nodes: &[NodeKey], left: impl Fn(NodeKey) -> FreeResources) -> PackResult {
        let on = |node: NodeKey| {
            let placed = group.bundles.iter().flatten();
            placed.filter(|bundle| self.cluster.bundles[**bundle].node == node).count()
        };
        let places = nodes.iter().map(|node| CandidateNode { free: left(*node), bundles: on(*node) }).collect();
        let bundles = group.spec.bundles.iter().zip(&group.bundles);
        let missing: Vec<&ResourceSet> = bundles.filter(|(_, at)| at.is_none()).map(|(demand, _)| demand).collect();
        pack_bundles(group.spec.strategy, &missing, places)
    }

    /// Fails groups that can never be placed, after nodes joined or left.
    pub(crate) fn fail_infeasible_groups(&mut self) {
        for id in self.groups.waiting().map(|(_, id)| id).collect::<Vec<GroupId>>() {
            self.fail_if_infeasible(id);
        }
    }

    /// Fails a group that could not be placed on otherwise empty nodes. It waits while no suitable node is known.
    pub(crate) fn fail_if_infeasible(&mut self, id: GroupId) {
        let Some(group) = self.groups.all.get(&id) else { return };
        let nodes = self.nodes_of(group);
        let left = |node: NodeKey| {
            let mut free = FreeResources::all_of(&self.cluster.nodes[node].total);
            let placed = group.bundles.iter().flatten().map(|bundle| &self.cluster.bundles[*bundle]);
            placed.filter(|bundle| bundle.node == node).for_each(|bundle| free.acquire(&bundle.total));
            free
        };
        if !nodes.is_empty() && self.pack(group, &nodes, left) == PackResult::Infeasible {
            let message = format!("{} {}", group.name(id), self.infeasible_reason(group));
            self.close_group(id, Fault::new(Code::Infeasible, message));
        }
    }

    /// Explains why the known nodes can never satisfy a group.
    fn infeasible_reason(&self, group: &Group<V>) -> String {
        let all = self.cluster.nodes.iter().filter(|(_, node)| group.may_place_on(node));
        let nodes: Vec<&ResourceSet> = all.map(|(_, node)| &node.total).collect();
        let are_all = nodes.len() == self.cluster.nodes.len();
        let none = if are_all { "no node has" } else { "no local node has" };
        let (local, plural) = (if are_all { "" } else { "local " }, if nodes.len() == 1 { "" } else { "s" });
        let there = format!("{} {local}node{plural}", nodes.len());
        let (bundles, count) = (&group.spec.bundles, group.spec.bundles.len());
        let is_beyond = |demand: &ResourceSet| !nodes.iter().any(|node| demand.fits_in(node));
        if let Some(index) = bundles.iter().position(is_beyond) {
            return format!("can't be placed: bundle {index} {}", bundles[index].shortage(none, &nodes));
        }
        let together = ResourceSet::sum(bundles.iter());
        match group.spec.strategy {
            GroupStrategy::StrictPack if is_beyond(&together) => {
                format!(
                    "can't be placed: its bundles together, on one node, {}",
                    shortage_of_sum(&together, none, &nodes)
                )
            }
            GroupStrategy::StrictSpread if count > nodes.len() => {
                format!("can't be placed: it needs {count} nodes, the cluster has {there}")
            }
            strategy => {
                let strategy = strategy.as_str();
                format!("can't be placed: its {count} bundles don't fit on {there}, {strategy}")
            }
        }
    }

    /// Returns the bundle on a node that a task of a group would run in.
    pub(crate) fn bundle_for(&self, node: NodeKey, shape: &Shape) -> Option<BundleKey> {
        let Strategy::Group { group, bundle } = shape.strategy else { return None };
        let placed = self.groups.all.get(&group)?.bundles.iter().zip(0u32..);
        let matching = placed.filter(|(_, index)| bundle.is_none_or(|bundle| bundle == *index));
        matching.filter_map(|(at, _)| *at).find(|at| {
            let bundle = &self.cluster.bundles[*at];
            bundle.node == node && bundle.free.fits(&shape.demand)
        })
    }

    /// Whether the placement strategy permits tasks outside of groups on a node.
    pub(crate) fn is_permitted_on(&self, node_at: NodeKey, shape: &Shape) -> bool {
        match shape.strategy {
            Strategy::Default | Strategy::Spread => true,
            Strategy::Group { .. } => false,
            Strategy::Node { node, soft } => {
                let could = |at: NodeKey| {
                    let node = &self.cluster.nodes[at];
                    !node.is_draining && shape.demand.fits_in(&node.total)
                };
                match self.cluster.nodes.find(node) {
                    Some(at) if at == node_at => true,
                    other => soft && !other.is_some_and(could),
                }
            }
        }
    }
}

/// Like [`ResourceSet::shortage`], for a sum of several requests.
fn shortage_of_sum(together: &ResourceSet, none: &str, nodes: &[&ResourceSet]) -> String {
    together.shortage(none, nodes).replacen("asks", "ask", 1)
}
