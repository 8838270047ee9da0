//! Operations on objects: creation, reference counts, delivery, and removal without references.

use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::{Action, WorkerKind};
use crate::records::keys::{JobKey, NumberedTask, ObjectKey, TaskKey, WorkerKey};
use crate::records::ledger::Usage;
use crate::records::object::{Object, ObjectOutcome, WorkerCount};
use crate::records::step_work::WorkItem;
use crate::scheduler::Scheduler;

/// Maximum number of pending requests of one worker for one object. Each task of the worker may make one.
const WAITS_MAX: u32 = 1 << 16;

impl<C, V> Scheduler<C, V> {
    /// Creates an object, with one reference of `holder`.
    pub(crate) fn create(
        &mut self,
        id: ObjectId,
        job_at: JobKey,
        index: Option<u32>,
        value: ObjectOutcome<V>,
        holder: Option<WorkerKey>,
    ) -> ObjectKey {
        let mut object = Object::new(id, job_at, index, value);
        self.count(job_at, |usage| usage.objects += 1);
        let job = &mut self.jobs[job_at];
        object.after = job.objects_first;
        let at = self.objects.insert(object);
        if let Some(after) = job.objects_first.replace(at) {
            self.objects[after].before = Some(at);
        }
        self.ids.insert_object(id, at);
        match holder {
            Some(worker) => self.hold(at, worker),
            None => self.check(at),
        }
        at
    }

    /// Adds a reference of a worker.
    pub(crate) fn hold(&mut self, at: ObjectKey, worker: WorkerKey) {
        let worker = &mut self.cluster.workers[worker];
        if !self.objects[at].hold(worker.id) {
            return;
        }
        let (holds, id) = (&mut worker.held_objects, worker.id);
        holds.count += 1;
        holds.places.push(at);
        if holds.places.len() > 64 + 2 * holds.count {
            holds.places.sort_unstable();
            holds.places.dedup();
            holds.places.retain(|place| self.objects.get(*place).is_some_and(|object| object.is_held_by(id)));
        }
    }

    /// Adds a reference of a worker to an object that one of its tasks may use.
    pub(crate) fn add_reference(&mut self, id: ObjectId, worker: WorkerId, task: TaskId) {
        let Some(worker) = self.cluster.workers.find(worker) else { return };
        let Some(task) = self.ids.find_task(task).filter(|at| self.acts_for(worker, *at)) else { return };
        if let Ok(object) = self.usable(id, |object| self.is_within_reach(object, task)) {
            self.hold(object, worker);
        }
    }

    /// Releases references of a worker.
    pub(crate) fn release(&mut self, id: ObjectId, worker: WorkerId, times: u32) {
        let Some(at) = self.ids.find_object(id) else { return };
        let Some(worker_at) = self.cluster.workers.find(worker) else { return };
        if self.objects[at].release(worker, times) {
            self.cluster.workers[worker_at].held_objects.count -= 1;
            self.check(at);
        }
    }

    pub(crate) fn pin(&mut self, at: ObjectKey) {
        self.objects[at].pins += 1;
    }

    pub(crate) fn unpin(&mut self, at: ObjectKey) {
        self.objects[at].pins -= 1;
        self.check(at);
    }

    /// Schedules the removal of an object at the end of the step, if nothing refers to it.
    #[inline]
    pub(crate) fn check(&mut self, at: ObjectKey) {
        if self.objects[at].is_droppable() {
            self.work.add(WorkItem::DropObject(at));
        }
    }

    /// Removes an object, if still nothing refers to it.
    pub(crate) fn drop_unreferenced(&mut self, at: ObjectKey) {
        let Some(object) = self.objects.get(at).filter(|object| object.is_droppable()) else { return };
        if object.is_pending() && !object.is_borrowed() {
            return self.close_stream(at);
        }
        let Some(mut object) = self.objects.remove(at) else { return };
        self.count(object.job, |usage| usage.objects -= 1);
        let job = &mut self.jobs[object.job];
        let has_lineage = job.lineage.all > 0;
        match object.before {
            Some(before) => self.objects[before].after = object.after,
            None => job.objects_first = object.after,
        }
        if let Some(after) = object.after {
            self.objects[after].before = object.before;
        }
        self.ids.remove_object(object.id);
        if object.index == Some(0) || object.is_borrowed() {
            self.drop_handle(object.id);
        }
        if has_lineage && let Some(producer) = self.returned_by(&object) {
            self.unuse_lineage(producer);
        }
        object.take_contents().iter().for_each(|content| self.unpin(*content));
        for WorkerCount { worker, times } in object.take_waiters() {
            let Some(at) = self.cluster.workers.find(worker) else { continue };
            let fault = self.absence(object.id, at);
            (0..times).for_each(|_| self.refuse_object(object.id, worker, None, Some(object.job), fault.clone()));
        }
        if object.is_borrowed() {
            self.work.act(Action::ReleaseBorrow { object: object.id });
        }
        if let ObjectOutcome::Ready(value) = object.value {
            self.drop_value(object.id, object.job, value);
        }
    }

