//! What a scheduler should know, kept in the most simple way: everything is looked for from the start each time.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Code, Fault, ObjectId, RetryOn, Strategy, TaskId, WorkerId};
use sandbar_sched::{Action, Demand, Event, JobLimits, Outcome, Role, Scheduler, Work};

use crate::far_groups::Aside;
use crate::groups::Group;
use crate::lineage::Source;
use crate::streams::Stream;

pub type Steps = Scheduler<u64, u64>;

#[derive(Default)]
pub struct Model {
    pub nodes: BTreeMap<u32, Demand>,
    /// Of these, those that are to go.
    pub draining: BTreeSet<u32>,
    /// And those that are far.
    pub far: BTreeSet<u32>,
    /// What others use of these.
    pub loads: BTreeMap<u32, Demand>,
    /// What these were asked to set aside, by group, node and attempt, until it is given back or refused.
    pub aside: BTreeMap<(u64, u32, u32), Aside>,
    /// All that they were ever asked.
    pub attempts: BTreeSet<(u64, u32, u32)>,
    /// Groups and nodes that have refused them, and have not said since what others use.
    pub refused: BTreeSet<(u64, u32)>,
    pub workers: BTreeMap<u32, Worker>,
    pub jobs: BTreeMap<u32, Job>,
    /// All that were ever added, until their job ends.
    pub tasks: BTreeMap<u64, Task>,
    pub objects: BTreeMap<u64, Object>,
    /// All that were ever made, until their job ends.
    pub actors: BTreeMap<u64, Actor>,
    /// Workers that were asked for, on nodes that are there.
    pub hires: Vec<(u32, Role)>,
    /// Actors of other schedulers, while somebody has a handle.
    pub lent: BTreeMap<u64, Lent>,
    /// By the number of their generator, while somebody has them.
    pub streams: BTreeMap<u64, Stream>,
    /// Until they are removed, or go with their job.
    pub groups: BTreeMap<u64, Group>,
    pub number: u64,
    /// Values that came in and did not go out.
    pub values: BTreeSet<u64>,
    /// Attempts whose values counted.
    pub committed: BTreeSet<(u64, u32)>,
    pub step: Step,
}

/// What should come of the step at hand.
#[derive(Default)]
pub struct Step {
    pub failed: BTreeMap<u64, Vec<Code>>,
    /// Tasks that were given to workers.
    pub run: BTreeMap<u64, u32>,
    pub ended: BTreeSet<u64>,
    pub dropped: BTreeSet<u64>,
    /// Objects that their owners have back.
    pub returned: BTreeSet<u64>,
    pub told: BTreeMap<(u32, u64), u32>,
    pub refused: BTreeMap<(u32, u64), u32>,
    pub interrupted: BTreeSet<(u32, u64)>,
    pub withdrawn: BTreeSet<(u32, u64)>,
    /// Items, by worker and stream.
    pub items: BTreeSet<(u32, u64, u64)>,
    pub credits: BTreeSet<(u32, u64, u64)>,
    pub jobs_done: BTreeSet<u32>,
    pub ready: BTreeSet<u64>,
    /// Tasks that are to make an object again, those that do, and those that can't.
    pub lost: Vec<u64>,
    pub made_again: Vec<u64>,
    pub given_up: Vec<u64>,
    /// Tasks whose lineage was dropped.
    pub unkept: BTreeSet<u64>,
}

pub struct Worker {
    pub node: u32,
    pub role: Role,
    pub given: Vec<Given>,
    /// What made the actors that it has.
    pub residents: Vec<Given>,
    pub is_recalled: bool,
}

pub struct Actor {
    pub restarts_max: u32,
    pub calls_max: u64,
    pub saved: Option<u64>,
}

pub struct Lent {
    pub job: u32,
    /// The worker that stands for who has it, until that is gone.
    pub owner: Option<u32>,
}

#[derive(Clone)]
pub struct Given {
    pub task: u64,
    pub attempt: u32,
    pub demand: Demand,
    pub strategy: Strategy,
    /// The group and bundle that it was given.
    pub bundle: Option<(u64, u32)>,
    pub is_blocked: bool,
    pub is_ghost: bool,
}

pub struct Job {
    pub limits: JobLimits,
    pub first: Option<u64>,
    pub driver: Option<u32>,
}

