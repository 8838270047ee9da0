//! Admission of tasks and values, after a check that the submitting task is in the given worker.

use std::sync::Arc;

use sandbar_core::{Attempt, Code, Fault, ObjectId, Strategy, TaskError, TaskId, WorkerId};

use crate::event::{Action, Outcome, Submission, SubmissionKind, WorkerKind};
use crate::records::keys::{JobKey, NumberedTask, ObjectKey, TaskKey, WorkerKey};
use crate::records::ledger::ValueBytes;
use crate::records::object::ObjectOutcome;
use crate::records::step_work::WorkItem;
use crate::records::tasks::{Cancellation, Links, Task, TaskPhase, cancelled};
use crate::scheduler::Scheduler;

/// Maximum number of returns of a task.
const RETURNS_MAX: u32 = 1 << 16;

/// Maximum number of objects beyond the job's limit whose only purpose is to carry the limit error. Further objects are
/// not created.
const OBJECTS_OVER_MAX: u64 = 1 << 16;

/// Job and parent of a submission.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) job: JobKey,
    /// `None` for a job's root task and for leases.
    pub(crate) parent: Option<ParentTask>,
}

/// A submitting task, and its worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParentTask {
    pub(crate) task: TaskKey,
    pub(crate) worker: WorkerKey,
}

impl Origin {
    /// Returns the submitting task.
    fn task(&self) -> Option<TaskKey> {
        self.parent.map(|parent| parent.task)
    }

    /// Returns the worker of the submitting task.
    pub(crate) fn worker(&self) -> Option<WorkerKey> {
        self.parent.map(|parent| parent.worker)
    }
}

impl<C, V> Scheduler<C, V> {
    /// Adds a task, or a lease, which has no call.
    pub(crate) fn submit<D>(&mut self, submission: Submission<D>, call: fn(D) -> Option<C>) {
        let Some(origin) = self.origin(&submission) else { return };
        let origin = self.owning_origin(origin, &submission);
        match self.admit(origin, &submission) {
            Ok(links) => {
                let at = self.add_with(origin, submission, call, links);
                if origin.parent.is_none() && !self.is_lease(at) {
                    let job = &mut self.jobs[origin.job];
                    (job.first, job.has_started) = (Some(at), true);
                }
                self.ready(at);
            }
            Err(fault) => self.reject(origin, &submission, fault),
        }
    }

    /// Adds a proxy task for another scheduler, in the worker that stands for it. Its requests are ignored: it uses no
    /// resources, has no retries, and returns one object.
    pub(crate) fn start_proxy_task(&mut self, submission: Submission<C>, worker: WorkerId) {
        let (job, worker) = (self.jobs.find(submission.job), self.cluster.workers.find(worker));
        let (Some(job), Some(worker)) = (job, worker) else { return };
        let is_new = !self.ids.is_used(submission.id.0);
        if is_new && submission.parent.is_none() && self.cluster.workers[worker].kind == WorkerKind::PeerProxy {
            let bare = Submission::bare(submission.id, submission.job, submission.name, submission.call);
            let at = self.add(Origin { job, parent: None }, bare, None);
            self.assign_started(worker, at);
        }
    }

    /// Adds a child that its parent's worker ran to the end.
    pub(crate) fn finished_inline(
        &mut self,
        submission: Submission<C>,
        worker: WorkerId,
        outcome: Outcome<V>,
        nanos: u64,
    ) {
        let id = submission.id;
        let origin = self.origin(&submission).filter(|origin| self.is_in(*origin, worker));
        let Some(origin) = origin else { return self.discard(id, outcome) };
        let links = match require_plain_function(&submission).and_then(|()| self.admit(origin, &submission)) {
            Ok(links) => links,
            Err(fault) => {
                self.discard(id, outcome);
                return self.reject(origin, &submission, fault);
            }
        };
        let at = self.add(origin, submission, links);
        self.classes.get_mut(self.tasks[at].class).record_duration(nanos);
        self.finish(at, outcome, false);
    }

