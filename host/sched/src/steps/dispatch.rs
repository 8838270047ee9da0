//! Dispatch of queued work to workers: tenant by tenant in fair order, each tenant's work in queue order.
//!
//! A worker runs one task at a time, so it holds the processors of its unblocked tasks once. Tasks that request only
//! processors are assigned in advance, up to about a millisecond of work per worker, so that one message carries many.
//! A worker gets at most half of its share of the queue, so that other workers get tasks as well. Leases are in the same
//! queue, and go to the worker that has all of them.
//!
//! A tenant that uses less than its guaranteed processors and has waited for a while may start tasks on processors that
//! others use: the operating system then divides them.

use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, Strategy, TaskError, WorkerId};

use crate::event::{Action, WorkerKind};
use crate::records::keys::{BundleKey, JobKey, NodeKey, ShapeKey, TaskKey, TenantKey, WorkerKey};
use crate::records::nodes::Node;
use crate::records::queue::{Feasibility, RankedShape, Shape};
use crate::records::resources::ResourceSet;
use crate::records::step_work::WorkItem;
use crate::records::tasks::TaskPhase;
use crate::records::workers::{AssignedTask, Lease};
use crate::scheduler::Scheduler;

/// Maximum number of shapes without room that one dispatch passes over.
const STUCK_MAX: usize = 256;

/// The turn of a tenant in a dispatch, which it has several times.
#[derive(Debug)]
struct Turn {
    tenant: TenantKey,
    phase: Phase,
    was_served: bool,
}

/// What a tenant's turn serves next.
#[derive(Debug)]
enum Phase {
    /// Root tasks, after the one of this job.
    Drivers(Option<JobId>),
    Groups,
    Actors,
    /// Queued tasks, after this shape.
    Tasks(Option<RankedShape>),
    Ended,
}

/// Why a shape's first task was not assigned, or that it was.
enum Assigned {
    Yes,
    /// No node has room.
    NoRoom(RankedShape),
    /// A node may have room, but the tenant has no idle worker there.
    NoWorker(RankedShape),
    /// No shape is left, or no worker.
    Nothing,
}

impl<C, V> Scheduler<C, V> {
    /// Updates a worker after a change of its assigned tasks.
    pub(crate) fn assignments_changed(&mut self, at: WorkerKey) {
        self.work.changed_worker = Some(at);
        if self.cluster.could_be_idle(at) {
            // It usually gets a task at once, so it is not put into the idle set.
            self.work.needs_dispatch = true;
        } else {
            self.cluster.refresh(at);
            self.work.needs_dispatch |= self.wants_more(at);
        }
    }

    /// Starts root tasks, places groups and actors, and assigns queued tasks, as far as there is room.
    pub(crate) fn dispatch(&mut self) {
        if !std::mem::take(&mut self.work.needs_dispatch) & !std::mem::take(&mut self.cluster.has_freed_capacity) {
            return;
        }
        self.cluster.nodes.release_held();
        let tenants = self.queued_tenants();
        let turn = |tenant| Turn { tenant, phase: Phase::Drivers(None), was_served: false };
        let mut turns: Vec<Turn> = tenants.into_iter().map(turn).collect();
        let (mut stuck, mut passed) = (None, 0);
        while passed < STUCK_MAX
            && let Some(next) = self.next_turn(&turns)
        {
            let turn = &mut turns[next];
            if self.serve(turn, &mut stuck, &mut passed) {
                turn.was_served = true;
                self.cluster.tenants.served(turn.tenant);
            }
        }
        turns.iter().filter(|turn| !turn.was_served).for_each(|turn| self.cluster.tenants.passed_over(turn.tenant));
        // The resources that were assigned above come from those that were free.
        self.cluster.has_freed_capacity = false;
        self.work.needs_dispatch = false;
    }

    /// Returns the tenants with queued work, in key order.
    fn queued_tenants(&self) -> Vec<TenantKey> {
        let groups = self.groups.waiting().map(|(tenant, _)| tenant);
        let actors = self.actors.pending.shapes().map(|shape| self.queue.shape(shape).tenant);
        let mut tenants: Vec<TenantKey> = self.queue.tenants().collect();
        let of_tasks = tenants.len();
        tenants.extend(self.jobs.starting_tenants().chain(groups).chain(actors));
        if tenants.len() > of_tasks {
            tenants.sort_unstable();
            tenants.dedup();
        }
        tenants
    }

