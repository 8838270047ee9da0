//! What comes in: tasks and values, once they are found to be of a task that is where it is said to be.

use std::sync::Arc;

use sandbar_core::{Attempt, Code, Fault, ObjectId, Strategy, TaskError, TaskId, WorkerId};

use crate::event::{Action, Outcome, Role, Submission, Work};
use crate::places::{JobAt, ObjectAt, TaskAt, WorkerAt};
use crate::refs::Value;
use crate::scheduler::Scheduler;
use crate::tasks::{Links, State, Stop, Task, cancelled};

/// A task may return so many objects.
const RETURNS_MAX: u32 = 1 << 16;

/// Over a job's limit on objects there may be so many that say just that. What is beyond is not known at all.
const OBJECTS_OVER_MAX: u64 = 1 << 16;

/// Where something comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) job: JobAt,
    /// None of a job's first task.
    pub(crate) parent: Option<(TaskAt, WorkerAt)>,
}

impl<C, V> Scheduler<C, V> {
    pub(crate) fn submit(&mut self, submission: Submission<C>) {
        let Some(origin) = self.origin(&submission) else { return };
        let origin = self.home(origin, &submission);
        match self.admit(origin, &submission) {
            Ok(links) => {
                let at = self.add(origin, submission, links);
                if origin.parent.is_none() {
                    let job = &mut self.jobs[origin.job];
                    (job.first, job.has_begun) = (Some(at), true);
                }
                self.ready(at);
            }
            Err(fault) => self.reject(origin, &submission, fault),
        }
    }

    /// A task stands for another scheduler, in the worker that does. Whatever else it asks for, it takes nothing, is begun
    /// once and returns one object.
    pub(crate) fn seat(&mut self, submission: Submission<C>, worker: WorkerId) {
        let (job, worker) = (self.job_ids.get(&submission.job).copied(), self.cluster.find(worker));
        let (Some(job), Some(worker)) = (job, worker) else { return };
        let is_new = !self.ids.contains_key(&submission.id.0);
        if is_new && submission.parent.is_none() && self.cluster.workers[worker].role == Role::Peer {
            let bare = Submission::bare(submission.id, submission.job, submission.name, submission.call);
            let at = self.add(Origin { job, parent: None }, bare, None);
            self.give_begun(worker, at);
        }
    }

    /// A child that its parent's worker ran by itself.
    pub(crate) fn ran_inline(&mut self, submission: Submission<C>, worker: WorkerId, outcome: Outcome<V>, nanos: u64) {
        let id = submission.id;
        let origin = self.origin(&submission).filter(|origin| self.is_in(*origin, worker));
        let Some(origin) = origin else { return self.discard(id, outcome) };
        let links = match alone(&submission).and_then(|()| self.admit(origin, &submission)) {
            Ok(links) => links,
            Err(fault) => {
                self.discard(id, outcome);
                return self.reject(origin, &submission, fault);
            }
        };
        let at = self.add(origin, submission, links);
        self.classes.get_mut(self.tasks[at].class).took(nanos);
        self.finish(at, outcome, false);
    }

    /// A child that its parent's worker has begun by itself. What it takes of the node may be more than there is, as where
    /// a task goes on: of processors alone.
    pub(crate) fn began_inline(&mut self, submission: Submission<C>, worker: WorkerId) {
        let id = submission.id;
        let Some(origin) = self.origin(&submission).filter(|origin| self.is_in(*origin, worker)) else { return };
        let admitted = if submission.demand.is_light() {
            alone(&submission).and_then(|()| self.admit(origin, &submission))
        } else {
            let message = "was begun where it was submitted, and asks for more than processors";
            Err(Fault::new(Code::BadRequest, message))
        };
        let links = match admitted {
            Ok(links) => links,
            Err(fault) => {
                self.out.push(Action::Interrupt { worker, task: id, attempt: Attempt(0) });
                return self.reject(origin, &submission, fault);
            }
        };
        let at = self.add(origin, submission, links);
        if let Some((_, worker)) = origin.parent {
            self.give_begun(worker, at);
        }
    }

    /// Where a task belongs: an actor that outlives its job to another one.
    fn home(&self, origin: Origin, submission: &Submission<C>) -> Origin {
        let Work::Actor(spec) = &submission.work else { return origin };
        let home = spec.detached.and_then(|job| self.job_ids.get(&job));
        home.map_or(origin, |home| Origin { job: *home, ..origin })
    }

    fn is_in(&self, origin: Origin, worker: WorkerId) -> bool {
        origin.parent.is_some_and(|(_, at)| self.cluster.workers[at].id == worker)
    }

    pub(crate) fn put(&mut self, id: ObjectId, task: TaskId, worker: WorkerId, value: V, refs: &[ObjectId]) {
        let Some((task, origin)) = self.maker_of(id, task, worker) else {
            return self.out.push(Action::Drop { object: id, value });
        };
        let worker = origin.parent.map(|(_, worker)| worker);
        match self.has_room_for(origin.job, 1).and_then(|()| self.all_usable(origin.job, refs)) {
            Ok(contents) => {
                let at = self.create(id, origin.job, None, Value::Pending, worker);
                self.set_ready(at, value, contents);
            }
            Err(fault) => {
                self.out.push(Action::Drop { object: id, value });
                let error = self.error(task, fault);
                self.create_failed(origin, id, None, error);
            }
        }
    }

