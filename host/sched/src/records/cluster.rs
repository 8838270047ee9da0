//! The cluster: assignments of tasks and actors to workers, and their use of the nodes' resources.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{NodeId, TaskId, WorkerId};

use crate::event::WorkerKind;
use crate::records::keys::{BundleKey, NodeKey, TaskKey, TenantKey, WorkerKey};
use crate::records::level::Level;
use crate::records::nodes::{Bundle, Node, Nodes, WorkerPool};
use crate::records::queue::{Queue, Shape};
use crate::records::resources::ResourceSet;
use crate::records::slab::Slab;
use crate::records::tenants::{Tenants, UsageChange};
use crate::records::workers::{AssignedTask, Lease, Worker, Workers};

/// Load offset of workers on remote nodes: they come after all local workers with fewer blocked tasks than this.
const REMOTE_LOAD: u32 = 1 << 20;

/// Nodes, bundles, workers, and the tenants that use them.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Nodes,
    pub(crate) bundles: Slab<BundleKey, Bundle>,
    pub(crate) workers: Workers,
    pub(crate) tenants: Tenants,
    /// The first idle worker of each node, by the tenant whose tasks it runs.
    offers: BTreeMap<WorkerPool, BTreeSet<(u32, WorkerId, NodeKey)>>,
    /// Number of idle workers.
    pub(crate) idle: usize,
    /// Workers with recallable tasks, by the tenant and the level of their last task. Recalls begin with the last worker.
    recallable: BTreeMap<TenantKey, BTreeSet<(Level, WorkerKey)>>,
    /// Number of workers that have not answered a recall.
    pub(crate) pending_recalls: usize,
    /// Whether resources were freed since this was last cleared.
    pub(crate) has_freed_capacity: bool,
}

impl Cluster {
    pub(crate) fn new(memory_bytes_max: u64) -> Cluster {
        Cluster {
            nodes: Nodes::new(),
            bundles: Slab::new(),
            workers: Workers::new(),
            tenants: Tenants::new(memory_bytes_max),
            offers: BTreeMap::new(),
            idle: 0,
            recallable: BTreeMap::new(),
            pending_recalls: 0,
            has_freed_capacity: false,
        }
    }

    /// Adds a node. Returns whether the id was unused.
    pub(crate) fn add_node(&mut self, id: NodeId, total: ResourceSet, is_remote: bool, workers_max: u32) -> bool {
        let is_new = self.nodes.insert(id, total, is_remote, workers_max as usize);
        self.has_freed_capacity |= is_new;
        self.total_changed();
        is_new
    }

    /// Removes a node without workers and bundles.
    pub(crate) fn remove_node(&mut self, id: NodeId) {
        self.nodes.remove(id);
        self.total_changed();
    }

    fn total_changed(&mut self) {
        let (total, local_cpus) = self.nodes.total();
        self.tenants.set_total(total, local_cpus);
    }

    /// Adds a worker with an unused id on an existing node.
    pub(crate) fn add_worker(&mut self, id: WorkerId, node: NodeId, kind: WorkerKind) -> Option<WorkerKey> {
        let node = self.nodes.find(node).filter(|_| self.workers.find(id).is_none())?;
        let tenant = match kind {
            WorkerKind::Tasks(tenant) | WorkerKind::Actors(tenant) => Some(self.tenants.get_or_insert(tenant)),
            _ => None,
        };
        let at = self.workers.insert(id, node, kind, tenant);
        let node = &mut self.nodes[node];
        node.task_workers += usize::from(kind.runs_tasks());
        let counts = tenant.map(|tenant| node.tenant_workers.entry(tenant).or_default());
        match (kind, counts) {
            (WorkerKind::Tasks(_), Some(counts)) => {
                counts.task_workers += 1;
                counts.requested = counts.requested.saturating_sub(1);
            }
            (WorkerKind::Actors(_), Some(counts)) => {
                counts.is_starting_actor_worker = false;
                node.actor_workers.push(at);
            }
            (WorkerKind::PeerProxy, _) => node.actor_workers.push(at),
            _ => {}
        }
        self.refresh(at);
        Some(at)
    }