    /// Returns the index of the turn that comes next in fair order.
    fn next_turn(&mut self, turns: &[Turn]) -> Option<usize> {
        let mut left = turns.iter().enumerate().filter(|(_, turn)| !matches!(turn.phase, Phase::Ended));
        let (first, _) = left.next()?;
        // Usually there is one tenant.
        let Some((second, _)) = left.next() else { return Some(first) };
        let quantum_nanos = self.options.window_nanos;
        let indexes = [first, second].into_iter().chain(left.map(|(index, _)| index));
        indexes.min_by_key(|index| self.cluster.tenants.rank(turns[*index].tenant, quantum_nanos))
    }

    /// Starts one piece of a tenant's work, or goes on to the next phase of its turn. Returns whether it started something.
    fn serve(&mut self, turn: &mut Turn, stuck: &mut Option<ShapeKey>, passed: &mut usize) -> bool {
        match turn.phase {
            Phase::Drivers(after) => {
                let Some((id, job)) = self.jobs.next_starting(turn.tenant, after) else {
                    turn.phase = Phase::Groups;
                    return false;
                };
                turn.phase = Phase::Drivers(Some(id));
                let stops_waiting = self.start_driver(job);
                if stops_waiting {
                    self.jobs.remove_starting(job);
                }
                stops_waiting
            }
            Phase::Groups => {
                turn.phase = Phase::Actors;
                self.place_groups(turn.tenant)
            }
            Phase::Actors => {
                let is_placed = self.place_actor(turn.tenant);
                if !is_placed {
                    turn.phase = Phase::Tasks(None);
                }
                is_placed
            }
            Phase::Tasks(after) => {
                let assigned = self.assign_queued(turn.tenant, after, *stuck);
                turn.phase = match assigned {
                    Assigned::Yes => return true,
                    Assigned::Nothing => Phase::Ended,
                    Assigned::NoRoom(queued) | Assigned::NoWorker(queued) => Phase::Tasks(Some(queued)),
                };
                if let Assigned::NoRoom(queued) = assigned {
                    *passed += 1;
                    // Tasks in groups do not compete for a node's free resources.
                    let is_in_group = self.queue.shape(queued.shape).is_in_group();
                    *stuck = stuck.or_else(|| (!is_in_group).then_some(queued.shape));
                }
                false
            }
            Phase::Ended => false,
        }
    }

    /// Lets tenants that have waited too long start work on processors that others use.
    pub(crate) fn end_waits(&mut self) {
        let queued = self.queued_tenants();
        let patience_nanos = self.options.patience_nanos;
        self.work.needs_dispatch |= !queued.is_empty() && self.cluster.tenants.end_waits(&queued, patience_nanos);
    }

    /// Assigns the tenant's next tasks in queue order to a worker, from the shape after `passed` on.
    fn assign_queued(&mut self, tenant: TenantKey, passed: Option<RankedShape>, stuck: Option<ShapeKey>) -> Assigned {
        loop {
            let is_its = |at: &WorkerKey| self.cluster.workers[*at].tenant.is_none_or(|of| of == tenant);
            let changed = self.work.changed_worker.filter(is_its);
            let fresh = changed.filter(|at| self.cluster.could_be_idle(*at));
            let extendable = changed.filter(|at| self.wants_more(*at));
            let has_worker = fresh.is_some() || extendable.is_some() || self.cluster.has_offers(tenant);
            if !has_worker && self.queue.leases == 0 && !self.can_start_worker(tenant) {
                return Assigned::Nothing;
            }
            let Some(queued) = self.queue.after(tenant, passed) else { return Assigned::Nothing };
            if self.requeue_first_incomplete(queued.shape) {
                continue;
            }
            let worker = if self.queue.shape(queued.shape).is_lease {
                let has_room = |at: &WorkerKey| self.has_room(self.cluster.workers[*at].node, queued.shape, stuck);
                self.cluster.workers.lease_worker.filter(has_room)
            } else {
                let idle = self.idle_for(queued.shape, stuck, fresh);
                let is_starting = idle.is_none_or(|at| self.is_remote(at)) && self.request_workers(queued.shape, stuck);
                let spreads = self.queue.shape(queued.shape).strategy == Strategy::Spread;
                if is_starting && (idle.is_none() || !spreads) {
                    return Assigned::NoWorker(queued);
                }
                idle.or_else(|| extendable.filter(|at| self.may_extend(*at, queued.shape, stuck)))
            };
            return match worker {
                Some(worker) if self.fill(worker, queued) => Assigned::Yes,
                _ => Assigned::NoRoom(queued),
            };
        }
    }

