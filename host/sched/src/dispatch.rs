//! Who runs what: the first task that finds a place, then the next.
//!
//! A worker holds the processors of its tasks once, while it has any that is not blocked: it runs one at a time. Where
//! tasks ask for nothing else it is given several in advance, about a millisecond of work, so that one message carries
//! many; no more than half of what waits, so that all workers get some.

use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, Strategy, TaskError, WorkerId};

use crate::cluster::{Given, Lease, Node};
use crate::event::{Action, Role};
use crate::places::{BundleAt, NodeAt, ShapeAt, TaskAt, WorkerAt};
use crate::queue::Turn;
use crate::resources::Demand;
use crate::scheduler::Scheduler;
use crate::tasks::State;

/// So many lines of tasks that find no place are looked at before the rest waits.
const STUCK_MAX: usize = 256;

impl<C, V> Scheduler<C, V> {
    /// What a worker was given has changed.
    pub(crate) fn changed(&mut self, at: WorkerAt) {
        self.touched = Some(at);
        if self.cluster.could_be_idle(at) {
            // It mostly gets something at once: it is not put among the idle ones for that.
            self.is_stale = true;
        } else {
            self.cluster.refresh(at);
            self.is_stale |= self.is_hungry(at);
        }
    }

    /// Begins what can be begun.
    pub(crate) fn dispatch(&mut self) {
        if !std::mem::take(&mut self.is_stale) & !std::mem::take(&mut self.cluster.has_more) {
            return;
        }
        self.begin_drivers();
        self.place_groups();
        self.place_actors();
        let (mut passed, mut stuck) = (None, None);
        for _ in 0..STUCK_MAX {
            let Some(turn) = self.place_all(passed, stuck) else { break };
            passed = Some(turn);
            // What is in a group takes nothing of a node.
            stuck = stuck.or_else(|| (!self.queue.shape(turn.1).is_of_group()).then_some(turn.1));
        }
        // What was taken is not more than there was.
        self.cluster.has_more = false;
        self.is_stale = false;
    }

    /// Finds places for tasks in order, after those whose turn has `passed`, up to the first that finds none.
    fn place_all(&mut self, passed: Option<(Turn, ShapeAt)>, stuck: Option<ShapeAt>) -> Option<(Turn, ShapeAt)> {
        loop {
            let fresh = self.touched.filter(|at| self.cluster.could_be_idle(*at));
            let hungry = self.touched.filter(|at| self.is_hungry(*at));
            if self.cluster.idle == 0 && fresh.is_none() && hungry.is_none() {
                return None;
            }
            let turn = self.queue.after(passed)?;
            if self.sift(turn.1) {
                continue;
            }
            let idle = self.idle_for(turn.1, stuck, fresh);
            let worker = idle.or_else(|| hungry.filter(|at| self.may_feed(*at, turn.1, stuck)));
            if !worker.is_some_and(|worker| self.fill(worker, turn)) {
                return Some(turn);
            }
        }
    }

    /// Takes the first of a line out of it, if something is not there any more that it needs. Says whether that is so.
    fn sift(&mut self, shape: ShapeAt) -> bool {
        let Some(((level, _), at)) = self.queue.first(shape, &self.tasks) else { return false };
        let is_lacking = self.is_lacking(at);
        if is_lacking {
            self.queue.remove(&mut self.tasks, at, shape, level);
            self.left_line(at);
            self.lacks(at);
        }
        is_lacking
    }

    /// The least loaded idle worker where there is room, the lowest number of these. One that is `fresh` is not listed yet.
    fn idle_for(&self, shape: ShapeAt, stuck: Option<ShapeAt>, fresh: Option<WorkerAt>) -> Option<WorkerAt> {
        let fresh = fresh.filter(|at| self.has_room(self.cluster.workers[*at].node, shape, stuck));
        let mut offers = self.cluster.offers().filter(|(.., node)| self.has_room(*node, shape, stuck));
        let listed = match self.queue.shape(shape).strategy {
            Strategy::Spread => return self.emptiest(offers, fresh),
            _ => offers.next(),
        };
        match (listed, fresh) {
            (Some((load, id, _)), Some(fresh)) if (load, id) > self.cluster.load(fresh) => Some(fresh),
            (Some((_, id, _)), _) => self.cluster.find(id),
            (None, fresh) => fresh,
        }
    }