    /// Removes a worker and releases the resources of its tasks.
    pub(crate) fn remove_worker(&mut self, at: WorkerKey, queue: &mut Queue) -> Option<Worker> {
        self.set_recalled(at, false);
        let (assigned, blocked) = (self.workers[at].assigned.len(), self.workers[at].blocked.len());
        let assigned: Vec<AssignedTask> = (0..assigned).filter_map(|_| self.unassign(at, 0, queue)).collect();
        let blocked: Vec<AssignedTask> = (0..blocked).filter_map(|_| self.unassign_blocked(at, 0, queue)).collect();
        let actors: Vec<TaskId> = self.workers[at].actors.keys().copied().collect();
        let actors = actors.into_iter().filter_map(|id| Some((id, self.remove_actor(at, id, queue)?))).collect();
        let worker = &self.workers[at];
        let node = &mut self.nodes[worker.node];
        node.task_workers -= usize::from(worker.kind.runs_tasks());
        node.actor_workers.retain(|other| *other != at);
        if let (WorkerKind::Tasks(_), Some(tenant)) = (worker.kind, worker.tenant)
            && let Some(counts) = node.tenant_workers.get_mut(&tenant)
        {
            counts.task_workers -= 1;
        }
        self.set_idle(at, None);
        self.set_recallable(at, None);
        let mut worker = self.workers.remove(at)?;
        worker.assigned = assigned.into();
        worker.blocked = blocked;
        worker.actors = actors;
        Some(worker)
    }

    /// Registers the actor that a finished creation task leaves in its worker. It keeps the task's resources.
    pub(crate) fn host_actor(&mut self, at: WorkerKey, assigned: AssignedTask, queue: &mut Queue) {
        queue.use_shape(assigned.shape);
        let (shape, node) = (queue.shape(assigned.shape), self.workers[at].node);
        self.free_mut(node, assigned.bundle).acquire(&shape.demand);
        if assigned.bundle.is_none() {
            self.nodes[node].idle_free.acquire(&shape.demand);
            self.count_cpus(shape, node, true);
            self.count_rest(shape, true);
        }
        self.nodes[node].actors += 1;
        self.workers[at].actors.insert(assigned.id, assigned);
    }

    /// Removes an actor from its worker and releases its resources.
    pub(crate) fn remove_actor(&mut self, at: WorkerKey, id: TaskId, queue: &mut Queue) -> Option<AssignedTask> {
        let assigned = self.workers[at].actors.remove(&id)?;
        let (shape, node) = (queue.shape(assigned.shape), self.workers[at].node);
        self.free_mut(node, assigned.bundle).release(&shape.demand);
        if assigned.bundle.is_none() {
            self.nodes[node].idle_free.release(&shape.demand);
            self.count_cpus(shape, node, false);
            self.count_rest(shape, false);
        }
        self.nodes[node].actors -= 1;
        self.has_freed_capacity = true;
        queue.leave_shape(assigned.shape);
        Some(assigned)
    }

    /// Assigns a task to a worker, behind its other tasks, and acquires its resources.
    pub(crate) fn assign(&mut self, at: WorkerKey, assigned: AssignedTask, queue: &mut Queue) {
        queue.use_shape(assigned.shape);
        self.acquire(at, &assigned, queue);
        self.workers[at].assigned.push_back(assigned);
    }

    /// Like [`Cluster::assign`], for a task that runs already.
    pub(crate) fn assign_front(&mut self, at: WorkerKey, assigned: AssignedTask, queue: &mut Queue) {
        queue.use_shape(assigned.shape);
        self.acquire(at, &assigned, queue);
        self.workers[at].assigned.push_front(assigned);
    }

    /// Returns the position of a task among the worker's unblocked tasks.
    pub(crate) fn position(&self, at: WorkerKey, task: TaskId) -> Option<usize> {
        self.workers[at].assigned.iter().position(|assigned| assigned.id == task)
    }