    fn is_remote(&self, worker: WorkerKey) -> bool {
        self.cluster.nodes[self.cluster.workers[worker].node].is_remote
    }

    /// Whether some local node may start another task worker for a tenant, or is starting one.
    fn can_start_worker(&self, tenant: TenantKey) -> bool {
        self.cluster.nodes.iter().any(|(_, node)| {
            let counts = node.tenant_workers.get(&tenant).copied().unwrap_or_default();
            counts.requested > 0 || counts.task_workers < node.workers_max
        })
    }

    /// Whether another task worker of a shape's tenant can be requested on the local node, where others are being started.
    pub(crate) fn needs_worker(&self, shape: ShapeKey) -> bool {
        let shape = self.queue.shape(shape);
        let Some(node) = self.cluster.nodes.local.and_then(|local| self.cluster.nodes.find(local)) else {
            return false;
        };
        let node = &self.cluster.nodes[node];
        let counts = node.tenant_workers.get(&shape.tenant).copied().unwrap_or_default();
        let could = counts.task_workers + counts.requested < node.workers_max;
        could && counts.requested > 0 && counts.requested < shape.len
    }

    /// Requests task workers on the local nodes with room for a shape. Returns whether such a worker is being started.
    fn request_workers(&mut self, shape_at: ShapeKey, stuck: Option<ShapeKey>) -> bool {
        let (tenant, len) = (self.queue.shape(shape_at).tenant, self.queue.shape(shape_at).len);
        let mut is_starting = false;
        for node_at in self.cluster.nodes.in_id_order().collect::<Vec<NodeKey>>() {
            let node = &self.cluster.nodes[node_at];
            let counts = node.tenant_workers.get(&tenant).copied().unwrap_or_default();
            let startable = node.workers_max.saturating_sub(counts.task_workers + counts.requested);
            if node.is_remote || startable + counts.requested == 0 || !self.has_room(node_at, shape_at, stuck) {
                continue;
            }
            is_starting = true;
            let requested = startable.min(len.saturating_sub(counts.requested));
            let node = &mut self.cluster.nodes[node_at];
            node.tenant_workers.entry(tenant).or_default().requested += requested;
            let (id, kind) = (node.id, WorkerKind::Tasks(self.cluster.tenants[tenant].id));
            (0..requested).for_each(|_| self.work.act(Action::StartWorker { node: id, kind }));
        }
        is_starting
    }

    /// Sends the first task of a shape back to wait, if a dependency was lost. Returns whether it did.
    fn requeue_first_incomplete(&mut self, shape: ShapeKey) -> bool {
        let Some((rank, at)) = self.queue.first(shape, &self.tasks) else { return false };
        let is_incomplete = self.is_incomplete(at);
        if is_incomplete {
            self.queue.remove(&mut self.tasks, at, shape, rank.level);
            self.release_locality_shape(at);
            self.requeue_if_incomplete(at);
        }
        is_incomplete
    }

    /// Returns the least loaded idle worker with room, by load and id. `fresh` is an idle worker that is not in the
    /// idle set.
    fn idle_for(&self, shape: ShapeKey, stuck: Option<ShapeKey>, fresh: Option<WorkerKey>) -> Option<WorkerKey> {
        let fresh = fresh.filter(|at| self.has_room(self.cluster.workers[*at].node, shape, stuck));
        let mut offers =
            self.cluster.offers(self.queue.shape(shape).tenant).filter(|(.., node)| self.has_room(*node, shape, stuck));
        let listed = match self.queue.shape(shape).strategy {
            Strategy::Spread => return self.least_busy(offers, fresh),
            _ => offers.next(),
        };
        match (listed, fresh) {
            (Some((load, id, _)), Some(fresh)) if (load, id) > self.cluster.load(fresh) => Some(fresh),
            (Some((_, id, _)), _) => self.cluster.workers.find(id),
            (None, fresh) => fresh,
        }
    }