    /// A value that there was no room for.
    pub(crate) fn put_failed(&mut self, id: ObjectId, task: TaskId, worker: WorkerId, fault: Fault) {
        if let Some((task, origin)) = self.maker_of(id, task, worker) {
            let error = self.error(task, fault);
            self.create_failed(origin, id, None, error);
        }
    }

    /// The task that stores a value, if it is where it is said to be, and there is none of this number yet.
    pub(crate) fn maker_of(&self, id: ObjectId, task: TaskId, worker: WorkerId) -> Option<(TaskAt, Origin)> {
        let worker = self.cluster.find(worker)?;
        let task = self.find_task(task).filter(|at| self.tasks[*at].worker == Some(worker))?;
        let origin = Origin { job: self.tasks[task].job, parent: Some((task, worker)) };
        (!self.ids.contains_key(&id.0)).then_some((task, origin))
    }

    /// Where a task comes from; none if that is not so, or not any more.
    fn origin(&self, submission: &Submission<C>) -> Option<Origin> {
        let job = *self.job_ids.get(&submission.job)?;
        let last = submission.id.0.checked_add(u64::from(submission.returns.checked_sub(1)?))?;
        let parent = match submission.parent {
            None if self.jobs[job].has_begun => return None,
            None => None,
            Some((parent, attempt, worker)) => {
                let (at, worker) = (self.find_task(parent)?, self.cluster.find(worker)?);
                let parent = &self.tasks[at];
                let is_so = parent.job == job && parent.attempt == attempt && parent.worker == Some(worker);
                is_so.then_some(Some((at, worker)))?
            }
        };
        // Of more than there may be, no more come to be.
        let last = last.min(submission.id.0.saturating_add(u64::from(RETURNS_MAX) - 1));
        let is_new = (submission.id.0..=last).all(|number| !self.ids.contains_key(&number));
        is_new.then_some(Origin { job, parent })
    }

    /// Whether a task may be run, and the objects that it refers to.
    fn admit(&self, origin: Origin, submission: &Submission<C>) -> Result<Option<Box<Links>>, Fault> {
        let job = &self.jobs[origin.job];
        let limits = &job.limits;
        if origin.parent.is_some_and(|(parent, _)| self.tasks[parent].stop == Stop::WithChildren) {
            return Err(cancelled());
        }
        let depth = self.depth(origin).saturating_add(submission.below);
        if depth > limits.depth_max {
            let message = format!("would be nested {depth} deep, its job's limit is {}", limits.depth_max);
            return Err(Fault::new(Code::TaskLimit, message));
        }
        if job.tasks >= limits.tasks_max {
            let message =
                format!("would be one of {} tasks at once, its job's limit is {}", job.tasks + 1, limits.tasks_max);
            return Err(Fault::new(Code::TaskLimit, message));
        }
        if submission.returns > RETURNS_MAX {
            let message = format!("would return {} objects, the limit is {RETURNS_MAX}", submission.returns);
            return Err(Fault::new(Code::TaskLimit, message));
        }
        self.has_room_for(origin.job, submission.returns)?;
        if origin.parent.is_none() {
            alone(submission)?;
        }
        self.admit_actor(origin.job, submission)?;
        let group = self.admit_strategy(origin.job, submission)?;
        if submission.needs.is_empty() && submission.refs.is_empty() && group.is_none() {
            return Ok(None);
        }
        let needs = self.all_usable(origin.job, &submission.needs)?.into_iter().chain(group).collect();
        let refs = self.all_usable(origin.job, &submission.refs)?.into();
        Ok(Some(Box::new(Links { needs, refs })))
    }

    pub(crate) fn has_room_for(&self, job: JobAt, objects: u32) -> Result<(), Fault> {
        let job = &self.jobs[job];
        let (all, max) = (job.objects + u64::from(objects), job.limits.objects_max);
        if all <= max {
            return Ok(());
        }
        Err(Fault::new(Code::TaskLimit, format!("its job would have {all} objects at once, its limit is {max}")))
    }

    pub(crate) fn all_usable(&self, job: JobAt, ids: &[ObjectId]) -> Result<Vec<ObjectAt>, Fault> {
        ids.iter().map(|id| self.usable(*id, |object| object.job == job || self.is_of_all(object))).collect()
    }

    fn depth(&self, origin: Origin) -> u32 {
        origin.parent.map_or(0, |(parent, _)| self.tasks[parent].depth).saturating_add(1)
    }

