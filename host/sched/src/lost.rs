//! Workers and nodes that are gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbar_core::{Code, Fault, NodeId, TaskError, TaskId, WorkerId};

use crate::actors::Actor;
use crate::cluster::{Given, Worker};
use crate::event::Role;
use crate::places::{ActorAt, TaskAt, WorkerAt};
use crate::scheduler::Scheduler;
use crate::tasks::{State, Stop, end_of};

impl<C, V> Scheduler<C, V> {
    pub(crate) fn lose_worker(&mut self, worker: WorkerId, begun: &[TaskId]) {
        if let Some(at) = self.cluster.find(worker) {
            let begun: BTreeSet<TaskId> = begun.iter().copied().collect();
            self.lose(vec![at], None, |id| begun.contains(&id));
        }
    }

    pub(crate) fn lose_node(&mut self, node: NodeId) {
        let Some(at) = self.cluster.node_ids.get(&node) else { return };
        let of_node = self.cluster.workers.iter().filter(|(_, worker)| worker.node == *at);
        let workers: Vec<WorkerAt> = of_node.map(|(worker, _)| worker).collect();
        self.lose(workers, Some(node), |_| true);
        self.fail_infeasible();
    }

    /// All of these go before anything follows from it: nothing is wanted of any of them any more.
    fn lose(&mut self, workers: Vec<WorkerAt>, node: Option<NodeId>, is_begun: impl Fn(TaskId) -> bool) {
        self.is_stale = true;
        let tasks = |given: &Given| given.task;
        let (mut blocked, mut given): (Vec<TaskAt>, Vec<(TaskAt, Role)>) = (Vec::new(), Vec::new());
        let mut makers: Vec<TaskAt> = Vec::new();
        let is_there = |actor: &Actor| actor.is_borrowed && actor.worker.is_some_and(|at| workers.contains(&at));
        let borrowed = self.actors.iter().filter(|(_, actor)| is_there(actor)).map(|(at, _)| at);
        let borrowed: Vec<ActorAt> = borrowed.collect();
        for at in workers {
            let Some(worker) = self.cluster.remove_worker(at, &mut self.queue) else { continue };
            blocked.extend(worker.blocked.iter().filter_map(tasks));
            given.extend(worker.given.iter().filter_map(tasks).map(|task| (task, worker.role)));
            makers.extend(worker.residents.values().filter_map(tasks));
            self.forget_worker(at, worker);
        }
        if let Some(node) = node {
            if let Some(at) = self.cluster.node_ids.get(&node) {
                self.lose_bundles(*at);
            }
            self.cluster.remove_node(node);
        }
        for task in blocked.iter().chain(given.iter().map(|(task, _)| task)) {
            self.tasks[*task].worker = None;
            self.tasks[*task].state = State::Waiting;
        }
        let calls: Vec<Vec<TaskAt>> = makers.iter().map(|maker| self.take_calls(*maker)).collect();
        let of_borrowed: Vec<Vec<TaskAt>> = borrowed.iter().map(|actor| self.take_calls_of(*actor)).collect();
        blocked.into_iter().for_each(|task| self.lose_attempt(task));
        for (task, role) in given {
            // What has submitted tasks was begun, whatever is known of it, and what stands for another scheduler.
            let is_seat = role == Role::Peer && self.made_by(task).is_none();
            if is_begun(self.tasks[task].id) || self.has_submitted(task) || is_seat {
                self.lose_attempt(task);
            } else {
                self.give_back(task);
            }
        }
        for (maker, calls) in makers.into_iter().zip(calls) {
            let fault = Fault::new(Code::WorkerLost, "its worker died");
            self.lose_actor(maker, (calls, &is_begun), Arc::new(TaskError { fault, chain: Vec::new() }), true);
        }
        borrowed.into_iter().zip(of_borrowed).for_each(|(actor, calls)| self.lose_borrowed(actor, calls));
    }

    fn forget_worker(&mut self, at: WorkerAt, worker: Worker) {
        for place in worker.holds.places {
            if self.objects.get_mut(place).is_some_and(|object| object.release(worker.id, u32::MAX)) {
                self.check(place);
            }
        }
        if let Role::Actor(id) = worker.role
            && let Some(actor) = self.actor_ids.get(&id)
        {
            self.actors[*actor].hired_on = None;
        }
        if let Role::Driver(job) = worker.role
            && let Some(job) = self.job_ids.get(&job)
            && self.jobs[*job].driver == Some(at)
        {
            self.jobs[*job].driver = None;
            self.starting.remove(&self.jobs[*job].id);
        }
    }

    /// The worker of a task died while it ran.
    fn lose_attempt(&mut self, at: TaskAt) {
        self.stop_descendants(at);
        let times = u64::from(self.tasks[at].attempt.0) + 1;
        let message = match times {
            1 => "its worker died while it ran".to_owned(),
            times => format!("its worker died while it ran, or it failed, in each of {times} attempts"),
        };
        let error = Arc::new(TaskError { fault: Fault::new(Code::WorkerLost, message), chain: Vec::new() });
        self.fail_attempt(at, error, true);
    }

    /// A task was not begun by the worker that had it.
    pub(crate) fn give_back(&mut self, at: TaskAt) {
        if self.tasks[at].stop == Stop::No {
            self.stop_descendants(at);
            self.ready(at);
        } else {
            let error = self.error(at, self.stopped(at));
            let end = end_of(&error);
            self.end_failed(at, error, end);
        }
    }
}
