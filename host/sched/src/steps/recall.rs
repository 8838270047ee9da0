//! Recall of tasks that were assigned in advance: for a task that precedes them, or for an idle worker.

use std::cmp::Reverse;

use sandbar_core::{NodeId, TaskId, WorkerId};

use crate::event::{Action, WorkerKind};
use crate::records::keys::{TaskKey, TenantKey, WorkerKey};
use crate::records::level::Level;
use crate::records::tasks::TaskPhase;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Queues tasks again that a worker has returned.
    pub(crate) fn recalled(&mut self, worker: WorkerId, tasks: &[TaskId]) {
        // A remote scheduler keeps its assigned tasks.
        let is_able = |at: &WorkerKey| self.cluster.workers[*at].kind != WorkerKind::PeerProxy;
        let Some(at) = self.cluster.workers.find(worker).filter(is_able) else { return };
        self.cluster.set_recalled(at, false);
        let mut back = Vec::with_capacity(tasks.len());
        // The list is in the order of assignment.
        for id in tasks.iter().rev() {
            let assigned = if let Some(place) = self.cluster.position_from_end(at, *id) {
                self.cluster.unassign(at, place, &mut self.queue)
            } else if let Some(place) = self.cluster.position_blocked(at, *id) {
                self.cluster.unassign_blocked(at, place, &mut self.queue)
            } else {
                None
            };
            if let Some(task) = assigned.and_then(|assigned| assigned.task) {
                self.tasks[task].worker = None;
                self.tasks[task].state = TaskPhase::Waiting;
                back.push(task);
            }
        }
        back.into_iter().for_each(|task| self.requeue(task));
        self.assignments_changed(at);
    }

    /// Drains a node: recalls the tasks that its workers have not started.
    pub(crate) fn drain_node(&mut self, node: NodeId) {
        let Some(node) = self.cluster.nodes.find(node) else { return };
        self.cluster.nodes[node].is_draining = true;
        self.work.needs_dispatch = true;
        let on_node = |at: &WorkerKey| self.cluster.workers[*at].node == node;
        for worker in self.cluster.recallable().map(|(_, at)| at).filter(on_node).collect::<Vec<_>>() {
            self.recall(worker);
        }
    }

    fn recall(&mut self, worker: WorkerKey) {
        self.cluster.set_recalled(worker, true);
        self.work.act(Action::Recall { worker: self.cluster.workers[worker].id });
    }

    /// Sends at most one recall, for tasks that should run later or elsewhere.
    pub(crate) fn rebalance(&mut self) {
        let newest = self.work.take_newest();
        if let Some(worker) = self.worker_to_preempt(newest).or_else(|| self.worker_to_steal_from()) {
            self.recall(worker);
        }
    }

    /// Returns a worker whose last task comes after a task that became ready in this step and found no room.
    fn worker_to_preempt(&self, newest: Option<(Level, TaskKey)>) -> Option<WorkerKey> {
        let (level, at) = newest?;
        self.tasks.get(at).filter(|task| task.state == TaskPhase::Queued)?;
        let shape = self.queue.shape(self.shape_of(at));
        let (_, worker) = self.cluster.last_recallable(shape.tenant).filter(|(last, _)| level < *last)?;
        let node_at = self.cluster.workers[worker].node;
        let (node, demand) = (&self.cluster.nodes[node_at], &shape.demand);
        if !self.is_permitted_on(node_at, shape) || !self.satisfies_locality(node_at, shape) {
            return None;
        }
        let has_rest = node.free.fits_except_cpus(demand, [&node.external_usage].into_iter());
        (demand.fits_in(&node.total) && has_rest).then_some(worker)
    }

    /// Returns the worker with the most tasks, if an idle worker could take some of them: no queued task found room
    /// there.
    fn worker_to_steal_from(&mut self) -> Option<WorkerKey> {
        if self.cluster.idle <= self.cluster.pending_recalls {
            return None;
        }
        let workers = &self.cluster.workers;
        let is_able =
            |(tenant, at): &(TenantKey, WorkerKey)| !workers[*at].was_stolen_from && self.cluster.has_offers(*tenant);
        let able = self.cluster.recallable().filter(is_able);
        let (tenant, at) = able.max_by_key(|(_, at)| (workers[*at].assigned.len(), Reverse(workers[*at].id)))?;
        let shape = workers[at].assigned.back()?.shape;
        let stuck = self.queue.after(tenant, None).map(|queued| queued.shape);
        self.cluster.offers(tenant).find(|(.., node)| self.has_room(*node, shape, stuck))?;
        self.cluster.workers[at].was_stolen_from = true;
        Some(at)
    }
}
