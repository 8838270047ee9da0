//! Two-phase placement of bundles on remote nodes: each node receives a request to reserve resources, and the group is placed
//! once every node has granted its part. If a node refuses or is lost, the reservations of the others are
//! released, and the group waits for other nodes, or for a load report of the node that refused.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Attempt, GroupId, NodeId};

use crate::event::Action;
use crate::records::groups::Reservation;
use crate::records::keys::{BundleKey, NodeKey, TaskKey};
use crate::records::nodes::Bundle;
use crate::records::resources::{FreeResources, ResourceSet};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Reserves resources for the unplaced bundles of a group on these nodes. Sends requests to remote nodes.
    pub(crate) fn reserve_bundles(&mut self, id: GroupId, nodes: &[NodeKey]) {
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        let tenant = group.tenant;
        let mut reservation =
            Reservation { attempt: group.attempt, bundles: BTreeMap::new(), awaiting: BTreeSet::new() };
        let mut bundles_by_node: BTreeMap<NodeId, Vec<(u32, ResourceSet)>> = BTreeMap::new();
        let missing = group.spec.bundles.iter().zip(&group.bundles).zip(0..).filter(|((_, at), _)| at.is_none());
        for (((total, _), index), node) in missing.zip(nodes.iter().copied()) {
            let record = &self.cluster.nodes[node];
            if record.is_remote {
                bundles_by_node.entry(record.id).or_default().push((index, total.clone()));
            }
            let (attempt, free) = (record.is_remote.then_some(reservation.attempt), FreeResources::all_of(total));
            let bundle = Bundle { group: id, index, tenant, node, total: total.clone(), free, attempt };
            reservation.bundles.insert(index, self.cluster.reserve(bundle));
        }
        let attempt = reservation.attempt;
        reservation.awaiting.extend(bundles_by_node.keys().copied());
        group.reservation = Some(reservation);
        if bundles_by_node.is_empty() {
            return self.place_group(id);
        }
        group.attempt.0 += 1;
        for (node, bundles) in bundles_by_node {
            self.work.act(Action::ReserveBundles { group: id, node, attempt, bundles });
        }
    }

    /// Handles a node's reply. It may answer a reservation that was cancelled.
    pub(crate) fn handle_reserve_reply(&mut self, id: GroupId, node: NodeId, attempt: Attempt, is_granted: bool) {
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        let Some(reservation) = group.reservation.as_mut().filter(|reservation| reservation.attempt == attempt) else {
            return;
        };
        if !reservation.awaiting.remove(&node) {
            return;
        }
        if !is_granted {
            group.refused_by.insert(node);
            self.cancel_reservation(id, Some(node));
        } else if reservation.awaiting.is_empty() {
            self.place_group(id);
        }
    }

    /// Places the reserved bundles of a group, for which all nodes have granted the reservation.
    fn place_group(&mut self, id: GroupId) {
        self.groups.remove_waiting(id);
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        for (index, at) in group.reservation.take().into_iter().flat_map(|reservation| reservation.bundles) {
            group.bundles[index as usize] = Some(at);
        }
        // Tasks may wait for room in the group.
        self.work.needs_dispatch = true;
        if let Some(value) = group.value.take()
            && let Some(object) = self.ids.find_object(id.ready())
        {
            self.set_ready(object, value, Vec::new());
        }
    }

    /// Cancels a reservation after a node refused it or was lost. The group waits again.
    pub(crate) fn cancel_reservation(&mut self, id: GroupId, refused_by: Option<NodeId>) {
        let reservation = self.groups.all.get_mut(&id).and_then(|group| group.reservation.take());
        if let Some(reservation) = reservation {
            self.release_bundles(reservation.bundles.into_values().collect(), refused_by);
        }
    }

    /// Releases bundles, including those requested from remote nodes, except on the node that refused them.
    /// Returns the tasks in them.
    pub(crate) fn release_bundles(&mut self, bundles: Vec<BundleKey>, refused_by: Option<NodeId>) -> Vec<TaskKey> {
        self.work.needs_dispatch = true;
        // The bundles of a lost node are removed already.
        let remote = bundles.iter().filter_map(|at| self.cluster.bundles.get(*at)).filter_map(|bundle| {
            let node = self.cluster.nodes[bundle.node].id;
            bundle.attempt.filter(|_| Some(node) != refused_by).map(|attempt| (bundle.group, node, attempt))
        });
        for (group, node, attempt) in remote.collect::<BTreeSet<(GroupId, NodeId, Attempt)>>() {
            self.work.act(Action::ReleaseBundles { group, node, attempt });
        }
        bundles.into_iter().flat_map(|at| self.cluster.unreserve(at, &self.queue)).collect()
    }

    /// Permits new requests to a node that has reported its load, or that was lost.
    pub(crate) fn forget_refusals(&mut self, node: NodeId) {
        for group in self.groups.all.values_mut() {
            group.refused_by.remove(&node);
        }
    }
}