    /// Like [`Cluster::position`], searching from the end.
    pub(crate) fn position_from_end(&self, at: WorkerKey, task: TaskId) -> Option<usize> {
        self.workers[at].assigned.iter().rposition(|assigned| assigned.id == task)
    }

    /// Returns the position of a task among the worker's blocked tasks, searching from the end.
    pub(crate) fn position_blocked(&self, at: WorkerKey, task: TaskId) -> Option<usize> {
        self.workers[at].blocked.iter().rposition(|assigned| assigned.id == task)
    }

    /// Removes an unblocked task from a worker.
    pub(crate) fn unassign(&mut self, at: WorkerKey, position: usize, queue: &mut Queue) -> Option<AssignedTask> {
        let assigned = self.workers[at].assigned.remove(position)?;
        self.release_cpus(at, &assigned, queue);
        self.release_rest(at, &assigned, queue);
        Some(assigned)
    }

    /// Removes a blocked task from a worker.
    pub(crate) fn unassign_blocked(
        &mut self,
        at: WorkerKey,
        position: usize,
        queue: &mut Queue,
    ) -> Option<AssignedTask> {
        let worker = &mut self.workers[at];
        let assigned = (position < worker.blocked.len()).then(|| worker.blocked.remove(position))?;
        self.release_rest(at, &assigned, queue);
        Some(assigned)
    }

    /// Releases the resources of a task except processors, which are released already.
    fn release_rest(&mut self, at: WorkerKey, assigned: &AssignedTask, queue: &mut Queue) {
        let (shape, worker) = (queue.shape(assigned.shape), &self.workers[at]);
        let node = worker.node;
        self.nodes[node].tasks -= usize::from(worker.kind.runs_tasks());
        if !shape.is_cpu_only {
            self.free_mut(node, assigned.bundle).release_rest(&shape.demand);
            if assigned.bundle.is_none() {
                self.count_rest(shape, false);
            }
            self.has_freed_capacity = true;
        }
        queue.leave_shape(assigned.shape);
    }

    /// Marks a task as blocked and releases its processors. Returns its key.
    pub(crate) fn block(&mut self, at: WorkerKey, position: usize, queue: &Queue) -> Option<TaskKey> {
        let assigned = self.workers[at].assigned.remove(position)?;
        self.release_cpus(at, &assigned, queue);
        let task = assigned.task;
        self.workers[at].blocked.push(assigned);
        task
    }

    /// Marks a blocked task as running, whether processors are free or not.
    pub(crate) fn unblock(&mut self, at: WorkerKey, position: usize, queue: &Queue) -> Option<TaskKey> {
        let assigned = self.workers[at].blocked.remove(position);
        let task = assigned.task;
        self.acquire_cpus(at, &assigned, queue);
        self.workers[at].assigned.push_front(assigned);
        task
    }

    fn acquire(&mut self, at: WorkerKey, assigned: &AssignedTask, queue: &Queue) {
        let (shape, worker) = (queue.shape(assigned.shape), &self.workers[at]);
        let node = worker.node;
        self.nodes[node].tasks += usize::from(worker.kind.runs_tasks());
        if !shape.is_cpu_only {
            self.free_mut(node, assigned.bundle).acquire_rest(&shape.demand);
            if assigned.bundle.is_none() {
                self.count_rest(shape, true);
            }
        }
        self.acquire_cpus(at, assigned, queue);
    }

    /// Acquires processors for a task, or shares the lease of other tasks of its shape: a worker runs one task at a
    /// time, unless it is of a kind that runs several.
    fn acquire_cpus(&mut self, at: WorkerKey, assigned: &AssignedTask, queue: &Queue) {
        let worker = &mut self.workers[at];
        worker.nanos += assigned.nanos;
        let shape = queue.shape(assigned.shape);
        if shape.is_cpu_only && !worker.kind.runs_several() {
            if let Some(lease) = worker.leases.iter_mut().find(|lease| lease.is_for(assigned)) {
                lease.count += 1;
                return;
            }
            worker.leases.push(Lease { shape: assigned.shape, bundle: assigned.bundle, count: 1 });
        }
        let node = worker.node;
        self.free_mut(node, assigned.bundle).cpus -= i128::from(shape.demand.cpus);
        if assigned.bundle.is_none() {
            self.count_cpus(shape, node, true);
        }
    }

