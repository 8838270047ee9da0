//! Bundles: resources of a node that are reserved for a placement group. Tasks use a bundle's resources as they use a
//! node's.

use crate::records::cluster::Cluster;
use crate::records::keys::{BundleKey, NodeKey, TaskKey, WorkerKey};
use crate::records::nodes::Bundle;
use crate::records::queue::Queue;
use crate::records::resources::FreeResources;
use crate::records::tenants::UsageChange;
use crate::records::workers::AssignedTask;

impl Cluster {
    /// Returns the free resources of a bundle or a node.
    #[inline]
    pub(crate) fn free_mut(&mut self, node: NodeKey, bundle: Option<BundleKey>) -> &mut FreeResources {
        match bundle {
            None => &mut self.nodes[node].free,
            Some(bundle) => &mut self.bundles[bundle].free,
        }
    }

    /// Reserves resources of a node, of which enough are free.
    pub(crate) fn reserve(&mut self, bundle: Bundle) -> BundleKey {
        let node = &mut self.nodes[bundle.node];
        node.free.acquire(&bundle.total);
        node.idle_free.acquire(&bundle.total);
        let (cpus, rest) = (bundle.total.cpus.into(), Some(&bundle.total));
        let change = UsageChange { cpus, rest_added: rest, rest_removed: None, is_local: !node.is_remote };
        self.tenants.change_usage(bundle.tenant, change);
        self.bundles.insert(bundle)
    }

    /// Releases a bundle. Its tasks use resources of the node from then on. Returns these tasks.
    pub(crate) fn unreserve(&mut self, at: BundleKey, queue: &Queue) -> Vec<TaskKey> {
        let Some(bundle) = self.bundles.remove(at) else { return Vec::new() };
        let node = &mut self.nodes[bundle.node];
        node.free.release_all(&bundle.free);
        node.idle_free.release(&bundle.total);
        // What tasks of the bundle use counts as theirs.
        let (cpus, rest) = (-bundle.free.cpus, Some(&bundle.free.rest));
        let change = UsageChange { cpus, rest_added: None, rest_removed: rest, is_local: !node.is_remote };
        self.tenants.change_usage(bundle.tenant, change);
        self.has_freed_capacity = true;
        let of_node = self.workers.iter().filter(|(_, worker)| worker.node == bundle.node);
        let workers: Vec<WorkerKey> = of_node.map(|(worker, _)| worker).collect();
        workers.into_iter().flat_map(|worker| self.leave_bundle(worker, at, queue)).collect()
    }

    fn leave_bundle(&mut self, worker_at: WorkerKey, at: BundleKey, queue: &Queue) -> Vec<TaskKey> {
        let worker = &mut self.workers[worker_at];
        let node = &mut self.nodes[worker.node];
        let mut tasks = Vec::new();
        let mut leave = |assigned: &mut AssignedTask| {
            let is_in_it = assigned.bundle == Some(at);
            if is_in_it {
                assigned.bundle = None;
                tasks.extend(assigned.task);
            }
            is_in_it
        };
        for assigned in worker.assigned.iter_mut().chain(&mut worker.blocked) {
            leave(assigned);
        }
        for resident in worker.actors.values_mut() {
            if leave(resident) {
                node.idle_free.acquire(&queue.shape(resident.shape).demand);
            }
        }
        let mut merged = Vec::new();
        // The worker may already hold a lease of the node for the shape: it runs one task at a time.
        while let Some(place) = worker.leases.iter().position(|lease| lease.bundle == Some(at)) {
            let (shape, count) = (worker.leases[place].shape, worker.leases[place].count);
            match worker.leases.iter_mut().find(|lease| lease.shape == shape && lease.bundle.is_none()) {
                Some(lease) => {
                    lease.count += count;
                    worker.leases.swap_remove(place);
                    let shape = queue.shape(shape);
                    node.free.cpus += i128::from(shape.demand.cpus);
                    merged.push(shape);
                }
                None => worker.leases[place].bundle = None,
            }
        }
        let node = worker.node;
        merged.into_iter().for_each(|shape| self.count_cpus(shape, node, false));
        tasks
    }

    /// Iterates over the tasks and actors in a bundle.
    pub(crate) fn occupants(&self, at: BundleKey) -> impl Iterator<Item = &AssignedTask> {
        let node = self.bundles[at].node;
        let workers = self.workers.iter().filter(move |(_, worker)| worker.node == node);
        let all =
            workers.flat_map(|(_, worker)| worker.assigned.iter().chain(&worker.blocked).chain(worker.actors.values()));
        all.filter(move |assigned| assigned.bundle == Some(at))
    }

    /// Removes the bundles of a lost node.
    pub(crate) fn lose_bundles(&mut self, node: NodeKey) -> Vec<Bundle> {
        let of_node = self.bundles.iter().filter(|(_, bundle)| bundle.node == node);
        let all: Vec<BundleKey> = of_node.map(|(at, _)| at).collect();
        let all: Vec<Bundle> = all.into_iter().filter_map(|at| self.bundles.remove(at)).collect();
        for bundle in &all {
            let (cpus, rest) = (-i128::from(bundle.total.cpus), Some(&bundle.total));
            let is_local = !self.nodes[node].is_remote;
            self.tenants
                .change_usage(bundle.tenant, UsageChange { cpus, rest_added: None, rest_removed: rest, is_local });
        }
        all
    }
}