    /// Drops the value of an object.
    pub(crate) fn drop_value(&mut self, id: ObjectId, job: JobKey, value: V) {
        let bytes = (self.callbacks.value_bytes)(&value);
        self.count(job, |usage| {
            usage.values.memory -= bytes.memory;
            usage.values.stored -= bytes.stored;
        });
        self.work.act(Action::Drop { object: id, value });
    }

    /// Changes what a job and its tenant use.
    #[inline]
    pub(crate) fn count(&mut self, job: JobKey, change: impl Fn(&mut Usage)) {
        let job = &mut self.jobs[job];
        change(&mut job.usage);
        self.cluster.tenants.count(job.tenant, change);
    }

    /// Sets the value of a pending object.
    pub(crate) fn set_ready(&mut self, at: ObjectKey, value: V, contents: Vec<ObjectKey>) {
        contents.iter().for_each(|content| self.pin(*content));
        let bytes = (self.callbacks.value_bytes)(&value);
        let object = &mut self.objects[at];
        let job = object.job;
        object.value = ObjectOutcome::Ready(value);
        object.set_contents(contents);
        self.count(job, |usage| {
            usage.values.memory += bytes.memory;
            usage.values.stored += bytes.stored;
        });
        for dependent in self.take_dependents_of(at) {
            if self.tasks.is_waiting(dependent) {
                let task = &mut self.tasks[dependent.task];
                task.missing -= 1;
                if task.missing == 0 {
                    // Another dependency may have been lost in the meantime.
                    self.ready(dependent.task);
                }
            }
        }
    }

    /// Sets the error of a pending object.
    pub(crate) fn set_failed(&mut self, at: ObjectKey, error: &Arc<TaskError>) {
        self.objects[at].value = ObjectOutcome::Failed(error.clone());
        for dependent in self.take_dependents_of(at) {
            if self.tasks.is_waiting(dependent) {
                self.work.add(WorkItem::Fail(dependent.task, error.clone()));
            }
        }
    }

    /// Returns the tasks that waited for an object, whose value or error is now known.
    fn take_dependents_of(&mut self, at: ObjectKey) -> Vec<NumberedTask> {
        let object = &mut self.objects[at];
        if object.has_waiters() {
            self.work.awaited.push(at);
        }
        let dependents = object.take_dependents();
        self.check(at);
        dependents
    }

    /// Handles a worker's request for an object.
    pub(crate) fn request_object(&mut self, id: ObjectId, worker: WorkerId, task: TaskId) {
        let Some(worker_at) = self.cluster.workers.find(worker) else { return };
        let task = self.ids.find_task(task).filter(|at| self.acts_for(worker_at, *at));
        let job = task.map(|at| self.tasks[at].job);
        // What a worker holds for one job is not there for its other jobs. A peer has none of its own.
        let is_peer = self.cluster.workers[worker_at].kind == WorkerKind::PeerProxy;
        let is_usable = |object: &Object<V>| {
            task.is_some_and(|task| self.is_within_reach(object, task)) || is_peer && object.is_held_by(worker)
        };
        match self.usable(id, is_usable) {
            // An object of another job is as good as none.
            Err(_) => self.refuse_object(id, worker, task, job, self.absence(id, worker_at)),
            Ok(at) if !self.objects[at].is_pending() => {
                self.deliver(at, worker_at, job.unwrap_or(self.objects[at].job));
            }
            Ok(at) if self.objects[at].wait_count(worker) < WAITS_MAX => {
                let object = &mut self.objects[at];
                object.wait(worker);
                if let Some(job) = job.filter(|job| *job != object.job) {
                    object.add_foreign_waiter(worker, self.jobs[job].id);
                }
                self.fetch_borrowed(at);
            }
            Ok(_) => {
                let message = format!("waits for object {id} more than {WAITS_MAX} times");
                self.refuse_object(id, worker, task, job, Fault::new(Code::BadRequest, message));
            }
        }
    }

