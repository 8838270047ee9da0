//! What a scheduler should know, kept in the most simple way: everything is looked for from the start each time.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{ActorId, Code, Fault, ObjectId, RetryOn, Strategy, TaskId, WorkerId};
use sandbar_sched::{Action, Demand, Event, JobLimits, Outcome, Role, Scheduler, Submission, Work};

use crate::groups::Group;
use crate::lineage::Source;
use crate::streams::Stream;

pub type Steps = Scheduler<u64, u64>;

#[derive(Default)]
pub struct Model {
    pub nodes: BTreeMap<u32, Demand>,
    pub workers: BTreeMap<u32, Worker>,
    pub jobs: BTreeMap<u32, Job>,
    /// All that were ever added, until their job ends.
    pub tasks: BTreeMap<u64, Task>,
    pub objects: BTreeMap<u64, Object>,
    /// All that were ever made, until their job ends.
    pub actors: BTreeMap<u64, Actor>,
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
    pub ended: BTreeSet<u64>,
    pub dropped: BTreeSet<u64>,
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
}

#[derive(Clone, PartialEq)]
pub enum Value {
    Pending,
    /// Pending, and not for a task.
    Promised,
    Ready(u64, Vec<u64>),
    Failed,
    /// A value that was lost.
    Lost,
}