    /// Returns the idle worker on the node with the fewest tasks and actors.
    fn least_busy(
        &self,
        offers: impl Iterator<Item = (u32, WorkerId, NodeKey)>,
        fresh: Option<WorkerKey>,
    ) -> Option<WorkerKey> {
        let fresh = fresh.map(|at| {
            let (load, id) = self.cluster.load(at);
            (load, id, self.cluster.workers[at].node)
        });
        let on = |at: NodeKey| self.cluster.nodes[at].tasks + self.cluster.nodes[at].actors;
        let best = offers.chain(fresh).min_by_key(|(load, id, node)| (on(*node), *load, *id));
        best.and_then(|(_, id, _)| self.cluster.workers.find(id))
    }

    /// Whether a node has room for a task. Resources for the `stuck` shape are kept free where it could run, so that it
    /// does not starve.
    pub(crate) fn has_room(&self, node: NodeKey, shape: ShapeKey, stuck: Option<ShapeKey>) -> bool {
        let (shape, record) = (self.queue.shape(shape), &self.cluster.nodes[node]);
        if record.is_draining {
            return false;
        }
        if shape.is_in_group() {
            return self.bundle_for(node, shape).is_some();
        }
        let first = self.kept_for_stuck(node, stuck);
        let reserved = first.into_iter().chain([&record.external_usage]);
        let is_free = !record.is_held && record.free.fits_with_reserved(&shape.demand, reserved);
        (is_free || self.may_overcommit(record, shape))
            && self.is_permitted_on(node, shape)
            && self.satisfies_locality(node, shape)
    }

    /// Whether a tenant may start a request on processors of a node that others use.
    fn may_overcommit(&self, node: &Node, shape: &Shape) -> bool {
        self.cluster.tenants.may_overcommit(shape.tenant, shape.demand.cpus)
            && !node.is_remote
            && shape.demand.fits_in(&node.total)
            && node.free.fits_except_cpus(&shape.demand, [&node.external_usage].into_iter())
    }

    /// Returns the resources that a node keeps free for the stuck shape: it could run there once all tasks of this
    /// scheduler have finished.
    fn kept_for_stuck(&self, node: NodeKey, stuck: Option<ShapeKey>) -> Option<&ResourceSet> {
        let (shape, record) = (self.queue.shape(stuck?), &self.cluster.nodes[node]);
        let could = shape.demand.fits_in_beside(&record.external_usage, &record.total)
            && self.is_permitted_on(node, shape)
            && self.satisfies_locality(node, shape);
        could.then_some(&shape.demand)
    }

    /// Whether a worker with tasks may be assigned more of the same shape before the stuck one.
    fn may_extend(&self, at: WorkerKey, shape: ShapeKey, stuck: Option<ShapeKey>) -> bool {
        let worker = &self.cluster.workers[at];
        let node = &self.cluster.nodes[worker.node];
        let first = self.kept_for_stuck(worker.node, stuck);
        let waits_for_this = first.is_some_and(|first| {
            let external_usage = [&node.external_usage].into_iter();
            let lacks_cpus =
                first.cpus > 0 && i128::from(first.cpus) + i128::from(node.external_usage.cpus) > node.free.cpus;
            lacks_cpus
                || !self.cluster.has_idle(worker.node, self.queue.shape(shape).tenant)
                    && node.free.fits_except_cpus(first, external_usage)
        });
        let is_overcommitted = node.is_overcommitted() && !self.queue.shape(shape).is_in_group();
        let is_held = node.is_held || is_overcommitted || waits_for_this;
        worker.leases.first().is_some_and(|lease| lease.shape == shape) && !is_held
    }

    /// Whether a worker has less than half of the tasks that it could be assigned in advance.
    fn wants_more(&self, at: WorkerKey) -> bool {
        let Some(worker) = self.cluster.workers.get(at) else { return false };
        let [Lease { shape, count, .. }] = worker.leases[..] else { return false };
        let is_alike = count as usize == worker.assigned.len() && worker.kind.runs_tasks();
        let is_draining = self.cluster.nodes[worker.node].is_draining;
        is_alike
            && !is_draining
            && !worker.recall_pending
            && self.is_window_over(shape, 2 * worker.assigned.len(), self.window_nanos(at))
    }

    /// Returns the nanoseconds of work that a worker is assigned in advance.
    fn window_nanos(&self, at: WorkerKey) -> u64 {
        let is_remote = self.cluster.nodes[self.cluster.workers[at].node].is_remote;
        if is_remote { self.options.remote_window_nanos } else { self.options.window_nanos }
    }