pub struct Task {
    pub job: u32,
    pub parent: Option<u64>,
    pub demand: Demand,
    pub strategy: Strategy,
    pub priority: i32,
    pub depth: u32,
    pub number: u64,
    pub returns: u32,
    pub links: Vec<u64>,
    pub needs: Vec<u64>,
    pub retries_max: u32,
    pub retry_on: RetryOn,
    pub attempt: u32,
    pub worker: Option<u32>,
    pub stop: u8,
    pub has_ended: bool,
    pub work: Work,
    /// Of a call, in its actor's worker.
    pub is_blocked: bool,
    /// What is kept to make again what it returned, once it has ended.
    pub lineage: Option<Vec<Source>>,
    /// Submitted by an attempt of its parent that has succeeded.
    pub is_settled: bool,
    /// Whether it stands in line, as far as the scheduler has looked: something that it needs may have been lost since.
    pub stands: bool,
}

pub struct Object {
    pub job: u32,
    pub value: Value,
    pub holds: BTreeMap<u32, u64>,
    pub wants: BTreeMap<u32, u32>,
    /// It was there, and was lost.
    pub was_ready: bool,
    /// It is another scheduler's, and that was asked for it.
    pub is_borrowed: bool,
    pub is_asked: bool,
}

#[derive(Clone, PartialEq)]
pub enum Value {
    Pending,
    /// Pending, and not for a task.
    Promised,
    /// Pending, and another scheduler's.
    Away,
    Ready(u64, Vec<u64>),
    Failed,
    /// A value that was lost.
    Lost,
}

impl Value {
    pub fn is_pending(&self) -> bool {
        matches!(self, Value::Pending | Value::Promised | Value::Away)
    }
}

pub fn fits(demand: &Demand, cpus: i128, rest: &Demand) -> bool {
    let custom = |name| rest.custom.get(name).copied().unwrap_or(0);
    (demand.cpus == 0 || i128::from(demand.cpus) <= cpus)
        && demand.gpus <= rest.gpus
        && demand.memory <= rest.memory
        && demand.custom.iter().all(|(name, amount)| *amount <= custom(name))
}

pub fn is_light(demand: &Demand) -> bool {
    demand.gpus == 0 && demand.memory == 0 && demand.custom.is_empty()
}

impl Model {
    pub fn is_known(&self, number: u64) -> bool {
        self.objects.contains_key(&number) || self.tasks.contains_key(&number)
    }

    pub fn in_worker(&self, worker: WorkerId, task: TaskId) -> Option<usize> {
        self.workers.get(&worker.0)?.given.iter().position(|given| given.task == task.0)
    }

    /// The task of an event, if it is alive and in that worker.
    pub fn running(&self, worker: WorkerId, task: TaskId) -> Option<&Task> {
        self.tasks.get(&task.0).filter(|task| task.worker == Some(worker.0))
    }