impl Value {
    pub fn is_pending(&self) -> bool {
        matches!(self, Value::Pending | Value::Promised)
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

    /// The worker of an actor that can be called.
    pub fn home(&self, actor: u64) -> Option<u32> {
        let worker = self.tasks.get(&actor)?.worker?;
        let is_it = |given: &Given| given.task == actor && !given.is_ghost;
        self.workers[&worker].residents.iter().any(is_it).then_some(worker)
    }

    /// Calls of an actor that have not ended, in order.
    pub fn calls(&self, actor: u64) -> Vec<u64> {
        let is_call = |task: &Task| !task.has_ended && task.work == Work::Method(ActorId(actor));
        let mut calls: Vec<u64> = self.tasks.iter().filter(|(_, task)| is_call(task)).map(|(id, _)| *id).collect();
        calls.sort_by_key(|id| self.tasks[id].number);
        calls
    }

    fn in_worker(&self, worker: WorkerId, task: TaskId) -> Option<usize> {
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
            Event::NodeJoined { node, resources } => {
                self.nodes.entry(node.0).or_insert_with(|| resources.clone());
                self.fail_impossible_groups();
            }
            Event::NodeLost { node } => {
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
                    self.finish(task.id.0, outcome);
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
            Event::Promised { object, task, worker } => {
                let job = self.running(*worker, *task).map(|task| task.job).filter(|_| !self.is_known(object.0));
                if let Some(job) = job {
                    let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
                    let value = if has_room { Value::Promised } else { Value::Failed };
                    self.create(object.0, job, value, Some(worker.0));
                }
            }
            Event::Fulfilled { object, value } => self.fulfil(object.0, value),
            Event::Finished { task, attempt, worker, outcome, .. }
                if self.tasks.get(&task.0).is_some_and(|task| matches!(task.work, Work::Method(_))) =>
            {
                let call = &self.tasks[&task.0];
                if call.worker != Some(worker.0) || call.attempt != attempt.0 {
                    return self.finish_step(outcome, actions, steps);
                }
                self.finish(task.0, outcome);
            }
            Event::Finished { task, attempt, worker, outcome, .. } if self.resides(*worker, *task, attempt.0) => {
                let residents = &mut self.workers.get_mut(&worker.0).expect("it was found").residents;
                let at = residents.iter().position(|given| given.task == task.0).expect("it was found");
                let given = residents.remove(at);
                self.discard(outcome);
                if !given.is_ghost {
                    let calls = self.take_calls(task.0);
                    self.lose_actor(task.0, calls, &|_| false);
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
                let made = matches!(self.tasks[&task.0].work, Work::Actor(_)).then_some(outcome);
                match made {
                    Some(Outcome::Succeeded(values)) => self.made(task.0, worker.0, given, values),
                    _ => self.finish(task.0, outcome),
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
            Event::Held { object, worker, task } => {
                if self.workers.contains_key(&worker.0)
                    && let Some(job) = self.running(*worker, *task).map(|task| task.job)
                    && let Some(object) = self.objects.get_mut(&object.0).filter(|object| object.job == job)
                {
                    *object.holds.entry(worker.0).or_default() += 1;
                }
            }
            Event::Released { object, worker, times } => self.release(object.0, *worker, *times),
            Event::Cancelled { task, recursive } => {
                if self.tasks.contains_key(&task.0) {
                    self.stop(task.0, 1 + u8::from(*recursive));
                    if *recursive {
                        self.descendants(task.0).into_iter().for_each(|id| self.stop(id, 2));
                    }
                }
            }
            Event::Recalled { worker, tasks } => {
                if let Some(record) = self.workers.get_mut(&worker.0) {
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
                if let Some(worker) = self.home(actor.0).filter(|_| self.tasks[&actor.0].stop == 0) {
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
            Event::ObjectLost { object, waiters } => self.lose_object(object.0, waiters),
        }
        self.settle(actions, steps);
    }

    fn finish_step(&mut self, outcome: &Outcome<u64>, actions: &[Action<u64>], steps: &Steps) {
        self.discard(outcome);
        self.settle(actions, steps);
    }

    fn discard(&mut self, outcome: &Outcome<u64>) {
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

    fn lose_object(&mut self, id: u64, waiters: &[WorkerId]) {
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

    fn release(&mut self, object: u64, worker: WorkerId, times: u32) {
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
        self.objects.insert(id, Object { job, value, holds, wants: BTreeMap::new(), was_ready: false });
    }

    /// Says whether there is a task now.
    fn submit(&mut self, task: &Submission<u64>, mut may: bool) -> bool {
        let Some(job) = self.jobs.get(&task.job.0) else { return false };
        let returns = u64::from(task.returns);
        if (task.id.0..task.id.0 + returns).any(|number| self.is_known(number)) || returns == 0 {
            return false;
        }
        let (mut depth, mut stop, mut holder) = (1, 0, None);
        match task.parent {
            None if job.first.is_some() => return false,
            None if task.strategy != Strategy::Default => may = false,
            None => {}
            Some((parent, attempt, worker)) => {
                let Some(parent) = self.running(worker, parent) else { return false };
                if parent.attempt != attempt.0 || parent.job != task.job.0 {
                    return false;
                }
                (depth, stop, holder) = (parent.depth + 1, parent.stop, Some(worker.0));
            }
        }
        let live = self.tasks.values().filter(|other| other.job == task.job.0 && !other.has_ended).count() as u64;
        let is_over = depth > job.limits.depth_max
            || live + 1 > job.limits.tasks_max
            || self.job_objects(task.job.0) + returns > job.limits.objects_max;
        let links: Vec<ObjectId> = task.needs.iter().chain(&task.refs).copied().collect();
        let may = may && self.may_work(task) && self.may_be_there(task);
        let is_bad = !may || is_over || stop == 2 || !self.of_job(task.job.0, &links);
        let value = if is_bad { Value::Failed } else { Value::Pending };
        (task.id.0..task.id.0 + returns).for_each(|id| self.create(id, task.job.0, value.clone(), holder));
        let job = self.jobs.get_mut(&task.job.0).expect("it was found");
        if task.parent.is_none() {
            job.first = Some(task.id.0);
            if is_bad {
                self.step.jobs_done.insert(task.job.0);
            }
        }
        if is_bad {
            return false;
        }
        self.number += 1;
        let group = self.pending_group(task.strategy).map(ObjectId);
        let record = Task {
            job: task.job.0,
            parent: task.parent.map(|(parent, ..)| parent.0),
            demand: task.demand.clone(),
            strategy: task.strategy,
            priority: task.priority,
            depth,
            number: self.number,
            returns: task.returns,
            links: links.iter().chain(&group).map(|id| id.0).collect(),
            needs: task.needs.iter().chain(&group).map(|id| id.0).collect(),
            retries_max: task.retries_max,
            retry_on: task.retry_on,
            attempt: 0,
            worker: None,
            stop: 0,
            has_ended: false,
            work: task.work.clone(),
            is_blocked: false,
            lineage: None,
            is_settled: false,
            stands: false,
        };
        self.tasks.insert(task.id.0, record);
        if let Work::Actor(spec) = &task.work {
            let actor = Actor { restarts_max: spec.restarts_max, calls_max: spec.calls_max, saved: None };
            self.actors.insert(task.id.0, actor);
        }
        self.add_stream(task, holder);
        true
    }

    /// Whether a task may have to do with an actor as it wants to.
    fn may_work(&self, task: &Submission<u64>) -> bool {
        match &task.work {
            Work::Task => true,
            Work::Stream(_) => task.parent.is_some(),
            Work::Actor(_) => task.parent.is_some() && task.returns == 1,
            Work::Method(actor) => {
                let is_alive =
                    self.tasks.get(&actor.0).is_some_and(|maker| !maker.has_ended && maker.job == task.job.0);
                let has_room =
                    self.actors.get(&actor.0).is_some_and(|of| (self.calls(actor.0).len() as u64) < of.calls_max);
                task.parent.is_some() && is_alive && has_room && self.objects.contains_key(&actor.0)
            }
        }
    }

    fn resides(&self, worker: WorkerId, task: TaskId, attempt: u32) -> bool {
        let is_it = |given: &Given| given.task == task.0 && given.attempt == attempt;
        self.workers.get(&worker.0).is_some_and(|worker| worker.residents.iter().any(is_it))
    }

    /// An actor is made, or what it says of that is wrong.
    fn made(&mut self, id: u64, worker: u32, given: Given, values: &[(u64, Vec<ObjectId>)]) {
        let maker = &self.tasks[&id];
        let are_good = values.len() == 1 && values.iter().all(|(_, refs)| self.of_job(maker.job, refs));
        let outcome = Outcome::Succeeded(values.to_vec());
        if maker.stop > 0 || !are_good {
            self.step.interrupted.insert((worker, id));
            return self.finish(id, &outcome);
        }
        self.workers.get_mut(&worker).expect("it said so").residents.push(Given { is_blocked: false, ..given });
        self.tasks.get_mut(&id).expect("it is known").worker = Some(worker);
        match self.objects.get_mut(&id).filter(|object| object.value == Value::Pending) {
            Some(handle) => {
                let (value, refs) = &values[0];
                self.values.insert(*value);
                handle.value = Value::Ready(*value, refs.iter().map(|id| id.0).collect());
                self.step.ready.insert(id);
            }
            None => self.discard(&outcome),
        }
    }

    /// Calls that an actor's worker had, which are in no worker now.
    fn take_calls(&mut self, id: u64) -> Vec<u64> {
        self.tasks.get_mut(&id).expect("it is known").worker = None;
        let calls = self.calls(id).into_iter();
        let take = |call: &u64| {
            let call = self.tasks.get_mut(call).expect("it is known");
            call.is_blocked = false;
            call.worker.take().is_some()
        };
        calls.filter(take).collect()
    }

    /// An actor is not there any more.
    fn lose_actor(&mut self, id: u64, calls: Vec<u64>, has_begun: &dyn Fn(u64) -> bool) {
        for call in calls {
            if has_begun(call) || self.kept_child(call) {
                self.stop_descendants(call);
                self.fail_attempt(call, Code::ActorDied, true);
            } else {
                self.give_back(call);
            }
        }
        self.stop_descendants(id);
        self.fail_attempt(id, Code::ActorDied, true);
    }

    fn began_inline(&mut self, task: &Submission<u64>, worker: u32) {
        if task.parent.is_none_or(|(_, _, of)| of.0 != worker) {
            return;
        }
        let known = self.objects.len();
        let is_usual = task.work == Work::Task && task.strategy == Strategy::Default;
        if self.submit(task, is_light(&task.demand) && is_usual) {
            let (id, demand, strategy) = (task.id.0, task.demand.clone(), task.strategy);
            let given =
                Given { task: id, attempt: 0, demand, strategy, bundle: None, is_blocked: false, is_ghost: false };
            self.workers.get_mut(&worker).expect("it has the parent").given.push(given);
            self.tasks.get_mut(&id).expect("it was added").worker = Some(worker);
        } else if self.objects.len() > known {
            self.step.interrupted.insert((worker, task.id.0));
        }
    }

    fn put(&mut self, id: u64, task: TaskId, worker: WorkerId, value: u64, refs: &[ObjectId]) {
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

    fn fulfil(&mut self, id: u64, value: &Result<u64, Fault>) {
        let promised = self.objects.get_mut(&id).filter(|object| object.value == Value::Promised);
        self.values.extend(value.as_ref().ok());
        match (promised, value) {
            (Some(object), Ok(value)) => object.value = Value::Ready(*value, Vec::new()),
            (Some(object), Err(_)) => object.value = Value::Failed,
            (None, Ok(value)) => drop(self.step.dropped.insert(*value)),
            (None, Err(_)) => {}
        }
    }

    fn want(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if !self.workers.contains_key(&worker.0) {
            return;
        }
        let job = self.running(worker, task).map(|task| task.job);
        let may = |object: &&mut Object| Some(object.job) == job || object.holds.contains_key(&worker.0);
        match self.objects.get_mut(&id).filter(may) {
            Some(object) => *object.wants.entry(worker.0).or_default() += 1,
            None => *self.step.refused.entry((worker.0, id)).or_default() += 1,
        }
    }

    /// What becomes of a task whose attempt, which is in no worker any more, is over.
    fn finish(&mut self, id: u64, outcome: &Outcome<u64>) {
        let task = self.tasks.get_mut(&id).expect("who has it knows it");
        (task.worker, task.is_blocked) = (None, false);
        let (job, stop, returns) = (task.job, task.stop, task.returns as usize);
        match outcome {
            Outcome::Succeeded(values) => {
                let are_good = values.iter().all(|(_, refs)| self.of_job(job, refs));
                if stop == 0 && values.len() == returns && are_good {
                    let attempt = (id, self.tasks[&id].attempt);
                    assert!(self.committed.insert(attempt), "{attempt:?} was committed before");
                    self.keep_lineage(id, values.iter().map(|(value, _)| *value));
                    for ((value, refs), id) in values.iter().zip(id..) {
                        self.values.insert(*value);
                        let contents = refs.iter().map(|id| id.0).collect();
                        match self.objects.get_mut(&id).filter(|object| object.value == Value::Pending) {
                            Some(object) => object.value = Value::Ready(*value, contents),
                            // It was there, or nobody wants it any more.
                            None => drop(self.step.dropped.insert(*value)),
                        }
                        self.step.ready.insert(id);
                    }
                    self.end(id);
                } else {
                    self.discard(outcome);
                    let code = if values.len() == returns { Code::BadRequest } else { Code::BadOutput };
                    self.fail_attempt(id, code, false);
                }
            }
            Outcome::Failed(failure) => self.fail_attempt(id, failure.error.fault.code, failure.system),
        }
    }

    fn fail_attempt(&mut self, id: u64, code: Code, is_system: bool) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        (task.worker, task.is_blocked) = (None, false);
        let retries_max = self.actors.get(&id).map_or(task.retries_max, |actor| actor.restarts_max);
        if task.stop > 0 {
            self.fail_stopped(id);
        } else if task.retry_on.allows(code, is_system) && task.attempt < retries_max {
            task.attempt += 1;
            self.stop_descendants(id);
        } else {
            self.fail(id, code);
        }
    }

    fn give_back(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        task.worker = None;
        if task.stop > 0 {
            self.fail_stopped(id);
        } else {
            self.stop_descendants(id);
        }
    }

    fn lose(&mut self, ids: Vec<u32>, begun: Option<&[TaskId]>) {
        let workers: Vec<Worker> = ids.iter().filter_map(|id| self.workers.remove(id)).collect();
        for object in self.objects.values_mut() {
            object.holds.retain(|worker, _| !ids.contains(worker));
            object.wants.retain(|worker, _| !ids.contains(worker));
        }
        for job in self.jobs.values_mut() {
            job.driver = job.driver.filter(|driver| !ids.contains(driver));
        }
        let residents = workers.iter().flat_map(|worker| &worker.residents);
        let makers: Vec<u64> = residents.filter(|given| !given.is_ghost).map(|given| given.task).collect();
        let all = workers.iter().flat_map(|worker| &worker.given);
        let lost: Vec<&Given> = all.filter(|given| !given.is_ghost).collect();
        for given in &lost {
            self.tasks.get_mut(&given.task).expect("it is known").worker = None;
        }
        let calls: Vec<Vec<u64>> = makers.iter().map(|maker| self.take_calls(*maker)).collect();
        for given in lost {
            let has_begun = begun.is_none_or(|begun| begun.contains(&TaskId(given.task)));
            let has_children = self.kept_child(given.task);
            if has_begun || given.is_blocked || has_children {
                self.stop_descendants(given.task);
                self.fail_attempt(given.task, Code::WorkerLost, true);
            } else {
                self.give_back(given.task);
            }
        }
        for (maker, calls) in makers.into_iter().zip(calls) {
            self.lose_actor(maker, calls, &|call| begun.is_none_or(|begun| begun.contains(&TaskId(call))));
        }
    }

    /// Whether something is left of what a task submitted.
    fn kept_child(&self, id: u64) -> bool {
        let is_kept = |id: &u64| {
            let task = &self.tasks[id];
            !task.has_ended || task.lineage.is_some() || self.step.ended.contains(id) || self.step.unkept.contains(id)
        };
        self.of_attempt(id).iter().any(is_kept)
    }

    fn descendants(&self, id: u64) -> Vec<u64> {
        let mut found = vec![id];
        let mut at = 0;
        while at < found.len() {
            let parent = Some(found[at]);
            found.extend(self.tasks.iter().filter(|(_, task)| task.parent == parent).map(|(id, _)| *id));
            at += 1;
        }
        found.split_off(1)
    }

    /// Descendants of a task, but for what attempts of it submitted that have succeeded.
    fn of_attempt(&self, id: u64) -> Vec<u64> {
        let children = self.tasks.iter().filter(|(_, task)| task.parent == Some(id) && !task.is_settled);
        children.flat_map(|(child, _)| [*child].into_iter().chain(self.descendants(*child))).collect()
    }

    fn stop_descendants(&mut self, id: u64) {
        self.of_attempt(id).into_iter().for_each(|id| self.stop(id, 2));
    }

    /// A task fails that was cancelled, or whose group is gone.
    fn fail_stopped(&mut self, id: u64) {
        match self.group_is_gone(self.tasks[&id].strategy) {
            true => self.fail_of_group(id),
            false => self.fail(id, Code::Cancelled),
        }
    }

    pub fn stop(&mut self, id: u64, how: u8) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        match task.worker {
            _ if task.has_ended => self.drop_lineage(id),
            None => self.fail_stopped(id),
            Some(worker) => {
                if task.stop == 0 {
                    match task.work {
                        Work::Method(_) => self.step.withdrawn.insert((worker, id)),
                        _ => self.step.interrupted.insert((worker, id)),
                    };
                }
                task.stop = task.stop.max(how);
            }
        }
    }

    pub fn fail(&mut self, id: u64, code: Code) {
        self.step.failed.entry(id).or_default().push(code);
    }

    fn end(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        assert!(!task.has_ended, "task {id} ends twice");
        task.has_ended = true;
        task.worker = None;
        self.step.ended.insert(id);
        if matches!(task.work, Work::Actor(_)) {
            self.calls(id).into_iter().for_each(|call| self.fail(call, Code::ActorDied));
            self.actors.get_mut(&id).expect("it was made").saved = None;
        }
        let task = &self.tasks[&id];
        if self.jobs[&task.job].first == Some(id) {
            self.step.jobs_done.insert(task.job);
        }
    }

    fn end_job(&mut self, id: u32) {
        if self.jobs.remove(&id).is_none() {
            return;
        }
        for (number, task) in self.tasks.iter().filter(|(_, task)| task.job == id) {
            if let Some(worker) = task.worker
                && task.stop == 0
            {
                match task.work {
                    Work::Method(_) => self.step.withdrawn.insert((worker, *number)),
                    _ => self.step.interrupted.insert((worker, *number)),
                };
            }
        }
        let all = self.workers.values_mut().flat_map(|worker| worker.given.iter_mut().chain(&mut worker.residents));
        for given in all {
            given.is_ghost |= self.tasks.get(&given.task).is_some_and(|task| task.job == id);
        }
        self.end_groups(id);
        self.actors.retain(|actor, _| self.tasks[actor].job != id);
        self.streams.retain(|generator, _| self.tasks[generator].job != id);
        self.tasks.retain(|_, task| task.job != id);
        for object in self.objects.values().filter(|object| object.job == id) {
            if let Value::Ready(value, _) = object.value {
                self.step.dropped.insert(value);
            }
        }
        self.objects.retain(|_, object| object.job != id);
    }

    /// What follows.
    fn settle(&mut self, actions: &[Action<u64>], steps: &Steps) {
        self.place_groups(steps);
        let ended: BTreeSet<u64> = actions
            .iter()
            .filter_map(|action| if let Action::Ended { task, .. } = action { Some(task.0) } else { None })
            .collect();
        loop {
            // What is found to lack something is found after that was made again, or could not be.
            let found = if self.step.lost.is_empty() { &ended } else { &BTreeSet::new() };
            self.fail_for_needs(found);
            self.fail_infeasible();
            let failed: Vec<u64> = self.step.failed.keys().filter(|id| !self.tasks[id].has_ended).copied().collect();
            if failed.is_empty() {
                self.drop_forgotten();
                if !self.step.failed.keys().all(|id| self.tasks[id].has_ended) {
                    continue;
                }
                match self.step.lost.pop() {
                    Some(lost) => self.make_again(lost),
                    None => break,
                }
                continue;
            }
            for id in failed {
                let returns = u64::from(self.tasks[&id].returns);
                let pending = |object: &&mut Object| object.value == Value::Pending;
                for object in id..id + returns {
                    // The handle of an actor is there as soon as it was made once, or was.
                    if let Some(object_is) = self.objects.get_mut(&object).filter(pending) {
                        object_is.value = Value::Failed;
                        self.step.ready.insert(object);
                    }
                }
                self.drop_lineage(id);
                self.end(id);
            }
        }
        for (id, object) in self.objects.iter_mut().filter(|(_, object)| !object.value.is_pending()) {
            for (worker, times) in std::mem::take(&mut object.wants) {
                self.step.told.insert((worker, *id), times);
            }
        }
        let told: Vec<((u32, u64), u32)> = self.step.told.iter().map(|(key, times)| (*key, *times)).collect();
        for ((worker, id), times) in told {
            if let Value::Ready(_, contents) = self.objects[&id].value.clone() {
                self.hold_contents(&contents, worker, times);
            }
        }
    }

    /// Tasks that wait and need what failed. Of those that need what was lost, the ones that are found to.
    fn fail_for_needs(&mut self, ended: &BTreeSet<u64>) {
        let mut failing = Vec::new();
        for (id, task) in self.tasks.iter().filter(|(_, task)| !task.has_ended && task.worker.is_none()) {
            let has = |was_ready: bool| {
                let mut needs = task.needs.iter().map(|need| &self.objects[need]);
                needs.any(|need| need.was_ready == was_ready && matches!(need.value, Value::Failed | Value::Lost))
            };
            if has(false) || has(true) && ended.contains(id) {
                failing.push(*id);
            }
        }
        failing.into_iter().for_each(|id| {
            self.step.failed.entry(id).or_default();
        });
    }

    fn fail_infeasible(&mut self) {
        let (mut failing, mut gone) = (Vec::new(), Vec::new());
        let waits = |task: &Task| !task.has_ended && task.worker.is_none() && self.has_needs(task);
        for (id, task) in self.tasks.iter().filter(|(_, task)| waits(task)) {
            let job = &self.jobs[&task.job];
            let nodes: Vec<&Demand> = match (job.first == Some(*id), job.driver) {
                (false, _) => self.nodes.values().collect(),
                (true, Some(driver)) => vec![&self.nodes[&self.workers[&driver].node]],
                (true, None) => Vec::new(),
            };
            if self.group_is_gone(task.strategy) {
                gone.push(*id);
            } else if task.strategy == Strategy::Default {
                if !nodes.is_empty() && !nodes.iter().any(|total| fits(&task.demand, total.cpus.into(), total)) {
                    failing.push(*id);
                }
            } else if !self.nodes.is_empty() && !self.could_be_there(task) {
                failing.push(*id);
            }
        }
        failing.into_iter().for_each(|id| self.fail(id, Code::Infeasible));
        gone.into_iter().for_each(|id| self.fail_of_group(id));
    }

    /// Whether a task waits for no object, as far as it is known to.
    pub fn has_needs(&self, task: &Task) -> bool {
        let mut needs = task.needs.iter().map(|need| &self.objects[need]);
        needs.all(|need| !need.value.is_pending() || need.was_ready && task.stands)
    }

    /// How many tasks and values refer to each object.
    pub fn pins(&self) -> BTreeMap<u64, u32> {
        let mut pins = BTreeMap::new();
        let live = self.tasks.values().filter(|task| !task.has_ended);
        for task in live {
            let called = if let Work::Method(actor) = &task.work { Some(&actor.0) } else { None };
            task.links.iter().chain(called).for_each(|id| *pins.entry(*id).or_default() += 1);
        }
        self.actors.values().filter_map(|actor| actor.saved).for_each(|id| *pins.entry(id).or_default() += 1);
        for source in self.tasks.values().flat_map(|task| task.lineage.iter().flatten()) {
            if let Source::Kept(id) = source {
                *pins.entry(*id).or_default() += 1;
            }
        }
        for object in self.objects.values() {
            if let Value::Ready(_, contents) = &object.value {
                contents.iter().for_each(|id| *pins.entry(*id).or_default() += 1);
            }
        }
        pins
    }

    fn drop_forgotten(&mut self) {
        loop {
            let pins = self.pins();
            let is_kept = |id: &u64, object: &Object| {
                object.value.is_pending() || !object.holds.is_empty() || pins.contains_key(id)
            };
            let forgotten: Vec<u64> =
                self.objects.iter().filter(|(id, object)| !is_kept(id, object)).map(|(id, _)| *id).collect();
            let closed = self.closed(&pins);
            let is_failing = |id: &u64| self.tasks[id].worker.is_none() && self.step.failed.contains_key(id);
            if forgotten.is_empty() && closed.iter().all(is_failing) && !self.drop_unused_lineage() {
                return;
            }
            closed.into_iter().for_each(|id| self.stop(id, 1));
            for id in forgotten {
                let object = self.objects.remove(&id).expect("it was found");
                self.streams.remove(&id);
                if let Value::Ready(value, _) = object.value {
                    self.step.dropped.insert(value);
                }
                if self.actors.contains_key(&id) && !self.tasks[&id].has_ended {
                    self.stop(id, 1);
                }
                for (worker, times) in object.wants {
                    *self.step.refused.entry((worker, id)).or_default() += times;
                }
            }
        }
    }
}