    /// Releases the processors of a task, unless other tasks share its lease.
    fn release_cpus(&mut self, at: WorkerKey, assigned: &AssignedTask, queue: &Queue) {
        let worker = &mut self.workers[at];
        worker.nanos -= assigned.nanos;
        let shape = queue.shape(assigned.shape);
        if shape.is_cpu_only
            && !worker.kind.runs_several()
            && let Some(position) = worker.leases.iter().position(|lease| lease.is_for(assigned))
        {
            worker.leases[position].count -= 1;
            if worker.leases[position].count > 0 {
                return;
            }
            worker.leases.swap_remove(position);
        }
        let node = worker.node;
        self.free_mut(node, assigned.bundle).cpus += i128::from(shape.demand.cpus);
        if assigned.bundle.is_none() {
            self.count_cpus(shape, node, false);
        }
        self.has_freed_capacity = true;
    }

    /// Counts processors of a node outside of bundles, as used by the shape's tenant or not any more.
    pub(super) fn count_cpus(&mut self, shape: &Shape, node: NodeKey, is_used: bool) {
        let cpus = i128::from(shape.demand.cpus);
        let (cpus, is_local) = (if is_used { cpus } else { -cpus }, !self.nodes[node].is_remote);
        self.tenants.change_usage(shape.tenant, UsageChange { cpus, rest_added: None, rest_removed: None, is_local });
    }

    /// Like `count_cpus`, for all other resources.
    fn count_rest(&mut self, shape: &Shape, is_used: bool) {
        let rest = (!shape.is_cpu_only).then_some(&shape.demand);
        let (rest_added, rest_removed) = if is_used { (rest, None) } else { (None, rest) };
        self.tenants.change_usage(shape.tenant, UsageChange { cpus: 0, rest_added, rest_removed, is_local: true });
    }

    /// Iterates over one idle worker of each node for a tenant's tasks, in load order.
    pub(crate) fn offers(&self, tenant: TenantKey) -> impl Iterator<Item = (u32, WorkerId, NodeKey)> {
        // Workers of remote nodes come after local ones.
        let pools = [Some(tenant), None].into_iter();
        pools.filter_map(|pool| self.offers.get(&pool)).flatten().copied()
    }

    /// Whether an idle worker could run a tenant's tasks.
    pub(crate) fn has_offers(&self, tenant: TenantKey) -> bool {
        self.offers(tenant).next().is_some()
    }

    /// Returns the number of task workers that a tenant has, or will have, for its tasks.
    pub(crate) fn task_workers(&self, tenant: TenantKey) -> usize {
        let of_node = |(_, node): (NodeKey, &Node)| {
            node.tenant_workers.get(&tenant).map_or(0, |counts| counts.task_workers + counts.requested)
        };
        self.nodes.iter().map(of_node).sum::<usize>() + self.workers.remote_workers
    }

    /// Returns the key by which idle workers are ordered, the least loaded first.
    pub(crate) fn load(&self, at: WorkerKey) -> (u32, WorkerId) {
        let worker = &self.workers[at];
        let distance = if self.nodes[worker.node].is_remote { REMOTE_LOAD } else { 0 };
        (distance + worker.blocked.len() as u32, worker.id)
    }

    /// Returns the node's worker for actors of a tenant with the fewest actors (including those in creation), and the number
    /// of such workers.
    pub(crate) fn actor_workers(&self, node: NodeKey, tenant: TenantKey) -> (Option<(usize, WorkerKey)>, usize) {
        let is_its = |at: &WorkerKey| self.workers[*at].tenant.is_none_or(|of| of == tenant);
        let workers = self.nodes[node].actor_workers.iter().copied().filter(is_its);
        let load = |at: WorkerKey| self.workers[at].actors.len() + self.workers[at].assigned.len();
        (workers.clone().map(|at| (load(at), at)).min(), workers.count())
    }