    /// Returns the maximum number of a shape's tasks that a worker may have.
    fn window(&self, shape_at: ShapeKey, window_nanos: u64) -> usize {
        let shape = self.queue.shape(shape_at);
        let Some((_, task)) = self.queue.first(shape_at, &self.tasks) else { return 0 };
        if !shape.goes_in_advance() {
            return 1;
        }
        let nanos = self.classes.get(self.tasks[task].class).nanos().unwrap_or(self.options.window_nanos);
        let by_time = (window_nanos / nanos).min(self.options.window_max as u64) as usize;
        by_time.min(shape.len.div_ceil(2 * self.cluster.task_workers(shape.tenant).max(1))).max(1)
    }

    /// Whether the window permits more than `count` tasks (at least one) of a shape. Equivalent to
    /// [`Scheduler::window`], but faster.
    fn is_window_over(&self, shape_at: ShapeKey, count: usize, window_nanos: u64) -> bool {
        let shape = self.queue.shape(shape_at);
        if !shape.goes_in_advance()
            || count >= self.options.window_max as usize
            || shape.len <= count * 2 * self.cluster.task_workers(shape.tenant)
        {
            return false;
        }
        let Some((_, task)) = self.queue.first(shape_at, &self.tasks) else { return false };
        let nanos = self.classes.get(self.tasks[task].class).nanos().unwrap_or(self.options.window_nanos);
        (count as u64 + 1).saturating_mul(nanos) <= window_nanos
    }

    /// Assigns the first tasks of a shape to a worker, up to its window. Returns whether any task left the queue.
    fn fill(&mut self, worker_at: WorkerKey, queued: RankedShape) -> bool {
        let shape = queued.shape;
        let tenant = self.queue.shape(shape).tenant;
        let following = self.queue.after(tenant, Some(queued));
        self.queue.use_shape(shape);
        let window_nanos = self.window_nanos(worker_at);
        let window = self.window(shape, window_nanos);
        let mut has_taken = false;
        while let Some((rank, at)) = self.queue.first(shape, &self.tasks) {
            let worker = &self.cluster.workers[worker_at];
            let task = &self.tasks[at];
            let nanos = self.classes.get(task.class).nanos().unwrap_or(self.options.window_nanos);
            let is_full = if worker.kind == WorkerKind::Leases {
                has_taken
            } else {
                !worker.assigned.is_empty()
                    && (worker.assigned.len() >= window || worker.nanos.saturating_add(nanos) > window_nanos)
            };
            if is_full || following.is_some_and(|following| following < RankedShape { rank, shape }) {
                break;
            }
            has_taken = true;
            self.queue.take(&mut self.tasks, at, shape, rank.level);
            self.release_locality_shape(at);
            if !self.requeue_if_incomplete(at) {
                self.assign(worker_at, at, shape, nanos);
            }
        }
        self.queue.refresh(shape, &self.tasks);
        self.queue.leave_shape(shape);
        self.cluster.refresh(worker_at);
        has_taken
    }

    pub(crate) fn assign(&mut self, worker: WorkerKey, at: TaskKey, shape: ShapeKey, nanos: u64) {
        let task = &mut self.tasks[at];
        task.state = TaskPhase::Assigned;
        task.worker = Some(worker);
        let level = self.classes.get(task.class).level(task.depth);
        let (id, attempt) = (task.id, task.attempt);
        let (tenant, bundle) = (self.queue.shape(shape).tenant, self.bundle_on(worker, shape));
        let assigned = AssignedTask { id, task: Some(at), shape, tenant, bundle, attempt, level, nanos };
        self.cluster.assign(worker, assigned, &mut self.queue);
        self.work.act(Action::Run { worker: self.cluster.workers[worker].id, task: id, attempt });
    }

    /// Returns the bundle for a task: the one that the worker leases for the shape, or one with room.
    fn bundle_on(&self, worker: WorkerKey, shape_at: ShapeKey) -> Option<BundleKey> {
        let shape = self.queue.shape(shape_at);
        if !shape.is_in_group() {
            return None;
        }
        let worker = &self.cluster.workers[worker];
        let lease = worker.leases.iter().find(|lease| lease.shape == shape_at);
        lease.map_or_else(|| self.bundle_for(worker.node, shape), |lease| lease.bundle)
    }

