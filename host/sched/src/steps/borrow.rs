//! Borrowed objects: objects that another scheduler owns. Local references are counted here, and the owner is notified when
//! none is left. A value is fetched on demand. Calls of a borrowed actor handle go to the actor's owner.

use std::sync::Arc;

use sandbar_core::{ActorId, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::{Action, ActorSpec, WorkerKind};
use crate::records::actors::Actor;
use crate::records::keys::{ActorKey, ObjectKey, TaskKey};
use crate::records::object::ObjectOutcome;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Whether another scheduler owns an object.
    pub fn is_borrowed(&self, object: ObjectId) -> bool {
        self.ids.find_object(object).is_some_and(|at| self.objects[at].is_borrowed())
    }

    /// Adds a reference of a worker to a borrowed object, on behalf of one of its tasks.
    pub(crate) fn borrow(&mut self, id: ObjectId, task: TaskId, worker: WorkerId) {
        if self.ids.find_object(id).is_some() {
            return self.add_reference(id, worker, task);
        }
        let Some((task, origin)) = self.storing_task(id, task, worker) else { return };
        match self.has_room_for(origin.job, 1) {
            Ok(()) => {
                let worker = origin.worker();
                let at = self.create(id, origin.job, None, ObjectOutcome::Pending, worker);
                self.objects[at].set_borrowed();
            }
            Err(fault) => {
                let error = self.error(task, fault);
                self.create_failed(origin, id, None, error);
            }
        }
    }

    /// Registers the actor of a borrowed handle, hosted by the scheduler that a worker stands for.
    pub(crate) fn borrow_actor(&mut self, id: ActorId, worker: WorkerId) {
        let worker =
            self.cluster.workers.find(worker).filter(|at| self.cluster.workers[*at].kind == WorkerKind::PeerProxy);
        let handle = self.ids.find_object(id.handle()).filter(|at| self.objects[*at].is_borrowed());
        let (Some(worker), Some(handle)) = (worker, handle) else { return };
        if self.find_actor(id).is_none() {
            let spec = ActorSpec { name: None, detached: None, restarts_max: 0, calls_max: u64::MAX };
            let job = self.objects[handle].job;
            let actor = Actor { worker: Some(worker), is_borrowed: true, ..Actor::new(id, job, spec) };
            self.actors.insert(actor, &self.jobs[job]);
        }
    }

    /// Fails the calls of a borrowed actor whose owner was lost.
    pub(crate) fn lose_borrowed(&mut self, at: ActorKey, calls: Vec<TaskKey>) {
        let record = &mut self.actors[at];
        let fault = Fault::new(Code::ActorDied, format!("actor {}: its node was lost", record.id));
        let death_cause = Arc::new(TaskError { fault, chain: Vec::new() });
        record.death_cause = Some(death_cause.clone());
        for call in calls {
            self.cancel_descendants(call);
            self.fail_with_death(call, &death_cause);
        }
        self.fail_calls(at, &death_cause);
    }

    /// Sets the value or the error of a borrowed object.
    pub(crate) fn resolve_borrow(&mut self, id: ObjectId, value: Result<V, Arc<TaskError>>, refs: &[ObjectId]) {
        let is_awaited = |at: &ObjectKey| self.objects[*at].is_borrowed() && self.objects[*at].is_pending();
        match (self.ids.find_object(id).filter(is_awaited), value) {
            (Some(at), Ok(value)) => match self.admit_value(self.objects[at].job, &value, refs) {
                Ok(contents) => self.set_ready(at, value, contents),
                Err(fault) => {
                    self.work.act(Action::Drop { object: id, value });
                    self.set_failed(at, &Arc::new(TaskError { fault, chain: Vec::new() }));
                }
            },
            (Some(at), Err(error)) => self.set_failed(at, &error),
            (None, Ok(value)) => self.work.act(Action::Drop { object: id, value }),
            (None, Err(_)) => {}
        }
    }

    /// Requests a pending object from its owner, if it is borrowed and not requested yet.
    pub(crate) fn fetch_borrowed(&mut self, at: ObjectKey) {
        if self.objects[at].set_fetching(true) == Some(false) {
            self.work.act(Action::FetchBorrowed { object: self.objects[at].id });
        }
    }

    /// Handles the loss of a borrowed value: it is requested from its owner again on demand.
    pub(crate) fn refetch_borrowed(&mut self, at: ObjectKey) {
        self.objects[at].set_fetching(false);
        if self.objects[at].has_waiters() {
            self.fetch_borrowed(at);
        }
    }
}