    /// The idle worker on the node with the fewest tasks and actors.
    fn emptiest(
        &self,
        offers: impl Iterator<Item = (u32, WorkerId, NodeAt)>,
        fresh: Option<WorkerAt>,
    ) -> Option<WorkerAt> {
        let fresh = fresh.map(|at| {
            let (load, id) = self.cluster.load(at);
            (load, id, self.cluster.workers[at].node)
        });
        let on = |at: NodeAt| self.cluster.nodes[at].tasks + self.cluster.nodes[at].actors;
        let best = offers.chain(fresh).min_by_key(|(load, id, node)| (on(*node), *load, *id));
        best.and_then(|(_, id, _)| self.cluster.find(id))
    }

    /// Whether a node has room. Where what is `stuck` could be begun some time, room is kept for it: its turn comes.
    pub(crate) fn has_room(&self, node: NodeAt, shape: ShapeAt, stuck: Option<ShapeAt>) -> bool {
        let (shape, record) = (self.queue.shape(shape), &self.cluster.nodes[node]);
        if record.is_draining {
            return false;
        }
        if shape.is_of_group() {
            return self.bundle_for(node, shape).is_some();
        }
        let first = self.first_on(node, stuck);
        !record.is_held
            && self.may_be_on(node, shape)
            && self.is_near_enough(node, shape)
            && record.free.fits_beside(&shape.demand, first.into_iter().chain([&record.others]))
    }

    /// What a node keeps room for: what could be begun there once all of this scheduler's has ended.
    fn first_on(&self, node: NodeAt, stuck: Option<ShapeAt>) -> Option<&Demand> {
        let (shape, record) = (self.queue.shape(stuck?), &self.cluster.nodes[node]);
        let could = shape.demand.is_beside(&record.others, &record.total)
            && self.may_be_on(node, shape)
            && self.is_near_enough(node, shape);
        could.then_some(&shape.demand)
    }

    /// Whether a worker that has tasks may be given more of the same before what is `stuck`.
    fn may_feed(&self, at: WorkerAt, shape: ShapeAt, stuck: Option<ShapeAt>) -> bool {
        let worker = &self.cluster.workers[at];
        let node = &self.cluster.nodes[worker.node];
        let first = self.first_on(worker.node, stuck);
        let waits_for_this = first.is_some_and(|first| {
            let others = [&node.others].into_iter();
            let lacks_cpus = first.cpus > 0 && i128::from(first.cpus) + i128::from(node.others.cpus) > node.free.cpus;
            lacks_cpus || !self.cluster.has_idle(worker.node) && node.free.fits_but_cpus(first, others)
        });
        let is_crowded = node.is_crowded() && !self.queue.shape(shape).is_of_group();
        let is_held = node.is_held || is_crowded || waits_for_this;
        worker.leases.first().is_some_and(|lease| lease.shape == shape) && !is_held
    }

    /// Whether a worker has tasks, and less than half of as many as it could have.
    fn is_hungry(&self, at: WorkerAt) -> bool {
        let Some(worker) = self.cluster.workers.get(at) else { return false };
        let [Lease { shape, count, .. }] = worker.leases[..] else { return false };
        let is_alike = count as usize == worker.given.len() && worker.role == Role::Tasks;
        let is_draining = self.cluster.nodes[worker.node].is_draining;
        is_alike
            && !is_draining
            && !worker.is_recalled
            && self.is_window_over(shape, 2 * worker.given.len(), self.window_nanos(at))
    }

    /// How much work a worker is given in advance, in nanoseconds.
    fn window_nanos(&self, at: WorkerAt) -> u64 {
        let is_far = self.cluster.nodes[self.cluster.workers[at].node].is_far;
        if is_far { self.options.far_window_nanos } else { self.options.window_nanos }
    }

