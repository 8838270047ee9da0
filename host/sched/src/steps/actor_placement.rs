//! Placement of actors. An actor that requests a processor or more gets a worker of its own; others share workers. On a
//! remote node its proxy worker takes all actors, and the remote scheduler starts workers for them.

use sandbar_core::{ActorId, Strategy};

use crate::event::{Action, WorkerKind};
use crate::records::keys::{NodeKey, ShapeKey, TaskKey, TenantKey, WorkerKey};
use crate::records::resources::RESOURCE_UNIT;
use crate::records::step_work::WorkItem;
use crate::records::tasks::TaskPhase;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Queues a creation task whose dependencies all have values.
    pub(crate) fn enqueue_creator(&mut self, at: TaskKey) {
        self.tasks[at].state = TaskPhase::Queued;
        let task = &self.tasks[at];
        let class = self.classes.get(task.class);
        let (shape, level, number) = (class.spec.shape, class.level(task.depth), task.number);
        self.actors.pending.insert(shape, level, number, at);
        self.work.needs_dispatch = true;
        if !self.is_feasible(shape) {
            self.work.add(WorkItem::Fail(at, self.infeasible(at, shape)));
        }
    }

    /// Places the tenant's next actor, in dispatch order, for which there is a worker. Returns whether there is one.
    pub(crate) fn place_actor(&mut self, tenant: TenantKey) -> bool {
        if self.actors.pending.is_empty() {
            return false;
        }
        let is_its = |shape: &ShapeKey| self.queue.shape(*shape).tenant == tenant;
        let mut shapes: Vec<ShapeKey> = self.actors.pending.shapes().filter(is_its).collect();
        self.actors.pending.sort(&mut shapes);
        for shape in shapes {
            while let Some(at) = self.actors.pending.first(shape) {
                if self.is_incomplete(at) {
                    self.actors.pending.remove(at);
                    self.requeue_if_incomplete(at);
                    continue;
                }
                let Some(worker) = self.worker_for(at, shape) else { break };
                self.actors.pending.remove(at);
                self.assign(worker, at, shape, self.options.window_nanos);
                return true;
            }
        }
        false
    }

    /// Returns a worker with room for an actor. If there is none, requests a new one on a node with room.
    fn worker_for(&mut self, creator: TaskKey, shape: ShapeKey) -> Option<WorkerKey> {
        let tenant = self.queue.shape(shape).tenant;
        let is_alone = self.queue.shape(shape).demand.cpus >= RESOURCE_UNIT;
        let spreads = self.queue.shape(shape).strategy == Strategy::Spread;
        let rank = |node: NodeKey| {
            let record = &self.cluster.nodes[node];
            (record.is_remote && !spreads, record.actors, node)
        };
        let nodes = self.cluster.nodes.in_id_order().filter(|node| self.has_room(*node, shape, None));
        let mut nodes: Vec<(bool, usize, NodeKey)> = nodes.map(rank).collect();
        nodes.sort_unstable();
        let id = ActorId(self.tasks[creator].id.0);
        let own = self.cluster.workers.find_dedicated(id).filter(|_| is_alone);
        let fits = |worker: &WorkerKey| nodes.iter().any(|(.., node)| *node == self.cluster.workers[*worker].node);
        if let Some(worker) = own.filter(fits) {
            return Some(worker);
        }
        // Set while a local worker is being started; remote nodes wait for it.
        let mut is_awaited = false;
        for (.., node) in nodes {
            let (best, count) = self.cluster.actor_workers(node, tenant);
            let has_room = best.filter(|(load, _)| *load < self.options.actors_max as usize);
            if self.cluster.nodes[node].is_remote {
                match has_room {
                    Some((_, worker)) if !is_awaited => return Some(worker),
                    // A remote node without a proxy worker has not reported its scheduler yet.
                    _ => continue,
                }
            }
            if is_alone {
                if own.is_none() {
                    self.start_worker_for(id, node);
                }
                return None;
            }
            let total = self.cluster.nodes[node].total.cpus.div_ceil(RESOURCE_UNIT).max(1);
            // Each processor gets an actor worker before any of them hosts two actors.
            if let Some((load, worker)) = has_room
                && (load == 0 || count as u64 >= total)
            {
                return Some(worker);
            }
            let counts = self.cluster.nodes[node].tenant_workers.entry(tenant).or_default();
            if !std::mem::replace(&mut counts.is_starting_actor_worker, true) {
                let kind = WorkerKind::Actors(self.cluster.tenants[tenant].id);
                self.work.act(Action::StartWorker { node: self.cluster.nodes[node].id, kind });
            }
            if let Some((_, worker)) = has_room {
                return Some(worker);
            }
            is_awaited = true;
        }
        None
    }

    /// Requests a dedicated worker for an actor, unless one was requested.
    fn start_worker_for(&mut self, id: ActorId, node: NodeKey) {
        let Some(at) = self.actors.find(id) else { return };
        let is_requested =
            self.actors[at].worker_requested_on.is_some_and(|node| self.cluster.nodes.find(node).is_some());
        if !is_requested {
            let node = self.cluster.nodes[node].id;
            self.actors[at].worker_requested_on = Some(node);
            self.work.act(Action::StartWorker { node, kind: WorkerKind::Actor(id) });
        }
    }

    /// Fails actors that no node can ever have room for, after nodes joined or left.
    pub(crate) fn fail_infeasible_actors(&mut self) {
        for shape in self.actors.pending.shapes().collect::<Vec<ShapeKey>>() {
            if self.is_feasible(shape) {
                continue;
            }
            while let Some(at) = self.actors.pending.first(shape) {
                self.actors.pending.remove(at);
                self.tasks[at].state = TaskPhase::Waiting;
                self.work.add(WorkItem::Fail(at, self.infeasible(at, shape)));
            }
        }
    }
}