    /// Takes in what happened.
    pub fn take_in(&mut self, event: &Event<u64, u64>, actions: &[Action<u64>], steps: &Steps) {
        self.step = Step::default();
        match event {
            Event::NodeJoined { node, resources, far } => {
                let is_new = !self.nodes.contains_key(&node.0);
                self.far.extend((is_new && *far).then_some(node.0));
                self.nodes.entry(node.0).or_insert_with(|| resources.clone());
                self.fail_impossible_groups();
            }
            Event::NodeDraining { node } => {
                if self.nodes.contains_key(&node.0) {
                    self.draining.insert(node.0);
                }
            }
            Event::NodeLoad { node, others } => self.load(node.0, others),
            Event::NodeLost { node } => {
                self.draining.remove(&node.0);
                self.far.remove(&node.0);
                self.lose_aside(node.0);
                self.hires.retain(|(on, _)| *on != node.0);
                let of_node = |(id, worker): (&u32, &Worker)| (worker.node == node.0).then_some(*id);
                let workers = self.workers.iter().filter_map(of_node).collect();
                self.nodes.remove(&node.0);
                self.lose(workers, None);
                self.lose_bundles(node.0);
                self.fail_impossible_groups();
            }
            Event::WorkerReady { worker, node, role } => {
                if self.nodes.contains_key(&node.0) && !self.workers.contains_key(&worker.0) {
                    let record = Worker {
                        node: node.0,
                        role: *role,
                        given: Vec::new(),
                        residents: Vec::new(),
                        is_recalled: false,
                    };
                    self.workers.insert(worker.0, record);
                    self.hires.retain(|hire| *hire != (node.0, *role));
                    if let Role::Driver(job) = role
                        && let Some(job) = self.jobs.get_mut(&job.0)
                    {
                        job.driver.get_or_insert(worker.0);
                    }
                }
            }
            Event::WorkerLost { worker, begun } => self.lose(vec![worker.0], Some(begun)),
            Event::JobStarted { job, limits, .. } => {
                self.jobs.entry(job.0).or_insert(Job { limits: *limits, first: None, driver: None });
            }
            Event::JobEnded { job } => self.end_job(job.0),
            Event::Submitted { task } => {
                self.submit(task, true);
            }
            Event::RanInline { task, worker, outcome, .. } => {
                let is_so = task.parent.is_some_and(|(_, _, of)| of == *worker);
                let may = task.work == Work::Task && task.strategy == Strategy::Default;
                if is_so && self.submit(task, may) {
                    self.finish(task.id.0, outcome, false);
                } else {
                    self.discard(outcome);
                }
            }
            Event::BeganInline { task, worker } => self.began_inline(task, worker.0),
            Event::Put { object, task, worker, value, refs } => self.put(object.0, *task, *worker, *value, refs),
            Event::PutFailed { object, task, worker, .. } => {
                let job = self.running(*worker, *task).map(|task| task.job).filter(|_| !self.is_known(object.0));
                if let Some(job) = job {
                    self.create(object.0, job, Value::Failed, Some(worker.0));
                }
            }
            Event::Yielded { task, attempt, worker, index, object, value, refs } => {
                let value = value.as_ref().ok().copied();
                self.yielded((*task, attempt.0, *worker), *index, object.0, value, refs);
            }
            Event::Taken { stream, worker, taken } => self.taken(stream.0, worker.0, *taken),
            Event::Seated { task, worker } => self.seat(task, worker.0),
            Event::ActorBorrowed { actor, worker } => self.borrow_actor(actor.0, worker.0),
            Event::Promised { object, task, worker } => {
                let job = self.running(*worker, *task).map(|task| task.job).filter(|_| !self.is_known(object.0));
                if let Some(job) = job {
                    let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
                    let value = if has_room { Value::Promised } else { Value::Failed };
                    self.create(object.0, job, value, Some(worker.0));
                }
            }
            Event::Fulfilled { object, value } => self.fulfil(object.0, value),
            Event::Borrowed { object, task, worker } => self.borrow(object.0, *worker, *task),
            Event::Arrived { object, value, refs } => self.arrive(object.0, value.as_ref().ok().copied(), refs),
            Event::Finished { task, attempt, worker, outcome, .. }
                if self.tasks.get(&task.0).is_some_and(|task| matches!(task.work, Work::Method(_))) =>
            {
                let call = &self.tasks[&task.0];
                if call.worker != Some(worker.0) || call.attempt != attempt.0 {
                    return self.finish_step(outcome, actions, steps);
                }
                self.finish(task.0, outcome, self.is_peer(worker.0));
            }
            Event::Finished { task, attempt, worker, outcome, .. } if self.resides(*worker, *task, attempt.0) => {
                let residents = &mut self.workers.get_mut(&worker.0).expect("it was found").residents;
                let at = residents.iter().position(|given| given.task == task.0).expect("it was found");
                let given = residents.remove(at);
                self.discard(outcome);
                if !given.is_ghost {
                    let calls = self.take_calls(task.0);
                    self.lose_actor(task.0, calls, &|_| false, !self.is_peer(worker.0));
                }
            }
            Event::Finished { task, attempt, worker, outcome, .. } => {
                let given = self.workers.get_mut(&worker.0).map(|worker| &mut worker.given);
                let is_it = |given: &Given| given.task == task.0 && given.attempt == attempt.0;
                let position = given.as_ref().and_then(|given| given.iter().position(is_it));
                let Some((given, position)) = given.zip(position) else {
                    return self.finish_step(outcome, actions, steps);
                };
                let given = given.remove(position);
                if given.is_ghost {
                    return self.finish_step(outcome, actions, steps);
                }
                match (&self.tasks[&task.0].work, outcome) {
                    (Work::Actor(_), Outcome::Succeeded(values)) => self.made(task.0, worker.0, given, values),
                    (Work::Actor(_), _) => self.finish(task.0, outcome, self.is_peer(worker.0)),
                    _ => self.finish(task.0, outcome, false),
                }
            }
            Event::Blocked { task, worker, blocked }
                if self.tasks.get(&task.0).is_some_and(|task| matches!(task.work, Work::Method(_))) =>
            {
                let task = self.tasks.get_mut(&task.0).expect("it was found");
                if task.worker == Some(worker.0) && self.workers.contains_key(&worker.0) {
                    task.is_blocked = *blocked;
                }
            }
            Event::Blocked { task, worker, blocked } => {
                if let Some(at) = self.in_worker(*worker, *task) {
                    let given = &mut self.workers.get_mut(&worker.0).expect("it was found").given;
                    given[at].is_blocked = *blocked;
                }
            }
            Event::Wanted { object, worker, task } => self.want(object.0, *worker, *task),
            Event::Held { object, worker, task } => self.hold(object.0, *worker, *task),
            Event::Released { object, worker, times } => self.release(object.0, *worker, *times),
            Event::Doomed { call, fault } => {
                let is_idle =
                    |task: &Task| task.worker.is_none() && !task.has_ended && matches!(task.work, Work::Method(_));
                if self.tasks.get(&call.0).is_some_and(is_idle) {
                    self.fail(call.0, fault.code);
                }
            }
            Event::Cancelled { task, recursive } => {
                if self.tasks.contains_key(&task.0) {
                    self.stop(task.0, 1 + u8::from(*recursive));
                    if *recursive {
                        self.descendants(task.0).into_iter().for_each(|id| self.stop(id, 2));
                    }
                }
            }
            Event::Recalled { worker, tasks } => {
                // What a scheduler has stays there.
                if let Some(record) = self.workers.get_mut(&worker.0).filter(|worker| worker.role != Role::Peer) {
                    record.is_recalled = false;
                    let mut back = Vec::new();
                    for task in tasks {
                        let given = &mut self.workers.get_mut(&worker.0).expect("it was found").given;
                        let is_it = |given: &Given| given.task == task.0;
                        if let Some(at) = given.iter().position(is_it)
                            && !given.remove(at).is_ghost
                        {
                            self.tasks.get_mut(&task.0).expect("it is known").worker = None;
                            back.push(task.0);
                        }
                    }
                    back.into_iter().for_each(|task| self.give_back(task));
                }
            }
            Event::Killed { actor, restart: false } => {
                if self.tasks.get(&actor.0).is_some_and(|maker| !maker.has_ended) && self.actors.contains_key(&actor.0)
                {
                    self.stop(actor.0, 1);
                }
            }
            Event::Killed { actor, restart: true } => {
                let is_wanted = self.tasks.get(&actor.0).is_some_and(|maker| maker.stop == 0);
                if let Some(worker) = self.home(actor.0).filter(|_| is_wanted) {
                    self.step.interrupted.insert((worker, actor.0));
                }
            }
            Event::Saved { actor, attempt, worker, object } => {
                let is_now = |maker: &Task| maker.attempt == attempt.0;
                if self.home(actor.0) == Some(worker.0)
                    && self.tasks.get(&actor.0).is_some_and(is_now)
                    && let Some(object_is) = self.objects.get(&object.0)
                    && object_is.job == self.tasks[&actor.0].job
                    && matches!(object_is.value, Value::Ready(..))
                {
                    self.actors.get_mut(&actor.0).expect("it is alive").saved = Some(object.0);
                }
            }
            Event::GroupCreated { group, task, worker, spec, value } => {
                self.create_group(group.0, *task, *worker, spec, *value);
            }
            Event::GroupRemoved { group, task, worker } => {
                let job = self.running(*worker, *task).map(|task| task.job);
                if self.groups.get(&group.0).is_some_and(|group| Some(group.job) == job) {
                    self.close_group(group.0);
                    self.groups.remove(&group.0);
                }
            }
            Event::SetAside { group, node, attempt, done } => self.answered((group.0, node.0, attempt.0), *done),
            Event::ObjectLost { object, waiters } => self.lose_object(object.0, waiters),
        }
        self.settle(actions, steps);
    }

