//! Tasks that were given in advance and are wanted back: for one that comes before them, or for a worker with nothing to do.

use std::cmp::Reverse;

use sandbar_core::{NodeId, TaskId, WorkerId};

use crate::event::{Action, Role};
use crate::places::WorkerAt;
use crate::scheduler::Scheduler;
use crate::tasks::State;

impl<C, V> Scheduler<C, V> {
    /// Tasks come back from a worker that had not begun them.
    pub(crate) fn recalled(&mut self, worker: WorkerId, tasks: &[TaskId]) {
        // What another scheduler has stays there.
        let is_able = |at: &WorkerAt| self.cluster.workers[*at].role != Role::Peer;
        let Some(at) = self.cluster.find(worker).filter(is_able) else { return };
        self.cluster.set_recalled(at, false);
        let mut back = Vec::with_capacity(tasks.len());
        // What was given last is said last.
        for id in tasks.iter().rev() {
            let given = if let Some(place) = self.cluster.position_from_end(at, *id) {
                self.cluster.take_given(at, place, &mut self.queue)
            } else if let Some(place) = self.cluster.position_blocked(at, *id) {
                self.cluster.take_blocked(at, place, &mut self.queue)
            } else {
                None
            };
            if let Some(task) = given.and_then(|given| given.task) {
                self.tasks[task].worker = None;
                self.tasks[task].state = State::Waiting;
                back.push(task);
            }
        }
        back.into_iter().for_each(|task| self.give_back(task));
        self.changed(at);
    }

    /// A node is to go: what its workers were given in advance is asked back.
    pub(crate) fn drain_node(&mut self, node: NodeId) {
        let Some(node) = self.cluster.node_ids.get(&node).copied() else { return };
        self.cluster.nodes[node].is_draining = true;
        self.is_stale = true;
        let waits = |at: &WorkerAt| self.cluster.workers[*at].node == node;
        for worker in self.cluster.waiting().filter(waits).collect::<Vec<_>>() {
            self.recall(worker);
        }
    }

    fn recall(&mut self, worker: WorkerAt) {
        self.cluster.set_recalled(worker, true);
        self.out.push(Action::Recall { worker: self.cluster.workers[worker].id });
    }

    /// Asks for tasks back that should run later, or elsewhere.
    pub(crate) fn rebalance(&mut self) {
        let newest = self.newest.take();
        if let Some(worker) = self.behind(newest).or_else(|| self.richest()) {
            self.recall(worker);
        }
    }

    /// A worker whose last task comes after one that could be begun since this step, and found no place.
    fn behind(&self, newest: Option<(crate::queue::Level, crate::places::TaskAt)>) -> Option<WorkerAt> {
        let (level, at) = newest?;
        self.tasks.get(at).filter(|task| task.state == State::Queued)?;
        let (_, worker) = self.cluster.last_waiting().filter(|(last, _)| level < *last)?;
        let (node_at, shape) = (self.cluster.workers[worker].node, self.queue.shape(self.shape_of(at)));
        let (node, demand) = (&self.cluster.nodes[node_at], &shape.demand);
        if !self.may_be_on(node_at, shape) || !self.is_near_enough(node_at, shape) {
            return None;
        }
        let has_rest = node.free.fits_but_cpus(demand, [&node.others].into_iter());
        (demand.is_within(&node.total) && has_rest).then_some(worker)
    }

    /// The worker with the most tasks, of those from which something is taken for one that has none: nothing that is queued
    /// has found a place there.
    fn richest(&mut self) -> Option<WorkerAt> {
        if self.cluster.idle <= self.cluster.recalls {
            return None;
        }
        let workers = &self.cluster.workers;
        let able = self.cluster.waiting().filter(|at| !workers[*at].is_robbed);
        let at = able.max_by_key(|at| (workers[*at].given.len(), Reverse(workers[*at].id)))?;
        let shape = workers[at].given.back()?.shape;
        let stuck = self.queue.after(None).map(|(_, shape)| shape);
        self.cluster.offers().find(|(.., node)| self.has_room(*node, shape, stuck))?;
        self.cluster.workers[at].is_robbed = true;
        Some(at)
    }
}