    /// Adds a child that its parent's worker started. It may use more processors than are free, as an unblocked task
    /// does, but no other resources.
    pub(crate) fn started_inline(&mut self, submission: Submission<C>, worker: WorkerId) {
        let id = submission.id;
        let Some(origin) = self.origin(&submission).filter(|origin| self.is_in(*origin, worker)) else { return };
        let admitted = if submission.demand.is_cpu_only() {
            require_plain_function(&submission).and_then(|()| self.admit(origin, &submission))
        } else {
            let message = "was started inline and asks for more than processors";
            Err(Fault::new(Code::BadRequest, message))
        };
        let links = match admitted {
            Ok(links) => links,
            Err(fault) => {
                self.work.act(Action::Interrupt { worker, task: id, attempt: Attempt(0) });
                return self.reject(origin, &submission, fault);
            }
        };
        let at = self.add(origin, submission, links);
        if let Some(worker) = origin.worker() {
            self.assign_started(worker, at);
        }
    }

    /// Returns the origin with the job that owns the task: a detached actor is of another job.
    fn owning_origin<D>(&self, origin: Origin, submission: &Submission<D>) -> Origin {
        let SubmissionKind::ActorCreation(spec) = &submission.kind else { return origin };
        let owning_origin = spec.detached.and_then(|job| self.jobs.find(job));
        owning_origin.map_or(origin, |owning_origin| Origin { job: owning_origin, ..origin })
    }

    fn is_in(&self, origin: Origin, worker: WorkerId) -> bool {
        origin.worker().is_some_and(|at| self.cluster.workers[at].id == worker)
    }

    pub(crate) fn put(&mut self, id: ObjectId, task: TaskId, worker: WorkerId, value: V, refs: &[ObjectId]) {
        let Some((task, origin)) = self.storing_task(id, task, worker) else {
            return self.work.act(Action::Drop { object: id, value });
        };
        let worker = origin.worker();
        match self.has_room_for(origin.job, 1).and_then(|()| self.admit_value(origin.job, &value, refs)) {
            Ok(contents) => {
                let at = self.create(id, origin.job, None, ObjectOutcome::Pending, worker);
                self.set_ready(at, value, contents);
            }
            Err(fault) => {
                self.work.act(Action::Drop { object: id, value });
                let error = self.error(task, fault);
                self.create_failed(origin, id, None, error);
            }
        }
    }

    /// Creates the failed object of a value that was not stored.
    pub(crate) fn put_failed(&mut self, id: ObjectId, task: TaskId, worker: WorkerId, fault: Fault) {
        if let Some((task, origin)) = self.storing_task(id, task, worker) {
            let error = self.error(task, fault);
            self.create_failed(origin, id, None, error);
        }
    }

    /// Returns the task that stores a value under a new id, if the task is in the given worker.
    pub(crate) fn storing_task(&self, id: ObjectId, task: TaskId, worker: WorkerId) -> Option<(TaskKey, Origin)> {
        let worker = self.cluster.workers.find(worker)?;
        let task = self.ids.find_task(task).filter(|at| self.tasks[*at].worker == Some(worker))?;
        let origin = Origin { job: self.tasks[task].job, parent: Some(ParentTask { task, worker }) };
        (!self.ids.is_used(id.0)).then_some((task, origin))
    }