    pub fn finish_step(&mut self, outcome: &Outcome<u64>, actions: &[Action<u64>], steps: &Steps) {
        self.discard(outcome);
        self.settle(actions, steps);
    }

    pub fn discard(&mut self, outcome: &Outcome<u64>) {
        if let Outcome::Succeeded(values) = outcome {
            self.values.extend(values.iter().map(|(value, _)| value));
            self.step.dropped.extend(values.iter().map(|(value, _)| value));
        }
    }

    pub fn job_objects(&self, job: u32) -> u64 {
        self.objects.values().filter(|object| object.job == job).count() as u64
    }

    pub fn of_job(&self, job: u32, ids: &[ObjectId]) -> bool {
        ids.iter().all(|id| self.objects.get(&id.0).is_some_and(|object| object.job == job))
    }

    pub fn lose_object(&mut self, id: u64, waiters: &[WorkerId]) {
        let Some(object) = self.objects.get(&id) else { return };
        let value = object.value.clone();
        for worker in waiters.iter().filter(|worker| self.workers.contains_key(&worker.0)).copied().collect::<Vec<_>>()
        {
            if let Value::Ready(_, contents) = &value {
                contents.iter().for_each(|content| self.release(*content, worker, 1));
            }
            *self.objects.get_mut(&id).expect("it was found").wants.entry(worker.0).or_default() += 1;
        }
        if let Value::Ready(value, _) = value {
            self.step.dropped.insert(value);
            self.lose_value(id);
        }
    }

