//! Remote nodes: the model of their proxy workers and proxy tasks, and their simulated requests.

use sandbar_core::{Attempt, JobId, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Event, Submission, SubmissionKind, WorkerKind};

use crate::cluster::History;
use crate::model::{AssignedTask, Model, Task, Value, Worker};

impl Model {
    pub fn local_nodes(&self) -> impl Iterator<Item = u32> {
        self.nodes.keys().copied().filter(|node| !self.is_remote(*node))
    }

    pub fn is_peer(&self, worker: u32) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.kind == WorkerKind::PeerProxy)
    }

    /// Returns the job for which a worker requests an object: the job of a task that it has, or that is in a worker of
    /// its node if it is a proxy worker.
    pub fn acts_for(&self, worker: WorkerId, task: TaskId) -> Option<u32> {
        let (worker_is, task) = (self.workers.get(&worker.0)?, self.tasks.get(&task.0)?);
        let is_there = |at: &u32| {
            *at == worker.0 || worker_is.kind == WorkerKind::PeerProxy && self.workers[at].node == worker_is.node
        };
        task.worker.filter(is_there).map(|_| task.job)
    }

    /// Adds a proxy task, without resources and retries, in its worker.
    pub fn start_proxy_task(&mut self, task: &Submission<u64>, worker: u32) {
        let may = self.is_peer(worker) && self.jobs.contains_key(&task.job.0) && task.parent.is_none();
        if !may || self.is_known(task.id.0) {
            return;
        }
        let task = Submission::bare(task.id, task.job, task.name.clone(), task.call);
        let id = task.id.0;
        self.create(id, task.job.0, Value::Pending, None);
        let tenant = self.jobs[&task.job.0].tenant;
        self.tasks.insert(id, Task { worker: Some(worker), ..Task::new(&task, tenant, self.next_number(), 1) });
        let (demand, strategy) = (task.demand, task.strategy);
        let assigned = AssignedTask {
            task: id,
            tenant,
            attempt: 0,
            demand,
            strategy,
            bundle: None,
            is_blocked: false,
            is_ghost: false,
        };
        self.workers.get_mut(&worker).expect("it was found").assigned.push(assigned);
    }

    /// Whether an unfinished task is a proxy task.
    pub fn is_proxy_task(&self, id: u64) -> bool {
        let is_queued =
            |task: &Task| !task.has_finished && task.parent.is_none() && self.jobs[&task.job].first != Some(id);
        self.tasks.get(&id).is_some_and(|task| is_queued(task) && task.kind != SubmissionKind::Lease)
    }
}

impl History {
    /// Picks a proxy worker.
    pub fn any_peer(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.workers.keys().copied().filter(|worker| self.model.is_peer(*worker)).collect();
        self.pick(&all)
    }

    pub fn any_local_node(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.model.local_nodes().collect();
        self.pick(&all)
    }

    /// The proxy worker of a remote node becomes ready, unless the node has one.
    pub fn start_proxy(&mut self, node: u32) {
        let is_there = |worker: &Worker| worker.node == node && worker.kind == WorkerKind::PeerProxy;
        if self.model.is_remote(node) && !self.model.workers.values().any(is_there) {
            self.start_worker(node, WorkerKind::PeerProxy);
        }
    }

    /// Another scheduler starts to submit tasks of a job here.
    pub fn start_proxy_task(&mut self) {
        let all: Vec<u32> = self.model.jobs.keys().copied().collect();
        if let Some(job) = self.pick(&all) {
            self.start_proxy_task_in(job);
        }
    }

    pub fn start_proxy_task_in(&mut self, job: u32) {
        let Some(worker) = self.any_peer() else { return };
        self.number += 10;
        let task = Submission::bare(TaskId(self.number), JobId(job), "proxy".into(), self.number);
        self.add_proxy_task(task, worker);
    }

    /// Adds a proxy task, if its worker is a proxy worker.
    pub fn add_proxy_task(&mut self, task: Submission<u64>, worker: u32) {
        let id = task.id;
        self.event(Event::ProxyTaskStarted { task, worker: WorkerId(worker) });
        if self.model.is_proxy_task(id.0) {
            self.workers.get_mut(&worker).expect("it is there").started.push((id, Attempt(0), false));
        }
    }

    /// Another scheduler has no more tasks of a job here: its proxy task is cancelled.
    pub fn end_proxy_task(&mut self) {
        let all: Vec<u64> = self.model.tasks.keys().copied().filter(|id| self.model.is_proxy_task(*id)).collect();
        if let Some(start_proxy_task) = self.pick(&all) {
            self.event(Event::Cancelled { task: TaskId(start_proxy_task), recursive: true });
        }
    }

    /// A proxy worker requests or holds objects for a task in a worker of its node.
    pub fn use_objects(&mut self) {
        let Some(peer) = self.any_peer() else { return };
        let (node, worker) = (self.model.workers[&peer].node, WorkerId(peer));
        let is_there = |task: &Task| task.worker.is_some_and(|worker| self.model.workers[&worker].node == node);
        let all: Vec<u64> = self.model.tasks.iter().filter(|(_, task)| is_there(task)).map(|(id, _)| *id).collect();
        let Some(task) = self.pick(&all).map(TaskId) else { return };
        let job = self.model.tasks[&task.0].job;
        let is_needed = self.chance(50);
        for object in self.some_objects(Some(job), 60) {
            self.event(match is_needed {
                true => Event::ObjectRequested { object, worker, task },
                false => Event::ReferenceAdded { object, worker, task },
            });
        }
        let held = self.model.objects.iter().filter(|(_, object)| object.holds.contains_key(&peer));
        let held: Vec<u64> = held.map(|(id, _)| *id).collect();
        if let Some(object) = self.pick(&held).map(ObjectId) {
            self.event(Event::ReferencesReleased { object, worker, count: 1 });
        }
    }
}
