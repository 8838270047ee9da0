//! Objects of other schedulers: who refers to one here is counted here, and its owner is told when nobody does any more. Its
//! value is asked for when somebody wants it. Where an object is the handle of an actor, calls of that go to its owner.

use std::sync::Arc;

use sandbar_core::{ActorId, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};

use crate::actors::Actor;
use crate::event::{Action, ActorSpec, Role};
use crate::places::{ActorAt, ObjectAt, TaskAt};
use crate::refs::Value;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Whether an object is another scheduler's.
    pub fn is_borrowed(&self, object: ObjectId) -> bool {
        self.find_object(object).is_some_and(|at| self.objects[at].is_borrowed())
    }

    /// A worker holds an object once more that is another scheduler's, on behalf of a task that it has.
    pub(crate) fn borrow(&mut self, id: ObjectId, task: TaskId, worker: WorkerId) {
        if self.find_object(id).is_some() {
            return self.hold_for(id, worker, task);
        }
        let Some((task, origin)) = self.maker_of(id, task, worker) else { return };
        match self.has_room_for(origin.job, 1) {
            Ok(()) => {
                let worker = origin.parent.map(|(_, worker)| worker);
                let at = self.create(id, origin.job, None, Value::Pending, worker);
                self.objects[at].set_borrowed();
            }
            Err(fault) => {
                let error = self.error(task, fault);
                self.create_failed(origin, id, None, error);
            }
        }
    }

    /// A borrowed object is the handle of an actor of the scheduler for which a worker stands.
    pub(crate) fn borrow_actor(&mut self, id: ActorId, worker: WorkerId) {
        let worker = self.cluster.find(worker).filter(|at| self.cluster.workers[*at].role == Role::Peer);
        let handle = self.find_object(id.handle()).filter(|at| self.objects[*at].is_borrowed());
        let (Some(worker), Some(handle)) = (worker, handle) else { return };
        if self.find_actor(id).is_none() {
            let spec = ActorSpec { name: None, detached: None, restarts_max: 0, calls_max: u64::MAX };
            let job = self.objects[handle].job;
            let actor = Actor { worker: Some(worker), is_borrowed: true, ..Actor::new(id, job, spec) };
            let at = self.actors.insert(actor);
            self.actor_ids.insert(id, at);
        }
    }

    /// The scheduler is gone that has an actor, and had these calls of it.
    pub(crate) fn lose_borrowed(&mut self, at: ActorAt, calls: Vec<TaskAt>) {
        let record = &mut self.actors[at];
        let fault = Fault::new(Code::ActorDied, format!("actor {}: the node that has it is gone", record.id));
        let died = Arc::new(TaskError { fault, chain: Vec::new() });
        record.died = Some(died.clone());
        for call in calls {
            self.stop_descendants(call);
            self.fail_of_death(call, &died);
        }
        self.fail_calls(at, &died);
    }

    /// It is known what there is of a borrowed object.
    pub(crate) fn arrive(&mut self, id: ObjectId, value: Result<V, Arc<TaskError>>, refs: &[ObjectId]) {
        let is_awaited = |at: &ObjectAt| self.objects[*at].is_borrowed() && self.objects[*at].is_pending();
        match (self.find_object(id).filter(is_awaited), value) {
            (Some(at), Ok(value)) => match self.all_usable(self.objects[at].job, refs) {
                Ok(contents) => self.set_ready(at, value, contents),
                Err(fault) => {
                    self.out.push(Action::Drop { object: id, value });
                    self.set_failed(at, &Arc::new(TaskError { fault, chain: Vec::new() }));
                }
            },
            (Some(at), Err(error)) => self.set_failed(at, &error),
            (None, Ok(value)) => self.out.push(Action::Drop { object: id, value }),
            (None, Err(_)) => {}
        }
    }

    /// Somebody wants the value of an object that is not there: if it is borrowed, its owner is asked.
    pub(crate) fn ask(&mut self, at: ObjectAt) {
        if self.objects[at].set_asked(true) == Some(false) {
            self.out.push(Action::Ask { object: self.objects[at].id });
        }
    }

    /// A borrowed value is gone: its owner is asked again once somebody wants it.
    pub(crate) fn ask_again(&mut self, at: ObjectAt) {
        self.objects[at].set_asked(false);
        if self.objects[at].has_waiters() {
            self.ask(at);
        }
    }
}