    pub fn release(&mut self, object: u64, worker: WorkerId, times: u32) {
        if self.workers.contains_key(&worker.0)
            && let Some(object) = self.objects.get_mut(&object)
            && let Some(held) = object.holds.get_mut(&worker.0)
        {
            *held = held.saturating_sub(times.into());
            object.holds.retain(|_, held| *held > 0);
        }
    }

    pub fn create(&mut self, id: u64, job: u32, value: Value, holder: Option<u32>) {
        let holds = holder.map(|holder| (holder, 1)).into_iter().collect();
        let (is_borrowed, wants) = (value == Value::Away, BTreeMap::new());
        let object = Object { job, value, holds, wants, was_ready: false, is_borrowed, is_asked: false };
        self.objects.insert(id, object);
    }

    pub fn put(&mut self, id: u64, task: TaskId, worker: WorkerId, value: u64, refs: &[ObjectId]) {
        self.values.insert(value);
        let Some(job) = self.running(worker, task).map(|task| task.job).filter(|_| !self.is_known(id)) else {
            self.step.dropped.insert(value);
            return;
        };
        let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
        if has_room && self.of_job(job, refs) {
            let contents = refs.iter().map(|id| id.0).collect();
            self.create(id, job, Value::Ready(value, contents), Some(worker.0));
        } else {
            self.create(id, job, Value::Failed, Some(worker.0));
            self.step.dropped.insert(value);
        }
    }

    pub fn fulfil(&mut self, id: u64, value: &Result<u64, Fault>) {
        let promised = self.objects.get_mut(&id).filter(|object| object.value == Value::Promised);
        self.values.extend(value.as_ref().ok());
        match (promised, value) {
            (Some(object), Ok(value)) => object.value = Value::Ready(*value, Vec::new()),
            (Some(object), Err(_)) => object.value = Value::Failed,
            (None, Ok(value)) => drop(self.step.dropped.insert(*value)),
            (None, Err(_)) => {}
        }
    }

    /// A worker holds an object once more.
    pub fn hold(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if let Some(job) = self.acts_for(worker, task)
            && let Some(object) = self.objects.get_mut(&id).filter(|object| object.job == job)
        {
            *object.holds.entry(worker.0).or_default() += 1;
        }
    }

    pub fn want(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if !self.workers.contains_key(&worker.0) {
            return;
        }
        let job = self.acts_for(worker, task);
        let may = |object: &&mut Object| Some(object.job) == job || object.holds.contains_key(&worker.0);
        match self.objects.get_mut(&id).filter(may) {
            Some(object) => *object.wants.entry(worker.0).or_default() += 1,
            None => *self.step.refused.entry((worker.0, id)).or_default() += 1,
        }
    }
}