    /// How many tasks of a shape a worker may have that is given so much.
    fn window(&self, shape_at: ShapeAt, window_nanos: u64) -> usize {
        let shape = self.queue.shape(shape_at);
        let Some((_, task)) = self.queue.first(shape_at, &self.tasks) else { return 0 };
        if !shape.goes_in_advance() {
            return 1;
        }
        let nanos = self.classes.get(self.tasks[task].class).nanos().unwrap_or(self.options.window_nanos);
        let by_time = (window_nanos / nanos).min(self.options.window_max as u64) as usize;
        by_time.min(shape.len.div_ceil(2 * self.cluster.of_tasks.max(1))).max(1)
    }

    /// Whether a worker may have more tasks of a shape than so many, at least one: as [`Scheduler::window`], in less time.
    fn is_window_over(&self, shape_at: ShapeAt, count: usize, window_nanos: u64) -> bool {
        let shape = self.queue.shape(shape_at);
        if !shape.goes_in_advance()
            || count >= self.options.window_max as usize
            || shape.len <= count * 2 * self.cluster.of_tasks
        {
            return false;
        }
        let Some((_, task)) = self.queue.first(shape_at, &self.tasks) else { return false };
        let nanos = self.classes.get(self.tasks[task].class).nanos().unwrap_or(self.options.window_nanos);
        (count as u64 + 1).saturating_mul(nanos) <= window_nanos
    }

    /// Gives a worker the first tasks of a shape, as many as it may have. Says whether any left the line.
    fn fill(&mut self, worker_at: WorkerAt, (turn, shape): (Turn, ShapeAt)) -> bool {
        let others = self.queue.after(Some((turn, shape)));
        self.queue.use_shape(shape);
        let window_nanos = self.window_nanos(worker_at);
        let window = self.window(shape, window_nanos);
        let mut has_taken = false;
        while let Some((turn, at)) = self.queue.first(shape, &self.tasks) {
            let worker = &self.cluster.workers[worker_at];
            let task = &self.tasks[at];
            let nanos = self.classes.get(task.class).nanos().unwrap_or(self.options.window_nanos);
            let is_full = !worker.given.is_empty()
                && (worker.given.len() >= window || worker.nanos.saturating_add(nanos) > window_nanos);
            if is_full || others.is_some_and(|others| others < (turn, shape)) {
                break;
            }
            has_taken = true;
            self.queue.take(&mut self.tasks, at, shape, turn.0);
            self.left_line(at);
            if !self.lacks(at) {
                self.give(worker_at, at, shape, nanos);
            }
        }
        self.queue.refresh(shape, &self.tasks);
        self.queue.leave_shape(shape);
        self.cluster.refresh(worker_at);
        has_taken
    }

    pub(crate) fn give(&mut self, worker: WorkerAt, at: TaskAt, shape: ShapeAt, nanos: u64) {
        let task = &mut self.tasks[at];
        task.state = State::Given;
        task.worker = Some(worker);
        let level = task.level(self.classes.get(task.class));
        let (id, attempt) = (task.id, task.attempt);
        let bundle = self.bundle_on(worker, shape);
        let given = Given { id, task: Some(at), shape, bundle, attempt, level, nanos };
        self.cluster.give(worker, given, &mut self.queue);
        self.out.push(Action::Run { worker: self.cluster.workers[worker].id, task: id, attempt });
    }

    /// The bundle that a task is given: that which its worker has for others like it, or one with room.
    fn bundle_on(&self, worker: WorkerAt, shape_at: ShapeAt) -> Option<BundleAt> {
        let shape = self.queue.shape(shape_at);
        if !shape.is_of_group() {
            return None;
        }
        let worker = &self.cluster.workers[worker];
        let lease = worker.leases.iter().find(|lease| lease.shape == shape_at);
        lease.map_or_else(|| self.bundle_for(worker.node, shape), |lease| lease.bundle)
    }