    /// Returns the origin of a submission, or `None` if its parent is not in the given worker or an id is in use.
    fn origin<D>(&self, submission: &Submission<D>) -> Option<Origin> {
        let job = self.jobs.find(submission.job)?;
        let last = submission.id.0.checked_add(u64::from(submission.returns.checked_sub(1)?))?;
        let parent = match submission.parent {
            None if self.jobs[job].has_started && submission.kind != SubmissionKind::Lease => return None,
            None => None,
            Some(parent) => {
                let (task, worker) = (self.ids.find_task(parent.task)?, self.cluster.workers.find(parent.worker)?);
                let found = &self.tasks[task];
                let is_so = found.job == job && found.attempt == parent.attempt && found.worker == Some(worker);
                is_so.then_some(Some(ParentTask { task, worker }))?
            }
        };
        // No more returns are created than the limit.
        let last = last.min(submission.id.0.saturating_add(u64::from(RETURNS_MAX) - 1));
        let is_new = (submission.id.0..=last).all(|number| !self.ids.is_used(number));
        is_new.then_some(Origin { job, parent })
    }

    /// Checks the limits of a submission. Returns the objects that it refers to.
    fn admit<D>(&self, origin: Origin, submission: &Submission<D>) -> Result<Option<Box<Links>>, Fault> {
        if submission.returns > RETURNS_MAX {
            let message = format!("would return {} objects, the limit is {RETURNS_MAX}", submission.returns);
            return Err(Fault::new(Code::TaskLimit, message));
        }
        if submission.kind == SubmissionKind::Lease {
            return check_lease(origin, submission).map(|()| None);
        }
        let job = &self.jobs[origin.job];
        let limits = &job.limits;
        if origin.task().is_some_and(|parent| self.tasks[parent].cancellation == Cancellation::Subtree) {
            return Err(cancelled());
        }
        let depth = self.depth(origin).saturating_add(submission.remote_depth);
        if depth > limits.depth_max {
            let message = format!("would be nested {depth} deep, its job's limit is {}", limits.depth_max);
            return Err(Fault::new(Code::TaskLimit, message));
        }
        if job.usage.tasks >= limits.tasks_max {
            let (tasks, max) = (job.usage.tasks + 1, limits.tasks_max);
            let message = format!("would be one of {tasks} tasks at once, its job's limit is {max}");
            return Err(Fault::new(Code::TaskLimit, message));
        }
        let (usage, tenant_limits) = self.cluster.tenants.usage(job.tenant);
        tenant_limits.check_task(usage)?;
        self.cluster.tenants.check_budget(job.tenant)?;
        self.has_room_for(origin.job, submission.returns)?;
        if origin.parent.is_none() {
            require_plain_function(submission)?;
        }
        self.admit_actor(origin.job, submission)?;
        let group = self.admit_strategy(origin.job, submission)?;
        if submission.dependencies.is_empty() && submission.refs.is_empty() && group.is_none() {
            return Ok(None);
        }
        let dependencies = self.all_usable(origin.job, &submission.dependencies)?.into_iter().chain(group).collect();
        let refs = self.all_usable(origin.job, &submission.refs)?.into();
        Ok(Some(Box::new(Links { dependencies, refs })))
    }

    pub(crate) fn has_room_for(&self, job: JobKey, objects: u32) -> Result<(), Fault> {
        let job = &self.jobs[job];
        let (all, max) = (job.usage.objects + u64::from(objects), job.limits.objects_max);
        if all > max {
            let message = format!("its job would have {all} objects at once, its limit is {max}");
            return Err(Fault::new(Code::TaskLimit, message));
        }
        let (usage, limits) = self.cluster.tenants.usage(job.tenant);
        limits.check_bytes(usage, ValueBytes::default())
    }

