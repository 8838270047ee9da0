//! Placement group records.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Attempt, Fault, GroupId, NodeId};

use crate::event::GroupSpec;
use crate::records::keys::{BundleKey, JobKey, TaskKey, TenantKey};
use crate::records::nodes::Node;

/// A placement group.
#[derive(Debug)]
pub(crate) struct Group<V> {
    pub(crate) job: JobKey,
    pub(crate) tenant: TenantKey,
    /// Position in the order of creation.
    pub(crate) number: u64,
    pub(crate) spec: GroupSpec,
    /// The placed bundles, by index.
    pub(crate) bundles: Vec<Option<BundleKey>>,
    /// A reservation of the unplaced bundles that waits for the answers of nodes.
    pub(crate) reservation: Option<Reservation>,
    /// Attempt number of the next reservation.
    pub(crate) attempt: Attempt,
    /// Nodes that refused a reservation and have not reported their load since.
    pub(crate) refused_by: BTreeSet<NodeId>,
    /// The task with which the group is removed.
    pub(crate) owner: Option<TaskKey>,
    /// The value of the group's object, until all bundles are placed for the first time.
    pub(crate) value: Option<V>,
    /// Names of the creating task and its ancestors.
    pub(crate) chain: Vec<String>,
    /// Why the group failed.
    pub(crate) failed: Option<Fault>,
}

/// A reservation of all unplaced bundles of a group, until all requested nodes have granted it.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) attempt: Attempt,
    /// Bundles, by their index in the group.
    pub(crate) bundles: BTreeMap<u32, BundleKey>,
    /// Nodes that have not answered.
    pub(crate) awaiting: BTreeSet<NodeId>,
}

/// Placement groups of all jobs.
#[derive(Debug)]
pub(crate) struct Groups<V> {
    pub(crate) all: BTreeMap<GroupId, Group<V>>,
    /// Groups with unplaced bundles, by tenant in order of creation.
    waiting: BTreeMap<(TenantKey, u64), GroupId>,
    /// Groups that are removed with a task.
    by_owner: BTreeSet<(TaskKey, GroupId)>,
    number: u64,
}

impl<V> Groups<V> {
    pub(crate) fn new() -> Groups<V> {
        Groups { all: BTreeMap::new(), waiting: BTreeMap::new(), by_owner: BTreeSet::new(), number: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.waiting.is_empty() && self.by_owner.is_empty()
    }

    /// Adds a group, behind all others in the order of creation.
    pub(crate) fn insert(&mut self, id: GroupId, mut group: Group<V>) {
        self.number += 1;
        group.number = self.number;
        self.by_owner.extend(group.owner.map(|owner| (owner, id)));
        self.waiting.insert((group.tenant, group.number), id);
        self.all.insert(id, group);
    }

    /// Records that a group has unplaced bundles.
    pub(crate) fn set_waiting(&mut self, id: GroupId) {
        if let Some(group) = self.all.get(&id) {
            self.waiting.insert((group.tenant, group.number), id);
        }
    }

    /// Records that a group has no unplaced bundles, or failed.
    pub(crate) fn remove_waiting(&mut self, id: GroupId) {
        if let Some(group) = self.all.get(&id) {
            self.waiting.remove(&(group.tenant, group.number));
        }
    }

    /// Whether a group has unplaced bundles.
    pub(crate) fn is_waiting(&self, group: &Group<V>) -> bool {
        self.waiting.contains_key(&(group.tenant, group.number))
    }

    /// Whether some group has unplaced bundles.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Iterates over the groups with unplaced bundles, by tenant in order of creation.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (TenantKey, GroupId)> {
        self.waiting.iter().map(|((tenant, _), id)| (*tenant, *id))
    }

    /// Iterates over the tenant's groups with unplaced bundles, in order of creation.
    pub(crate) fn waiting_of(&self, tenant: TenantKey) -> impl Iterator<Item = GroupId> {
        self.waiting.range((tenant, 0)..=(tenant, u64::MAX)).map(|(_, id)| *id)
    }

    /// Returns a group that is removed with a task.
    pub(crate) fn owned_by(&self, task: TaskKey) -> Option<GroupId> {
        let all = (task, GroupId(0))..=(task, GroupId(u64::MAX));
        self.by_owner.range(all).next().map(|(_, id)| *id)
    }

    pub(crate) fn remove(&mut self, id: GroupId) -> Option<Group<V>> {
        let group = self.all.remove(&id)?;
        self.waiting.remove(&(group.tenant, group.number));
        if let Some(owner) = group.owner {
            self.by_owner.remove(&(owner, id));
        }
        Some(group)
    }
}

impl<V> Group<V> {
    /// Returns a group without placed bundles. `value` is the value of its object once all are placed.
    pub(crate) fn new(
        (job, tenant): (JobKey, TenantKey),
        creator: TaskKey,
        chain: Vec<String>,
        spec: GroupSpec,
        value: V,
    ) -> Group<V> {
        Group {
            job,
            tenant,
            number: 0,
            bundles: vec![None; spec.bundles.len()],
            reservation: None,
            attempt: Attempt(0),
            refused_by: BTreeSet::new(),
            owner: spec.local_only.then_some(creator),
            spec,
            value: Some(value),
            chain,
            failed: None,
        }
    }

    /// Returns the name of the group for messages.
    pub(crate) fn name(&self, id: GroupId) -> String {
        match &self.spec.name {
            Some(name) => format!("placement group `{name}`"),
            None => format!("placement group {}", id.short()),
        }
    }

    /// Whether bundles of the group may be placed on a node, if it has room.
    pub(crate) fn may_place_on(&self, node: &Node) -> bool {
        !node.is_remote || !self.spec.local_only
    }

    /// Takes the placed and the reserved bundles out of the group.
    pub(crate) fn take_bundles(&mut self) -> Vec<BundleKey> {
        let placed = std::mem::take(&mut self.bundles).into_iter().flatten();
        placed
            .chain(self.reservation.take().into_iter().flat_map(|reservation| reservation.bundles.into_values()))
            .collect()
    }
}