    /// Makes a task and its returns.
    fn add(&mut self, origin: Origin, submission: Submission<C>, links: Option<Box<Links>>) -> TaskAt {
        let job = &mut self.jobs[origin.job];
        let class = self.classes.enter(&mut self.queue, origin.job, &mut job.classes, &submission);
        job.tasks += 1;
        job.records += 1;
        self.number += 1;
        let (id, returns) = (submission.id, submission.returns);
        if let Some(links) = &links {
            links.needs.iter().chain(&links.refs).for_each(|object| self.pin(*object));
        }
        // What outlives its maker's job is nobody's child.
        let is_tied = |parent: &TaskAt| self.tasks[*parent].job == origin.job;
        let parent = origin.parent.map(|(parent, _)| parent).filter(is_tied);
        let depth = if parent.is_some() { self.depth(origin).saturating_add(submission.below) } else { 1 };
        let at = self.tasks.insert(Task {
            id,
            number: self.number,
            links,
            lineage: None,
            call: Some(submission.call),
            class,
            job: origin.job,
            parent,
            child: None,
            older: None,
            younger: None,
            ahead: None,
            behind: None,
            near: None,
            worker: None,
            actor: None,
            attempt: Attempt(0),
            depth,
            missing: 0,
            returns,
            call_bytes: 0,
            state: State::Waiting,
            stop: Stop::No,
            is_late: false,
            is_gated: false,
            is_settled: false,
            is_again: false,
        });
        self.ids.entry(id.0).or_default().task = Some(at);
        self.tie(at);
        for index in 0..returns {
            let holder = origin.parent.map(|(_, worker)| worker);
            self.create(id.returns(index), origin.job, Some(index), Value::Pending, holder);
        }
        match submission.work {
            Work::Task => {}
            Work::Actor(spec) => self.add_actor(at, *spec),
            Work::Stream(buffer) => self.add_stream(at, origin.parent.map(|(_, worker)| worker), buffer),
            Work::Method(actor) => self.add_call(at, actor),
        }
        self.count_call(at);
        at
    }

    /// Counts what a task calls that has not ended. What makes an actor lasts as long as that, and counts for nothing.
    pub(crate) fn count_call(&mut self, at: TaskAt) {
        let task = &mut self.tasks[at];
        let is_maker = task.actor.is_some_and(|actor| self.actors[actor].maker == Some(at));
        let bytes = task.call.as_ref().filter(|_| !is_maker).map_or(0, self.inspect.call_bytes);
        task.call_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.jobs[task.job].call_bytes += u64::from(task.call_bytes);
    }

    /// Puts a task in line, now or once it has what it needs.
    pub(crate) fn ready(&mut self, at: TaskAt) {
        let Some(links) = self.tasks[at].links.take() else { return self.enqueue(at) };
        let (mut missing, mut error) = (0, None);
        for need in &links.needs {
            match &self.objects[*need].value {
                Value::Ready(_) => {}
                Value::Failed(failed) => error = error.or_else(|| Some(failed.clone())),
                Value::Pending => missing += 1,
            }
        }
        if missing > 0 && error.is_none() {
            let number = self.tasks[at].number;
            for need in &links.needs {
                let object = &mut self.objects[*need];
                if object.is_pending() {
                    let tasks = &self.tasks;
                    object.depend(at, number, |task, number| {
                        tasks.get(task).is_some_and(|task| task.number == number && task.state == State::Waiting)
                    });
                    self.ask(*need);
                }
            }
        }
        let task = &mut self.tasks[at];
        (task.links, task.missing) = (Some(links), missing);
        match error {
            Some(error) => self.failing.push((at, error)),
            None if missing == 0 => self.enqueue(at),
            None => self.gate(at),
        }
    }

    /// A task is not run: its returns say why.
    fn reject(&mut self, origin: Origin, submission: &Submission<C>, fault: Fault) {
        let mut chain = self.chain(origin.parent.map(|(parent, _)| parent));
        chain.push(submission.name.as_ref().to_owned());
        let error = Arc::new(TaskError { fault, chain });
        for index in 0..submission.returns.min(RETURNS_MAX) {
            if !self.create_failed(origin, submission.id.returns(index), Some(index), error.clone()) {
                break;
            }
        }
        let job = &mut self.jobs[origin.job];
        if origin.parent.is_none() {
            job.has_begun = true;
            self.out.push(Action::JobDone { job: job.id, result: Err(error) });
        }
    }

    /// Makes an object without a value, unless there are too many. Says whether it did.
    pub(crate) fn create_failed(
        &mut self,
        origin: Origin,
        id: ObjectId,
        index: Option<u32>,
        error: Arc<TaskError>,
    ) -> bool {
        let job = &self.jobs[origin.job];
        if job.objects >= job.limits.objects_max.saturating_add(OBJECTS_OVER_MAX) {
            return false;
        }
        let holder = origin.parent.map(|(_, worker)| worker);
        self.create(id, origin.job, index, Value::Failed(error), holder);
        true
    }
}

/// Refuses what has to do with an actor or with who takes items, or is to be run elsewhere.
fn alone<C>(submission: &Submission<C>) -> Result<(), Fault> {
    let bad =
        |what: &str| Fault::new(Code::BadRequest, format!("{what}, and was begun where it was submitted, or first"));
    match submission.work {
        Work::Task if submission.strategy == Strategy::Default => Ok(()),
        Work::Task => Err(bad("has a strategy of its own")),
        Work::Actor(_) | Work::Method(_) => Err(bad("is of an actor")),
        Work::Stream(_) => Err(bad("is a generator")),
    }
}
