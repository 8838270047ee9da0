//! Bundles: what is set aside of a node, and taken from as a node is.

use sandbar_core::{Attempt, GroupId};

use crate::cluster::{Cluster, Given};
use crate::places::{BundleAt, NodeAt, TaskAt, WorkerAt};
use crate::queue::Queue;
use crate::resources::{Demand, Free};

/// What a placement group has of a node.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) group: GroupId,
    pub(crate) index: u32,
    pub(crate) node: NodeAt,
    pub(crate) total: Demand,
    pub(crate) free: Free,
    /// In which attempt its node was asked for it, if that is far.
    pub(crate) attempt: Option<Attempt>,
}

impl Cluster {
    /// What is left where something runs.
    #[inline]
    pub(crate) fn free_mut(&mut self, node: NodeAt, bundle: Option<BundleAt>) -> &mut Free {
        match bundle {
            None => &mut self.nodes[node].free,
            Some(bundle) => &mut self.bundles[bundle].free,
        }
    }

    /// Sets room aside, of which there is enough.
    pub(crate) fn reserve(&mut self, bundle: Bundle) -> BundleAt {
        let node = &mut self.nodes[bundle.node];
        node.free.take(&bundle.total);
        node.at_rest.take(&bundle.total);
        self.bundles.insert(bundle)
    }

    /// Gives room back. What runs there takes it of the node from here on. Gives the tasks of that.
    pub(crate) fn unreserve(&mut self, at: BundleAt, queue: &Queue) -> Vec<TaskAt> {
        let Some(bundle) = self.bundles.remove(at) else { return Vec::new() };
        let node = &mut self.nodes[bundle.node];
        node.free.give_all(&bundle.free);
        node.at_rest.give(&bundle.total);
        self.has_more = true;
        let of_node = self.workers.iter().filter(|(_, worker)| worker.node == bundle.node);
        let workers: Vec<WorkerAt> = of_node.map(|(worker, _)| worker).collect();
        workers.into_iter().flat_map(|worker| self.leave_bundle(worker, at, queue)).collect()
    }

    fn leave_bundle(&mut self, worker_at: WorkerAt, at: BundleAt, queue: &Queue) -> Vec<TaskAt> {
        let worker = &mut self.workers[worker_at];
        let node = &mut self.nodes[worker.node];
        let mut tasks = Vec::new();
        let mut leave = |given: &mut Given| {
            let is_in_it = given.bundle == Some(at);
            if is_in_it {
                given.bundle = None;
                tasks.extend(given.task);
            }
            is_in_it
        };
        for given in worker.given.iter_mut().chain(&mut worker.blocked) {
            leave(given);
        }
        for resident in worker.residents.values_mut() {
            if leave(resident) {
                node.at_rest.take(&queue.shape(resident.shape).demand);
            }
        }
        // A worker runs one task of a shape at a time: it may have leased the node for that already.
        while let Some(place) = worker.leases.iter().position(|lease| lease.bundle == Some(at)) {
            let (shape, count) = (worker.leases[place].shape, worker.leases[place].count);
            match worker.leases.iter_mut().find(|lease| lease.shape == shape && lease.bundle.is_none()) {
                Some(lease) => {
                    lease.count += count;
                    worker.leases.swap_remove(place);
                    node.free.cpus += i128::from(queue.shape(shape).demand.cpus);
                }
                None => worker.leases[place].bundle = None,
            }
        }
        tasks
    }

    /// What was given a bundle.
    pub(crate) fn occupants(&self, at: BundleAt) -> impl Iterator<Item = &Given> {
        let node = self.bundles[at].node;
        let workers = self.workers.iter().filter(move |(_, worker)| worker.node == node);
        let all =
            workers.flat_map(|(_, worker)| worker.given.iter().chain(&worker.blocked).chain(worker.residents.values()));
        all.filter(move |given| given.bundle == Some(at))
    }

    /// What was set aside of a node that is gone.
    pub(crate) fn lose_bundles(&mut self, node: NodeAt) -> Vec<Bundle> {
        let of_node = self.bundles.iter().filter(|(_, bundle)| bundle.node == node);
        let all: Vec<BundleAt> = of_node.map(|(at, _)| at).collect();
        all.into_iter().filter_map(|at| self.bundles.remove(at)).collect()
    }
}