    /// Checks whether the tenant of a job may have further values.
    pub(crate) fn has_room_for_values<'v>(
        &self,
        job: JobKey,
        values: impl IntoIterator<Item = &'v V>,
    ) -> Result<(), Fault>
    where
        V: 'v,
    {
        let mut added = ValueBytes::default();
        for value in values {
            let bytes = (self.callbacks.value_bytes)(value);
            added.memory = added.memory.saturating_add(bytes.memory);
            added.stored = added.stored.saturating_add(bytes.stored);
        }
        let (usage, limits) = self.cluster.tenants.usage(self.jobs[job].tenant);
        limits.check_bytes(usage, added)
    }

    /// Checks whether a job may have a further value. Returns the objects that it contains.
    pub(crate) fn admit_value(&self, job: JobKey, value: &V, refs: &[ObjectId]) -> Result<Vec<ObjectKey>, Fault> {
        self.has_room_for_values(job, [value])?;
        self.all_usable(job, refs)
    }

    pub(crate) fn all_usable(&self, job: JobKey, ids: &[ObjectId]) -> Result<Vec<ObjectKey>, Fault> {
        ids.iter().map(|id| self.usable(*id, |object| object.job == job || self.is_shared(object, job))).collect()
    }

    fn depth(&self, origin: Origin) -> u32 {
        origin.task().map_or(0, |parent| self.tasks[parent].depth).saturating_add(1)
    }

    /// Adds a task and its return objects.
    fn add(&mut self, origin: Origin, submission: Submission<C>, links: Option<Box<Links>>) -> TaskKey {
        self.add_with(origin, submission, Some, links)
    }

    fn add_with<D>(
        &mut self,
        origin: Origin,
        submission: Submission<D>,
        call: fn(D) -> Option<C>,
        links: Option<Box<Links>>,
    ) -> TaskKey {
        self.count(origin.job, |usage| usage.tasks += 1);
        let job = &mut self.jobs[origin.job];
        let owner = (origin.job, job.tenant);
        let class = self.classes.enter(&mut self.queue, owner, &mut job.classes, &submission);
        job.records += 1;
        let number = self.tasks.next_number();
        let (id, returns) = (submission.id, submission.returns);
        if let Some(links) = &links {
            links.dependencies.iter().chain(&links.refs).for_each(|object| self.pin(*object));
        }
        // A detached actor of another job has no parent.
        let is_tied = |parent: &TaskKey| self.tasks[*parent].job == origin.job;
        let parent = origin.task().filter(is_tied);
        let depth = if parent.is_some() { self.depth(origin).saturating_add(submission.remote_depth) } else { 1 };
        let at = self.tasks.insert(Task {
            id,
            number,
            links,
            lineage: None,
            call: call(submission.call),
            class,
            job: origin.job,
            parent,
            child: None,
            previous_sibling: None,
            next_sibling: None,
            previous_in_queue: None,
            next_in_queue: None,
            locality_shape: None,
            worker: None,
            actor: None,
            attempt: Attempt(0),
            uncounted_attempts: 0,
            depth,
            missing: 0,
            returns,
            call_bytes: 0,
            state: TaskPhase::Waiting,
            cancellation: Cancellation::None,
            is_late: false,
            is_gated: false,
            is_committed: false,
            is_rerun: false,
        });
        self.ids.insert_task(id, at);
        self.attach(at);
        for index in 0..returns {
            let holder = origin.worker();
            self.create(id.returns(index), origin.job, Some(index), ObjectOutcome::Pending, holder);
        }
        match submission.kind {
            SubmissionKind::Function | SubmissionKind::Lease => {}
            SubmissionKind::ActorCreation(spec) => self.add_actor(at, *spec),
            SubmissionKind::Generator(buffer) => self.add_stream(at, origin.worker(), buffer),
            SubmissionKind::Method(actor) => self.add_call(at, actor),
        }
        self.count_call(at);
        at
    }

    /// Counts the call of an unfinished task. A creation task lives as long as its actor and does not count.
    pub(crate) fn count_call(&mut self, at: TaskKey) {
        let task = &mut self.tasks[at];
        let is_creator = task.actor.is_some_and(|actor| self.actors[actor].creator == Some(at));
        let bytes = task.call.as_ref().filter(|_| !is_creator).map_or(0, self.callbacks.call_bytes);
        task.call_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (job, bytes) = (task.job, u64::from(task.call_bytes));
        self.count(job, |usage| usage.call_bytes += bytes);
    }

    /// Queues a task when all of its dependencies have values.
    pub(crate) fn ready(&mut self, at: TaskKey) {
        let Some(links) = self.tasks[at].links.take() else { return self.enqueue(at) };
        let (mut missing, mut error) = (0, None);
        for need in &links.dependencies {
            match &self.objects[*need].value {
                ObjectOutcome::Ready(_) => {}
                ObjectOutcome::Failed(failed) => error = error.or_else(|| Some(failed.clone())),
                ObjectOutcome::Pending => missing += 1,
            }
        }
        if missing > 0 && error.is_none() {
            let dependent = NumberedTask { task: at, number: self.tasks[at].number };
            for need in &links.dependencies {
                let object = &mut self.objects[*need];
                if object.is_pending() {
                    let tasks = &self.tasks;
                    object.add_dependent(dependent, |task| tasks.is_waiting(task));
                    self.fetch_borrowed(*need);
                }
            }
        }
        let task = &mut self.tasks[at];
        (task.links, task.missing) = (Some(links), missing);
        match error {
            Some(error) => self.work.add(WorkItem::Fail(at, error)),
            None if missing == 0 => self.enqueue(at),
            None => self.gate(at),
        }
    }

    /// Rejects a submission: its returns get the error.
    fn reject<D>(&mut self, origin: Origin, submission: &Submission<D>, fault: Fault) {
        let mut chain = self.chain(origin.task());
        chain.push(submission.name.as_ref().to_owned());
        let error = Arc::new(TaskError { fault, chain });
        for index in 0..submission.returns.min(RETURNS_MAX) {
            if !self.create_failed(origin, submission.id.returns(index), Some(index), error.clone()) {
                break;
            }
        }
        let job = &mut self.jobs[origin.job];
        if origin.parent.is_none() && submission.kind != SubmissionKind::Lease {
            job.has_started = true;
            self.work.act(Action::JobDone { job: job.id, result: Err(error) });
        }
    }

    /// Creates a failed object, unless there are too many. Returns whether it did.
    pub(crate) fn create_failed(
        &mut self,
        origin: Origin,
        id: ObjectId,
        index: Option<u32>,
        error: Arc<TaskError>,
    ) -> bool {
        let job = &self.jobs[origin.job];
        let (usage, limits) = self.cluster.tenants.usage(job.tenant);
        let objects_max = job.limits.objects_max.saturating_add(OBJECTS_OVER_MAX);
        if job.usage.objects >= objects_max || !limits.has_room_for_error(usage) {
            return false;
        }
        let holder = origin.worker();
        self.create(id, origin.job, index, ObjectOutcome::Failed(error), holder);
        true
    }
}

