//! Loss of workers and nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbar_core::{Code, Fault, NodeId, TaskError, TaskId, WorkerId};

use crate::event::WorkerKind;
use crate::records::actors::Actor;
use crate::records::keys::{ActorKey, TaskKey, WorkerKey};
use crate::records::tasks::{Cancellation, FinalState, TaskPhase};
use crate::records::workers::{AssignedTask, Worker};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    pub(crate) fn lose_worker(&mut self, worker: WorkerId, started: &[TaskId], culprit: Option<TaskId>) {
        if let Some(at) = self.cluster.workers.find(worker) {
            let started: BTreeSet<TaskId> = started.iter().copied().collect();
            self.lose(vec![at], None, |id| started.contains(&id), culprit);
        }
    }

    pub(crate) fn lose_node(&mut self, node: NodeId) {
        let Some(at) = self.cluster.nodes.find(node) else { return };
        let of_node = self.cluster.workers.iter().filter(|(_, worker)| worker.node == at);
        let workers: Vec<WorkerKey> = of_node.map(|(worker, _)| worker).collect();
        self.lose(workers, Some(node), |_| true, None);
        self.fail_infeasible();
    }

    /// Removes all of these workers before it handles any consequence, so that no action refers to them.
    fn lose(
        &mut self,
        workers: Vec<WorkerKey>,
        node: Option<NodeId>,
        has_started: impl Fn(TaskId) -> bool,
        culprit: Option<TaskId>,
    ) {
        self.work.needs_dispatch = true;
        let tasks = |assigned: &AssignedTask| assigned.task;
        let (mut blocked, mut assigned): (Vec<TaskKey>, Vec<(TaskKey, WorkerKind)>) = (Vec::new(), Vec::new());
        let mut creators: Vec<TaskKey> = Vec::new();
        let is_there = |actor: &Actor| actor.is_borrowed && actor.worker.is_some_and(|at| workers.contains(&at));
        let borrowed = self.actors.iter().filter(|(_, actor)| is_there(actor)).map(|(at, _)| at);
        let borrowed: Vec<ActorKey> = borrowed.collect();
        for at in workers {
            let Some(worker) = self.cluster.remove_worker(at, &mut self.queue) else { continue };
            blocked.extend(worker.blocked.iter().filter_map(tasks));
            assigned.extend(worker.assigned.iter().filter_map(tasks).map(|task| (task, worker.kind)));
            creators.extend(worker.actors.values().filter_map(tasks));
            self.forget_worker(at, worker);
        }
        if let Some(node) = node {
            if let Some(at) = self.cluster.nodes.find(node) {
                self.lose_bundles(at);
            }
            self.cluster.remove_node(node);
        }
        for task in blocked.iter().chain(assigned.iter().map(|(task, _)| task)) {
            self.tasks[*task].worker = None;
            self.tasks[*task].state = TaskPhase::Waiting;
        }
        let calls: Vec<Vec<TaskKey>> = creators.iter().map(|creator| self.take_calls(*creator)).collect();
        let of_borrowed: Vec<Vec<TaskKey>> = borrowed.iter().map(|actor| self.take_calls_of(*actor)).collect();
        for task in blocked {
            self.excuse(task, culprit);
            self.lose_attempt(task);
        }
        for (task, kind) in assigned {
            // A task that has submitted others has started, even if `has_started` is false; so has a proxy task.
            let is_proxy_task = kind == WorkerKind::PeerProxy && self.created_by(task).is_none();
            if has_started(self.tasks[task].id) || self.tasks.has_submitted(task) || is_proxy_task {
                self.excuse(task, culprit);
                self.lose_attempt(task);
            } else {
                self.requeue(task);
            }
        }
        for (creator, calls) in creators.into_iter().zip(calls) {
            for task in [creator].iter().chain(&calls) {
                if *task == creator || has_started(self.tasks[*task].id) || self.tasks[*task].child.is_some() {
                    self.excuse(*task, culprit);
                }
            }
            let fault = Fault::new(Code::WorkerLost, "its worker died");
            self.lose_actor(creator, calls, &has_started, Arc::new(TaskError { fault, chain: Vec::new() }), true);
        }
        borrowed.into_iter().zip(of_borrowed).for_each(|(actor, calls)| self.lose_borrowed(actor, calls));
    }

    fn forget_worker(&mut self, at: WorkerKey, worker: Worker) {
        for place in worker.held_objects.places {
            if self.objects.get_mut(place).is_some_and(|object| object.release(worker.id, u32::MAX)) {
                self.check(place);
            }
        }
        if let WorkerKind::Actor(id) = worker.kind
            && let Some(actor) = self.actors.find(id)
        {
            self.actors[actor].worker_requested_on = None;
        }
        if let WorkerKind::Driver(job) = worker.kind
            && let Some(job) = self.jobs.find(job)
            && self.jobs[job].driver == Some(at)
        {
            self.jobs[job].driver = None;
            self.jobs.remove_starting(job);
        }
    }

    /// Does not count the current attempt of a task that is lost because of another task.
    fn excuse(&mut self, at: TaskKey, culprit: Option<TaskId>) {
        let task = &mut self.tasks[at];
        task.uncounted_attempts += u32::from(culprit.is_some_and(|culprit| culprit != task.id));
    }

    /// Fails an attempt whose worker died while it ran.
    fn lose_attempt(&mut self, at: TaskKey) {
        self.cancel_descendants(at);
        let times = u64::from(self.tasks[at].attempt.0) + 1;
        let message = match times {
            1 => "its worker died while it ran".to_owned(),
            times => format!("its worker died while it ran, or it failed, in each of {times} attempts"),
        };
        let error = Arc::new(TaskError { fault: Fault::new(Code::WorkerLost, message), chain: Vec::new() });
        self.fail_attempt(at, error, true);
    }

    /// Queues a task again that its worker had not started.
    pub(crate) fn requeue(&mut self, at: TaskKey) {
        if self.tasks[at].cancellation == Cancellation::None {
            self.cancel_descendants(at);
            self.ready(at);
        } else {
            let error = self.error(at, self.cancellation_fault(at));
            let end = FinalState::from_error(&error);
            self.finish_with_error(at, error, end);
        }
    }
}