    /// Whether a worker has nothing to run and is not in the idle set yet.
    pub(crate) fn could_be_idle(&self, at: WorkerKey) -> bool {
        let worker = &self.workers[at];
        worker.assigned.is_empty() && worker.idle.is_none() && worker.kind.runs_tasks()
    }

    /// Whether a node has an idle worker for a tenant's tasks.
    pub(crate) fn has_idle(&self, node: NodeKey, tenant: TenantKey) -> bool {
        let idle = &self.nodes[node].idle;
        [Some(tenant), None].iter().any(|pool| idle.get(pool).is_some_and(|workers| !workers.is_empty()))
    }

    /// Returns the worker whose last task is the tenant's last in dispatch order, and that task's level.
    pub(crate) fn last_recallable(&self, tenant: TenantKey) -> Option<(Level, WorkerKey)> {
        self.recallable.get(&tenant)?.last().copied()
    }

    /// Iterates over workers with recallable tasks, and the tenants of these tasks.
    pub(crate) fn recallable(&self) -> impl Iterator<Item = (TenantKey, WorkerKey)> {
        self.recallable.iter().flat_map(|(tenant, workers)| workers.iter().map(|(_, worker)| (*tenant, *worker)))
    }

    pub(crate) fn set_recalled(&mut self, at: WorkerKey, recall_pending: bool) {
        let worker = &mut self.workers[at];
        match (worker.recall_pending, recall_pending) {
            (false, true) => self.pending_recalls += 1,
            (true, false) => self.pending_recalls -= 1,
            _ => {}
        }
        worker.recall_pending = recall_pending;
        self.refresh(at);
    }

    /// Updates the idle and recallable sets after the worker's tasks have changed.
    pub(crate) fn refresh(&mut self, at: WorkerKey) {
        let worker = &self.workers[at];
        if !worker.kind.runs_tasks() {
            return;
        }
        let idle = worker.assigned.is_empty().then_some(self.load(at).0);
        let can_recall = worker.assigned.len() > 1 && !worker.recall_pending;
        let last = worker.assigned.back().filter(|_| can_recall);
        let recallable = last.map(|assigned| (assigned.tenant, assigned.level));
        if idle != worker.idle {
            self.set_idle(at, idle);
        }
        if recallable != self.workers[at].recallable {
            self.set_recallable(at, recallable);
        }
    }

    fn set_idle(&mut self, at: WorkerKey, idle: Option<u32>) {
        let worker = &mut self.workers[at];
        let before = std::mem::replace(&mut worker.idle, idle);
        let (id, node_at, pool) = (worker.id, worker.node, worker.tenant);
        let workers = self.nodes[node_at].idle.entry(pool).or_default();
        let offer = workers.first().copied();
        if let Some(load) = before {
            workers.remove(&(load, id));
            self.idle -= 1;
        }
        if let Some(load) = idle {
            workers.insert((load, id));
            self.idle += 1;
            self.has_freed_capacity = true;
        }
        let new = workers.first().copied();
        if new != offer {
            let offers = self.offers.entry(pool).or_default();
            offer.map(|(load, id)| offers.remove(&(load, id, node_at)));
            new.map(|(load, id)| offers.insert((load, id, node_at)));
        }
    }

    fn set_recallable(&mut self, at: WorkerKey, recallable: Option<(TenantKey, Level)>) {
        let before = std::mem::replace(&mut self.workers[at].recallable, recallable);
        if let Some((tenant, level)) = before
            && let Some(workers) = self.recallable.get_mut(&tenant)
        {
            workers.remove(&(level, at));
        }
        if let Some((tenant, level)) = recallable {
            self.recallable.entry(tenant).or_default().insert((level, at));
        }
    }
}
