//! The model's borrowed objects and actors, and the simulated answers of owners.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbar_core::{ActorId, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_sched::{ActorState, Event};

use crate::cluster::History;
use crate::model::{BorrowedActor, Model, Object, Step, Steps, Task, Value};

impl Model {
    /// Adds a reference of a worker to a borrowed object.
    pub fn borrow(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if self.objects.contains_key(&id) {
            return self.hold(id, worker, task);
        }
        let Some(job) = self.running(worker, task).map(|task| task.job).filter(|_| !self.is_known(id)) else { return };
        let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
        self.create(id, job, if has_room { Value::Borrowed } else { Value::Failed }, Some(worker.0));
    }

    /// Registers the actor of a borrowed handle.
    pub fn borrow_actor(&mut self, id: u64, worker: u32) {
        let Some(handle) = self.objects.get(&id).filter(|object| object.is_borrowed) else { return };
        let is_actor = |id: &u64| self.actors.contains_key(id) || self.borrowed_actors.contains_key(id);
        // A value that contains only a handle counts as the handle.
        let is_handle = match &handle.value {
            Value::Ready(_, contents) => contents.len() == 1 && is_actor(&contents[0]),
            _ => false,
        };
        if self.is_peer(worker) && !is_actor(&id) && !is_handle {
            self.borrowed_actors.insert(id, BorrowedActor { job: handle.job, owner: Some(worker) });
        }
    }

    /// Sets the value or the error of a borrowed object.
    pub fn resolve_borrow(&mut self, id: u64, value: Option<u64>, refs: &[ObjectId]) {
        self.values.add(value);
        let Some(object) = self.objects.get(&id).filter(|object| object.value == Value::Borrowed) else {
            self.step.dropped.extend(value);
            return;
        };
        let is_good = self.of_job(object.job, refs);
        let value_is = match value.filter(|_| is_good) {
            Some(value) => Value::Ready(value, refs.iter().map(|id| id.0).collect()),
            None => {
                self.step.dropped.extend(value);
                Value::Failed
            }
        };
        self.objects.get_mut(&id).expect("it was found").value = value_is;
    }

    /// Whether a requested borrowed object is still pending.
    pub fn has_pending_fetch(&self) -> bool {
        self.objects.values().any(|object| object.value == Value::Borrowed && object.is_fetching)
    }

    /// Marks the actors of these proxy workers as lost. Returns their assigned calls.
    pub fn take_borrowed_actors(&mut self, workers: &[u32]) -> Vec<(u64, Vec<u64>)> {
        let mut lost = Vec::new();
        for (id, borrowed) in &mut self.borrowed_actors {
            if borrowed.owner.is_some_and(|owner| workers.contains(&owner)) {
                borrowed.owner = None;
                lost.push(*id);
            }
        }
        lost.into_iter().map(|id| (id, self.take_calls(id))).collect()
    }

    /// Fails the calls of a lost borrowed actor.
    pub fn lose_borrowed_actor(&mut self, id: u64, assigned: Vec<u64>) {
        assigned.into_iter().for_each(|call| self.cancel_descendants(call));
        self.calls(id).into_iter().for_each(|call| self.fail(call, Code::ActorDied));
    }

    /// Checks that a requested borrowed object is wanted and was not requested before.
    pub fn check_fetch(&mut self, id: u64, step: &Step) {
        let dependencies = |(other, task): (&u64, &Task)| {
            task.dependencies.contains(&id) && (!task.has_finished || step.failed.contains_key(other))
        };
        let is_needed = self.tasks.iter().any(dependencies);
        let Some(object) = self.objects.get_mut(&id) else {
            // The last reference was dropped within the step.
            let was_needed = is_needed || step.refused.keys().any(|(_, object)| *object == id);
            assert!(was_needed && step.returned.contains(&id), "object {id} is not there");
            return;
        };
        assert!(object.value == Value::Borrowed && !object.is_fetching, "object {id} is not to be asked for");
        assert!(is_needed || !object.wants.is_empty(), "object {id} is not needed");
        object.is_fetching = true;
    }

    /// Checks that no task waits for an object that was not requested, and that calls of borrowed actors are assigned.
    pub fn check_borrowed_actors(&self, steps: &Steps) {
        let will_come = |id: &u64| {
            let object = &self.objects[id];
            object.value.is_pending() && (object.value != Value::Borrowed || object.is_fetching)
        };
        for (id, task) in self.tasks.iter().filter(|(_, task)| !task.has_finished && task.worker.is_none()) {
            assert!(
                self.dependencies_ready(task) || task.dependencies.iter().any(will_come),
                "task {id} waits for nothing"
            );
        }
        for (id, object) in self.objects.iter().filter(|(_, object)| object.value == Value::Borrowed) {
            assert!(object.wants.is_empty() || object.is_fetching, "object {id} was not asked for");
        }
        for (id, borrowed) in &self.borrowed_actors {
            let view = steps.actor(ActorId(*id)).expect("a handle exists");
            let calls = self.calls(*id);
            let assigned: BTreeSet<u64> =
                calls.iter().copied().filter(|call| self.tasks[call].worker.is_some()).collect();
            assert_eq!(view.assigned.iter().map(|call| call.0).collect::<BTreeSet<_>>(), assigned);
            assert_eq!((view.calls, view.worker.map(|worker| worker.0)), (calls.len() as u64, borrowed.owner));
            assert_eq!(view.state == ActorState::Alive, borrowed.owner.is_some());
            assert_eq!(self.omitted_actor(*id), None, "actor {id} could be called");
        }
    }
}

impl History {
    /// A task borrows an object, in rare cases one that is local. It may be the handle of an actor.
    pub fn borrow(&mut self, worker: u32, task: TaskId) {
        self.number += 10;
        let job = self.model.tasks.get(&task.0).map(|task| task.job);
        let here = self.some_objects(job, 15).first().copied();
        let object = here.unwrap_or(ObjectId(self.number));
        self.event(Event::Borrowed { object, task, worker: WorkerId(worker) });
        if self.chance(50) {
            self.borrow_actor(object);
        }
        if self.chance(30) {
            self.event(Event::ObjectRequested { object, worker: WorkerId(worker), task });
        }
    }

    /// Declares a borrowed object to be the handle of an actor.
    pub fn borrow_actor(&mut self, object: ObjectId) {
        if let Some(peer) = self.any_peer() {
            self.event(Event::ActorBorrowed { actor: ActorId(object.0), worker: WorkerId(peer) });
        }
    }

    /// A requested object arrives, in rare cases one that was not requested.
    pub fn resolve_borrow(&mut self) {
        let is_wild = self.chance(10);
        let may = |(id, object): (&u64, &Object)| {
            (is_wild || object.value == Value::Borrowed && object.is_fetching).then_some(*id)
        };
        let all: Vec<u64> = self.model.objects.iter().filter_map(may).chain(is_wild.then_some(5)).collect();
        let Some(object) = self.pick(&all).map(ObjectId) else { return };
        self.number += 1;
        let refs = self.some_objects(self.model.objects.get(&object.0).map(|object| object.job), 30);
        let value = if self.chance(80) { Ok(self.number) } else { Err(Arc::new(lost_error())) };
        self.event(Event::BorrowResolved { object, value, refs });
    }
}

fn lost_error() -> TaskError {
    TaskError { fault: Fault::new(Code::ObjectLost, "it is gone"), chain: Vec::new() }
}