    /// A worker has a task that it has begun by itself, before those that it was given.
    pub(crate) fn give_begun(&mut self, worker: WorkerAt, at: TaskAt) {
        let task = &mut self.tasks[at];
        task.state = State::Given;
        task.worker = Some(worker);
        let class = self.classes.get(task.class);
        let given = Given {
            id: task.id,
            task: Some(at),
            shape: class.kind.shape,
            bundle: None,
            attempt: task.attempt,
            level: task.level(class),
            nanos: 0,
        };
        self.cluster.give_first(worker, given, &mut self.queue);
        self.changed(worker);
    }

    /// Begins first tasks of jobs, each in the worker that is for it, before all others.
    fn begin_drivers(&mut self) {
        if self.starting.is_empty() && self.held.is_empty() {
            return;
        }
        for node in self.held.drain(..) {
            if let Some(node) = self.cluster.nodes.get_mut(node) {
                node.is_held = false;
            }
        }
        for id in self.starting.iter().copied().collect::<Vec<JobId>>() {
            if self.begin_driver(id) {
                self.starting.remove(&id);
            }
        }
    }

    /// Says whether the first task of a job waits no more.
    fn begin_driver(&mut self, id: JobId) -> bool {
        let job = &self.jobs[self.job_ids[&id]];
        let first = job.first.filter(|at| self.tasks[*at].state == State::Queued);
        let (Some(at), Some(worker)) = (first, job.driver) else { return true };
        if self.lacks(at) {
            return true;
        }
        let shape = self.classes.get(self.tasks[at].class).kind.shape;
        let node_at = self.cluster.workers[worker].node;
        let node = &self.cluster.nodes[node_at];
        let demand = &self.queue.shape(shape).demand;
        if !demand.is_within(&node.total) {
            let fault = Fault::new(Code::Infeasible, demand.beyond("no node has", &[&node.total]));
            let error = self.error(at, fault);
            self.failing.push((at, error));
        } else if node.free.fits(demand) {
            self.give(worker, at, shape, self.options.window_nanos);
        } else {
            self.cluster.nodes[node_at].is_held = true;
            self.held.push(node_at);
            return false;
        }
        true
    }

    /// Whether some node could ever have room for tasks of a shape, or none is known yet.
    pub(crate) fn is_feasible(&mut self, at: ShapeAt) -> bool {
        let (shape, nodes) = (self.queue.shape(at), &self.cluster.nodes);
        if let Strategy::Group { group, bundle } = shape.strategy {
            return self.group_fault(group, bundle, &shape.demand).is_none();
        }
        if shape.feasible.0 != self.cluster.changes {
            let could = |(at, node): (NodeAt, &Node)| shape.demand.is_within(&node.total) && self.may_be_on(at, shape);
            let is_feasible = nodes.len() == 0 || nodes.iter().any(could);
            self.queue.shape_mut(at).feasible = (self.cluster.changes, is_feasible);
        }
        self.cluster.changes == 0 || self.queue.shape(at).feasible.1
    }

    pub(crate) fn infeasible(&self, at: TaskAt, shape: ShapeAt) -> Arc<TaskError> {
        let shape = self.queue.shape(shape);
        let (demand, nodes) = (&shape.demand, &self.cluster.nodes);
        let message = match shape.strategy {
            Strategy::Group { .. } => return self.error(at, self.stopped(at)),
            Strategy::Node { node, soft: false } => match self.cluster.node_ids.get(&node) {
                Some(at) => demand.beyond(&format!("node {node} has no"), &[&nodes[*at].total]),
                None => format!("is for node {node}, which is not there"),
            },
            _ => demand.beyond("no node has", &nodes.iter().map(|(_, node)| &node.total).collect::<Vec<_>>()),
        };
        self.error(at, Fault::new(Code::Infeasible, message))
    }

    /// Tasks fail that no node can ever have room for, after nodes came or went.
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
            while let Some(((level, _), at)) = self.queue.first(shape, &self.tasks) {
                self.queue.take(&mut self.tasks, at, shape, level);
                self.left_line(at);
                self.tasks[at].state = State::Waiting;
                self.failing.push((at, self.infeasible(at, shape)));
            }
            self.queue.refresh(shape, &self.tasks);
            self.queue.leave_shape(shape);
        }
    }
}
