//! Nodes that are far: what a scheduler should know of the schedulers there, for each of which a worker stands, and what
//! these do. They have tasks of a job run here on behalf of a seat, which is a task that they have.

use sandbar_core::{Attempt, JobId, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Event, Role, Submission};

use crate::cluster::History;
use crate::model::{Given, Model, Task, Value, Worker};

impl Model {
    pub fn near(&self) -> impl Iterator<Item = u32> {
        self.nodes.keys().copied().filter(|node| !self.far.contains(node))
    }

    pub fn is_peer(&self, worker: u32) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.role == Role::Peer)
    }

    /// The job on whose behalf a worker wants something: of a task that it has, or that a worker of its node has, if it is
    /// the scheduler there.
    pub fn acts_for(&self, worker: WorkerId, task: TaskId) -> Option<u32> {
        let (worker_is, task) = (self.workers.get(&worker.0)?, self.tasks.get(&task.0)?);
        let is_there =
            |at: &u32| *at == worker.0 || worker_is.role == Role::Peer && self.workers[at].node == worker_is.node;
        task.worker.filter(is_there).map(|_| task.job)
    }

    /// A task that takes nothing of a node and is begun once, in the worker of who has it.
    pub fn seat(&mut self, task: &Submission<u64>, worker: u32) {
        let may = self.is_peer(worker) && self.jobs.contains_key(&task.job.0) && task.parent.is_none();
        if !may || self.is_known(task.id.0) {
            return;
        }
        self.number += 1;
        let task = Submission::bare(task.id, task.job, task.name.clone(), task.call);
        let id = task.id.0;
        self.create(id, task.job.0, Value::Pending, None);
        self.tasks.insert(id, Task { worker: Some(worker), ..Task::new(&task, self.number, 1) });
        let (demand, strategy) = (task.demand, task.strategy);
        let given = Given { task: id, attempt: 0, demand, strategy, bundle: None, is_blocked: false, is_ghost: false };
        self.workers.get_mut(&worker).expect("it was found").given.push(given);
    }

    /// Whether a task that has not ended stands for a scheduler.
    pub fn is_seat(&self, id: u64) -> bool {
        let stands = |task: &Task| !task.has_ended && task.parent.is_none() && self.jobs[&task.job].first != Some(id);
        self.tasks.get(&id).is_some_and(stands)
    }
}

impl History {
    /// The scheduler of a node.
    pub fn any_peer(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.workers.keys().copied().filter(|worker| self.model.is_peer(*worker)).collect();
        self.pick(&all)
    }

    pub fn any_near(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.model.near().collect();
        self.pick(&all)
    }

    /// The scheduler of a node that is far comes, if it is not there.
    pub fn hire_peer(&mut self, node: u32) {
        let is_there = |worker: &Worker| worker.node == node && worker.role == Role::Peer;
        if self.model.far.contains(&node) && !self.model.workers.values().any(is_there) {
            self.hire_for(node, Role::Peer);
        }
    }

    /// A scheduler has tasks of a job run here from now on.
    pub fn seat(&mut self) {
        let all: Vec<u32> = self.model.jobs.keys().copied().collect();
        if let Some(job) = self.pick(&all) {
            self.seat_in(job);
        }
    }

    pub fn seat_in(&mut self, job: u32) {
        let Some(worker) = self.any_peer() else { return };
        self.number += 10;
        let task = Submission::bare(TaskId(self.number), JobId(job), "seat".into(), self.number);
        self.take_seat(task, worker);
    }

    /// A seat is in the worker that stands for its scheduler, if there is such.
    pub fn take_seat(&mut self, task: Submission<u64>, worker: u32) {
        let id = task.id;
        self.event(Event::Seated { task, worker: WorkerId(worker) });
        if self.model.is_seat(id.0) {
            self.workers.get_mut(&worker).expect("it is there").begun.push((id, Attempt(0), false));
        }
    }

    /// A scheduler has no more tasks of a job run here: its seat is cancelled, and fails.
    pub fn end_seat(&mut self) {
        let all: Vec<u64> = self.model.tasks.keys().copied().filter(|id| self.model.is_seat(*id)).collect();
        if let Some(seat) = self.pick(&all) {
            self.event(Event::Cancelled { task: TaskId(seat), recursive: true });
        }
    }

    /// A scheduler wants objects, or holds them, for a task in a worker of its node.
    pub fn use_objects(&mut self) {
        let Some(peer) = self.any_peer() else { return };
        let (node, worker) = (self.model.workers[&peer].node, WorkerId(peer));
        let is_there = |task: &Task| task.worker.is_some_and(|worker| self.model.workers[&worker].node == node);
        let all: Vec<u64> = self.model.tasks.iter().filter(|(_, task)| is_there(task)).map(|(id, _)| *id).collect();
        let Some(task) = self.pick(&all).map(TaskId) else { return };
        let job = self.model.tasks[&task.0].job;
        let is_wanted = self.chance(50);
        for object in self.some_objects(Some(job), 60) {
            self.event(match is_wanted {
                true => Event::Wanted { object, worker, task },
                false => Event::Held { object, worker, task },
            });
        }
        let held = self.model.objects.iter().filter(|(_, object)| object.holds.contains_key(&peer));
        let held: Vec<u64> = held.map(|(id, _)| *id).collect();
        if let Some(object) = self.pick(&held).map(ObjectId) {
            self.event(Event::Released { object, worker, times: 1 });
        }
    }
}