    /// Registers a task that a worker started by itself, before its assigned tasks.
    pub(crate) fn assign_started(&mut self, worker: WorkerKey, at: TaskKey) {
        let task = &mut self.tasks[at];
        task.state = TaskPhase::Assigned;
        task.worker = Some(worker);
        let class = self.classes.get(task.class);
        let assigned = AssignedTask {
            id: task.id,
            task: Some(at),
            shape: class.spec.shape,
            tenant: self.queue.shape(class.spec.shape).tenant,
            bundle: None,
            attempt: task.attempt,
            level: class.level(task.depth),
            nanos: 0,
        };
        self.cluster.assign_front(worker, assigned, &mut self.queue);
        self.assignments_changed(worker);
    }

    /// Starts the root task of a job. Returns whether it stopped waiting.
    fn start_driver(&mut self, job: JobKey) -> bool {
        let job = &self.jobs[job];
        let first = job.first.filter(|at| self.tasks[*at].state == TaskPhase::Queued);
        let (Some(at), Some(worker)) = (first, job.driver) else { return true };
        if self.requeue_if_incomplete(at) {
            return true;
        }
        let shape_at = self.classes.get(self.tasks[at].class).spec.shape;
        let node_at = self.cluster.workers[worker].node;
        let node = &self.cluster.nodes[node_at];
        let shape = self.queue.shape(shape_at);
        let demand = &shape.demand;
        if !demand.fits_in(&node.total) {
            let fault = Fault::new(Code::Infeasible, demand.shortage("no node has", &[&node.total]));
            let error = self.error(at, fault);
            self.work.add(WorkItem::Fail(at, error));
        } else if node.free.fits(demand) || self.may_overcommit(node, shape) {
            self.assign(worker, at, shape_at, self.options.window_nanos);
        } else {
            self.cluster.nodes.hold(node_at);
            return false;
        }
        true
    }

    /// Whether some node could ever have room for tasks of a shape. It is true while no node is known.
    pub(crate) fn is_feasible(&mut self, at: ShapeKey) -> bool {
        let (shape, nodes) = (self.queue.shape(at), &self.cluster.nodes);
        if let Strategy::Group { group, bundle } = shape.strategy {
            return self.group_fault(group, bundle, &shape.demand).is_none();
        }
        if shape.feasibility.membership != self.cluster.nodes.membership_changes {
            let could =
                |(at, node): (NodeKey, &Node)| shape.demand.fits_in(&node.total) && self.is_permitted_on(at, shape);
            let is_feasible = nodes.len() == 0 || nodes.iter().any(could);
            let membership = self.cluster.nodes.membership_changes;
            self.queue.shape_mut(at).feasibility = Feasibility { membership, is_feasible };
        }
        self.cluster.nodes.membership_changes == 0 || self.queue.shape(at).feasibility.is_feasible
    }

    pub(crate) fn infeasible(&self, at: TaskKey, shape: ShapeKey) -> Arc<TaskError> {
        let shape = self.queue.shape(shape);
        let (demand, nodes) = (&shape.demand, &self.cluster.nodes);
        let message = match shape.strategy {
            Strategy::Group { .. } => return self.error(at, self.cancellation_fault(at)),
            Strategy::Node { node, soft: false } => match self.cluster.nodes.find(node) {
                Some(at) => demand.shortage(&format!("node {node} has no"), &[&nodes[at].total]),
                None => format!("requires node {node}, which is not in the cluster"),
            },
            _ => demand.shortage("no node has", &nodes.iter().map(|(_, node)| &node.total).collect::<Vec<_>>()),
        };
        self.error(at, Fault::new(Code::Infeasible, message))
    }

    /// Fails tasks and groups that no node can ever have room for, after nodes joined or left.
    pub(crate) fn fail_infeasible(&mut self) {
        self.fail_infeasible_groups();
        self.fail_infeasible_tasks();
    }

    pub(crate) fn fail_infeasible_tasks(&mut self) {
        self.fail_infeasible_actors();
        for shape in self.queue.waiting() {
            if self.is_feasible(shape) {
                continue;
            }
            self.queue.use_shape(shape);
            while let Some((rank, at)) = self.queue.first(shape, &self.tasks) {
                self.queue.take(&mut self.tasks, at, shape, rank.level);
                self.release_locality_shape(at);
                self.tasks[at].state = TaskPhase::Waiting;
                self.work.add(WorkItem::Fail(at, self.infeasible(at, shape)));
            }
            self.queue.refresh(shape, &self.tasks);
            self.queue.leave_shape(shape);
        }
    }
}
