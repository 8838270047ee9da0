//! What a scheduler should know of objects and actors that are others', and what their owners say.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbar_core::{ActorId, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_sched::{ActorState, Event};

use crate::cluster::History;
use crate::model::{Lent, Model, Object, Step, Steps, Task, Value};

impl Model {
    /// A worker holds an object once more that is another scheduler's.
    pub fn borrow(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if self.objects.contains_key(&id) {
            return self.hold(id, worker, task);
        }
        let Some(job) = self.running(worker, task).map(|task| task.job).filter(|_| !self.is_known(id)) else { return };
        let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
        self.create(id, job, if has_room { Value::Away } else { Value::Failed }, Some(worker.0));
    }

    /// An object is the handle of an actor of the scheduler for which a worker stands.
    pub fn borrow_actor(&mut self, id: u64, worker: u32) {
        let Some(handle) = self.objects.get(&id).filter(|object| object.is_borrowed) else { return };
        let is_actor = |id: &u64| self.actors.contains_key(id) || self.lent.contains_key(id);
        // What contains a handle and nothing else is as good as that.
        let is_handle = match &handle.value {
            Value::Ready(_, contents) => contents.len() == 1 && is_actor(&contents[0]),
            _ => false,
        };
        if self.is_peer(worker) && !is_actor(&id) && !is_handle {
            self.lent.insert(id, Lent { job: handle.job, owner: Some(worker) });
        }
    }

    /// It is known what there is of an object.
    pub fn arrive(&mut self, id: u64, value: Option<u64>, refs: &[ObjectId]) {
        self.values.extend(value);
        let Some(object) = self.objects.get(&id).filter(|object| object.value == Value::Away) else {
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

    /// Whether the owner of an object was asked for it, and has not answered.
    pub fn is_any_asked_for(&self) -> bool {
        self.objects.values().any(|object| object.value == Value::Away && object.is_asked)
    }

    /// Actors whose owners are these workers are called no more. Gives the calls that these had.
    pub fn take_lent(&mut self, workers: &[u32]) -> Vec<(u64, Vec<u64>)> {
        let mut lost = Vec::new();
        for (id, lent) in &mut self.lent {
            if lent.owner.is_some_and(|owner| workers.contains(&owner)) {
                lent.owner = None;
                lost.push(*id);
            }
        }
        lost.into_iter().map(|id| (id, self.take_calls(id))).collect()
    }

    /// All calls fail of an actor whose owner is gone.
    pub fn lose_lent(&mut self, id: u64, given: Vec<u64>) {
        given.into_iter().for_each(|call| self.stop_descendants(call));
        self.calls(id).into_iter().for_each(|call| self.fail(call, Code::ActorDied));
    }

    /// An owner is asked for an object that it was not asked for yet, since somebody wants it.
    pub fn check_ask(&mut self, id: u64, step: &Step) {
        let needs = |(other, task): (&u64, &Task)| {
            task.needs.contains(&id) && (!task.has_ended || step.failed.contains_key(other))
        };
        let is_needed = self.tasks.iter().any(needs);
        let Some(object) = self.objects.get_mut(&id) else {
            // Nobody referred to it any more in the end.
            let was_wanted = is_needed || step.refused.keys().any(|(_, object)| *object == id);
            assert!(was_wanted && step.returned.contains(&id), "object {id} is not there");
            return;
        };
        assert!(object.value == Value::Away && !object.is_asked, "object {id} is not to be asked for");
        assert!(is_needed || !object.wants.is_empty(), "nobody wants object {id}");
        object.is_asked = true;
    }

    /// Nobody waits for what was not asked for, and actors of others are called.
    pub fn check_lent(&self, steps: &Steps) {
        let will_come = |id: &u64| {
            let object = &self.objects[id];
            object.value.is_pending() && (object.value != Value::Away || object.is_asked)
        };
        for (id, task) in self.tasks.iter().filter(|(_, task)| !task.has_ended && task.worker.is_none()) {
            assert!(self.has_needs(task) || task.needs.iter().any(will_come), "task {id} waits for nothing");
        }
        for (id, object) in self.objects.iter().filter(|(_, object)| object.value == Value::Away) {
            assert!(object.wants.is_empty() || object.is_asked, "object {id} was not asked for");
        }
        for (id, lent) in &self.lent {
            let view = steps.actor(ActorId(*id)).expect("somebody has its handle");
            let calls = self.calls(*id);
            let given: BTreeSet<u64> = calls.iter().copied().filter(|call| self.tasks[call].worker.is_some()).collect();
            assert_eq!(view.given.iter().map(|call| call.0).collect::<BTreeSet<_>>(), given);
            assert_eq!((view.calls, view.worker.map(|worker| worker.0)), (calls.len() as u64, lent.owner));
            assert_eq!(view.state == ActorState::Alive, lent.owner.is_some());
            assert_eq!(self.left_out(*id), None, "actor {id} could be called");
        }
    }
}

impl History {
    /// A task is lent an object, or, seldom, one that is here. It may be the handle of an actor.
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
            self.event(Event::Wanted { object, worker: WorkerId(worker), task });
        }
    }

    /// An object, if it is borrowed, is the handle of an actor, as its owner says.
    pub fn borrow_actor(&mut self, object: ObjectId) {
        if let Some(peer) = self.any_peer() {
            self.event(Event::ActorBorrowed { actor: ActorId(object.0), worker: WorkerId(peer) });
        }
    }

    /// Something comes that was asked for, or, seldom, that was not.
    pub fn arrive(&mut self) {
        let is_wild = self.chance(10);
        let may =
            |(id, object): (&u64, &Object)| (is_wild || object.value == Value::Away && object.is_asked).then_some(*id);
        let all: Vec<u64> = self.model.objects.iter().filter_map(may).chain(is_wild.then_some(5)).collect();
        let Some(object) = self.pick(&all).map(ObjectId) else { return };
        self.number += 1;
        let refs = self.some_objects(self.model.objects.get(&object.0).map(|object| object.job), 30);
        let value = if self.chance(80) { Ok(self.number) } else { Err(Arc::new(gone())) };
        self.event(Event::Arrived { object, value, refs });
    }
}

fn gone() -> TaskError {
    TaskError { fault: Fault::new(Code::ObjectLost, "it is gone"), chain: Vec::new() }
}