    /// Whether a worker has a task, or stands for the node that has it.
    fn acts_for(&self, worker: WorkerKey, task: TaskKey) -> bool {
        let workers = &self.cluster.workers;
        self.tasks[task].worker.is_some_and(|at| {
            at == worker || workers[worker].kind == WorkerKind::PeerProxy && workers[at].node == workers[worker].node
        })
    }

    /// Whether a task may use an object: it is of the task's job, or the handle of a detached actor of its tenant. A method uses
    /// what its actor has stored as well, also if another job calls it.
    pub(crate) fn is_within_reach(&self, object: &Object<V>, task: TaskKey) -> bool {
        let task = &self.tasks[task];
        let actor = task.actor.and_then(|at| self.actors.get(at));
        object.job == task.job || actor.is_some_and(|actor| actor.job == object.job) || self.is_shared(object, task.job)
    }

    /// Returns an object, if it exists and `may` permits its use. The error is the same in both cases.
    pub(crate) fn usable(&self, id: ObjectId, may: impl Fn(&Object<V>) -> bool) -> Result<ObjectKey, Fault> {
        self.ids.find_object(id).filter(|at| may(&self.objects[*at])).ok_or_else(|| unknown(id))
    }

    /// Delivers an object to a worker, for a task of a job. The worker then holds the objects that it contains.
    pub(crate) fn deliver(&mut self, at: ObjectKey, worker: WorkerKey, job: JobKey) {
        self.deliver_for(at, worker, self.jobs[job].id);
    }

    fn deliver_for(&mut self, at: ObjectKey, worker: WorkerKey, job: JobId) {
        self.hold_contents(at, worker);
        let worker = self.cluster.workers[worker].id;
        self.work.act(Action::Deliver { worker, object: self.objects[at].id, job });
    }

    /// Adds a reference of a worker to each object that a value contains.
    pub(crate) fn hold_contents(&mut self, at: ObjectKey, worker: WorkerKey) {
        for index in 0..self.objects[at].contents().len() {
            self.hold(self.objects[at].contents()[index], worker);
        }
    }

    /// Returns why a worker can't have an object that does not exist. A node names objects that were sent to it: they existed
    /// until their job ended on this node, which it also does if the job's node has disconnected.
    fn absence(&self, id: ObjectId, worker: WorkerKey) -> Fault {
        match self.cluster.workers[worker].kind {
            WorkerKind::PeerProxy => {
                let message = format!("the value of object {id} is lost: its job has ended on the node that stored it");
                Fault::new(Code::ObjectLost, message)
            }
            _ => unknown(id),
        }
    }

    /// Rejects a worker's request for an object, for a task of a job if those are known.
    fn refuse_object(
        &mut self,
        object: ObjectId,
        worker: WorkerId,
        task: Option<TaskKey>,
        job: Option<JobKey>,
        fault: Fault,
    ) {
        let error = Arc::new(TaskError { fault, chain: self.chain(task) });
        let job = job.map(|job| self.jobs[job].id);
        self.work.act(Action::Refuse { worker, object, job, error });
    }

    /// Delivers the objects that got a value or an error in this step, and still exist, to the workers that wait for
    /// them.
    pub(crate) fn deliver_awaited(&mut self) {
        for index in 0..self.work.awaited.len() {
            let at = self.work.awaited[index];
            let Some(object) = self.objects.get_mut(at) else { continue };
            let (job, foreign_waiters) = (object.job, object.take_foreign_waiters());
            for WorkerCount { worker: id, times } in object.take_waiters() {
                let Some(worker) = self.cluster.workers.find(id) else { continue };
                let of_worker = foreign_waiters.iter().filter(|(visitor, _)| *visitor == id);
                let mut own = times;
                for (_, job) in of_worker.take(times as usize) {
                    own -= 1;
                    self.deliver_for(at, worker, *job);
                }
                (0..own).for_each(|_| self.deliver(at, worker, job));
            }
        }
        self.work.awaited.clear();
    }
}

fn unknown(id: ObjectId) -> Fault {
    Fault::new(Code::BadRequest, format!("object {id} does not exist in this job"))
}
