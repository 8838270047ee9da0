//! Nodes, and the bundles on them.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Attempt, GroupId, NodeId, WorkerId};

use crate::records::keys::{NodeKey, TenantKey, WorkerKey};
use crate::records::resources::{FreeResources, ResourceSet};
use crate::records::slab::{Slab, index_records};

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) total: ResourceSet,
    pub(crate) is_remote: bool,
    /// The node drains: nothing new starts here.
    pub(crate) is_draining: bool,
    /// External usage of a remote node, as last reported. It is clamped to the node's total and may exceed what is
    /// free.
    pub(crate) external_usage: ResourceSet,
    /// Resources that this scheduler has not assigned.
    pub(crate) free: FreeResources,
    /// Resources that would be free if all tasks had finished: the total without bundles and actors.
    pub(crate) idle_free: FreeResources,
    /// Number of tasks assigned to task workers here.
    pub(crate) tasks: usize,
    /// Whether the node is reserved for a driver or a placement group that waits for resources. No other task starts here.
    pub(crate) is_held: bool,
    /// Maximum number of task workers of each tenant here.
    pub(crate) workers_max: usize,
    /// Workers that host several actors; on a remote node, its proxy worker.
    pub(super) actor_workers: Vec<WorkerKey>,
    /// Number of task workers here.
    pub(crate) task_workers: usize,
    /// Task workers of each tenant here, present and requested.
    pub(crate) tenant_workers: BTreeMap<TenantKey, WorkerCounts>,
    /// Number of actors here.
    pub(crate) actors: usize,
    /// Workers without a running task, the ones with the fewest blocked tasks first.
    pub(super) idle: BTreeMap<WorkerPool, BTreeSet<(u32, WorkerId)>>,
}

/// The tenant whose tasks a worker runs, or `None` for a worker of a remote node, which runs those of any tenant.
pub(crate) type WorkerPool = Option<TenantKey>;

/// Workers of a tenant on a node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WorkerCounts {
    pub(crate) task_workers: usize,
    /// Number of task workers that were requested and are not ready yet.
    pub(crate) requested: usize,
    /// Whether another worker for actors was requested.
    pub(crate) is_starting_actor_worker: bool,
}

/// Resources of a node that a placement group has.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) group: GroupId,
    pub(crate) index: u32,
    /// The tenant of the group.
    pub(crate) tenant: TenantKey,
    pub(crate) node: NodeKey,
    pub(crate) total: ResourceSet,
    pub(crate) free: FreeResources,
    /// Reservation attempt in which it was requested from a remote node; `None` on local nodes.
    pub(crate) attempt: Option<Attempt>,
}

/// Nodes by key and by id.
#[derive(Debug)]
pub(crate) struct Nodes {
    records: Slab<NodeKey, Node>,
    ids: BTreeMap<NodeId, NodeKey>,
    /// The first local node that joined.
    pub(crate) local: Option<NodeId>,
    /// Nodes that are reserved for waiting work.
    held: Vec<NodeKey>,
    /// Number of times that a node joined or was removed.
    pub(crate) membership_changes: u64,
}

index_records!([] Nodes, NodeKey => Node);

impl Node {
    fn new(id: NodeId, total: ResourceSet, is_remote: bool, workers_max: usize) -> Node {
        let free = FreeResources::all_of(&total);
        Node {
            id,
            total,
            is_remote,
            is_draining: false,
            external_usage: ResourceSet::default(),
            idle_free: free.clone(),
            free,
            tasks: 0,
            is_held: false,
            workers_max,
            actor_workers: Vec::new(),
            task_workers: 0,
            tenant_workers: BTreeMap::new(),
            actors: 0,
            idle: BTreeMap::new(),
        }
    }

    /// Whether external usage exceeds the free processors, so that assigned tasks compete for them.
    pub(crate) fn is_overcommitted(&self) -> bool {
        self.external_usage.cpus > 0 && self.free.cpus < i128::from(self.external_usage.cpus)
    }
}

impl Nodes {
    pub(crate) fn new() -> Nodes {
        Nodes { records: Slab::new(), ids: BTreeMap::new(), local: None, held: Vec::new(), membership_changes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    #[inline]
    pub(crate) fn find(&self, id: NodeId) -> Option<NodeKey> {
        self.ids.get(&id).copied()
    }

    /// Iterates over the nodes in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeKey, &Node)> {
        self.records.iter()
    }

    /// Iterates over the keys of the nodes in id order.
    pub(crate) fn in_id_order(&self) -> impl Iterator<Item = NodeKey> {
        self.ids.values().copied()
    }

    /// Adds a node. Returns whether the id was unused.
    pub(super) fn insert(&mut self, id: NodeId, total: ResourceSet, is_remote: bool, workers_max: usize) -> bool {
        if self.ids.contains_key(&id) {
            return false;
        }
        let at = self.records.insert(Node::new(id, total, is_remote, workers_max));
        self.ids.insert(id, at);
        self.local = self.local.or((!is_remote).then_some(id));
        self.membership_changes += 1;
        true
    }

    /// Removes a node without workers.
    pub(super) fn remove(&mut self, id: NodeId) {
        if let Some(at) = self.ids.remove(&id) {
            self.records.remove(at);
            self.membership_changes += 1;
        }
    }

    /// Reserves a node for a root task or a placement group that waits for its resources. No other task starts there.
    pub(crate) fn hold(&mut self, at: NodeKey) {
        self.records[at].is_held = true;
        self.held.push(at);
    }

    /// Returns the resources of all nodes, and the processors of the local ones.
    pub(super) fn total(&self) -> (ResourceSet, u64) {
        let local = self.records.iter().filter(|(_, node)| !node.is_remote);
        let local_cpus = local.fold(0_u64, |sum, (_, node)| sum.saturating_add(node.total.cpus));
        (ResourceSet::sum(self.records.iter().map(|(_, node)| &node.total)), local_cpus)
    }

    /// Releases all held nodes.
    pub(crate) fn release_held(&mut self) {
        for at in self.held.drain(..) {
            if let Some(node) = self.records.get_mut(at) {
                node.is_held = false;
            }
        }
    }
}