/// Checks a lease. It has no limits of tasks: it is for calls of a job that was accepted, and which would wait for ever.
/// Each job has as many leases as the node has workers.
fn check_lease<C>(origin: Origin, submission: &Submission<C>) -> Result<(), Fault> {
    let is_bare = submission.dependencies.is_empty() && submission.refs.is_empty();
    if origin.parent.is_none() && submission.strategy == Strategy::Default && is_bare {
        return Ok(());
    }
    Err(Fault::new(Code::BadRequest, "is a lease with a parent, a placement strategy or references"))
}

/// Rejects actor tasks, generators and placement constraints, which inline and root tasks may not have.
fn require_plain_function<C>(submission: &Submission<C>) -> Result<(), Fault> {
    let bad = |reason: &str| {
        Fault::new(Code::BadRequest, format!("{reason}, which inline tasks and first tasks of jobs may not be"))
    };
    match submission.kind {
        SubmissionKind::Function if submission.strategy == Strategy::Default => Ok(()),
        SubmissionKind::Function => Err(bad("is a task with a placement strategy")),
        SubmissionKind::ActorCreation(_) | SubmissionKind::Method(_) => Err(bad("is a task of an actor")),
        SubmissionKind::Generator(_) => Err(bad("is a generator")),
        SubmissionKind::Lease => Err(bad("is a lease")),
    }
}
