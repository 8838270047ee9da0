//! What a scheduler should know of actors, and what becomes of them in a cluster.

use sandbar_core::{ActorId, Attempt, Code, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Action, Event, Outcome, Work};

use crate::cluster::History;
use crate::model::{Given, Model, Task, Value};

impl Model {
    /// The worker of an actor that can be called.
    pub fn home(&self, actor: u64) -> Option<u32> {
        if let Some(lent) = self.lent.get(&actor) {
            return lent.owner;
        }
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

    pub fn resides(&self, worker: WorkerId, task: TaskId, attempt: u32) -> bool {
        let is_it = |given: &Given| given.task == task.0 && given.attempt == attempt;
        self.workers.get(&worker.0).is_some_and(|worker| worker.residents.iter().any(is_it))
    }

    /// An actor is made, or what it says of that is wrong.
    pub fn made(&mut self, id: u64, worker: u32, given: Given, values: &[(u64, Vec<ObjectId>)]) {
        let maker = &self.tasks[&id];
        let are_good = values.len() == 1 && values.iter().all(|(_, refs)| self.of_job(maker.job, refs));
        let outcome = Outcome::Succeeded(values.to_vec());
        if maker.stop > 0 || !are_good {
            self.step.interrupted.insert((worker, id));
            return self.finish(id, &outcome, self.is_peer(worker));
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
    pub fn take_calls(&mut self, id: u64) -> Vec<u64> {
        if let Some(maker) = self.tasks.get_mut(&id) {
            maker.worker = None;
        }
        let calls = self.calls(id).into_iter();
        let take = |call: &u64| {
            let call = self.tasks.get_mut(call).expect("it is known");
            call.is_blocked = false;
            call.worker.take().is_some()
        };
        calls.filter(take).collect()
    }

    /// An actor is not there any more. It is begun anew if that `may_help`.
    pub fn lose_actor(&mut self, id: u64, calls: Vec<u64>, has_begun: &dyn Fn(u64) -> bool, may_help: bool) {
        for call in calls {
            if has_begun(call) || self.kept_child(call) {
                self.stop_descendants(call);
                self.fail_attempt(call, Code::ActorDied, true);
            } else {
                self.give_back(call);
            }
        }
        self.stop_descendants(id);
        self.fail_attempt(id, Code::ActorDied, may_help);
    }
}

impl History {
    pub fn any_actor(&mut self) -> Option<ActorId> {
        let all: Vec<u64> = self.model.actors.keys().chain(self.model.lent.keys()).copied().collect();
        self.pick(&all).map(ActorId)
    }

    pub fn kill(&mut self) {
        let restart = self.chance(50);
        if let Some(actor) = self.any_actor() {
            self.event(Event::Killed { actor, restart });
        }
    }

    /// An actor ends by itself.
    pub fn die(&mut self) {
        let all: Vec<(u32, TaskId, Attempt)> = self
            .workers
            .iter()
            .flat_map(|(id, local)| local.residents.iter().map(|(task, attempt)| (*id, *task, *attempt)))
            .collect();
        if let Some((worker, actor, attempt)) = self.pick(&all) {
            self.end_actor(worker, actor, attempt);
        }
    }

    /// What was begun of an actor fails with it, what was not is not heard of.
    pub fn end_actor(&mut self, worker: u32, actor: TaskId, attempt: Attempt) {
        let is_call = |task: &TaskId| {
            let task = self.model.tasks.get(&task.0);
            task.is_some_and(|task| task.work == Work::Method(ActorId(actor.0)))
        };
        let local = self.workers.get_mut(&worker).expect("it is there");
        local.residents.retain(|resident| *resident != (actor, attempt));
        local.waiting.retain(|(task, _)| !is_call(task));
        local.inbox.retain(|action| !matches!(action, Action::Run { task, .. } if is_call(task)));
        let begun: Vec<(TaskId, Attempt)> =
            local.begun.iter().filter(|(task, ..)| is_call(task)).map(|(task, attempt, _)| (*task, *attempt)).collect();
        for (task, attempt) in begun {
            self.finish(worker, task, attempt, false);
        }
        let outcome = self.outcome(actor, false);
        self.event(Event::Finished { task: actor, attempt, worker: WorkerId(worker), outcome, nanos: 0 });
    }

    /// An actor is saved, by a call.
    pub fn save(&mut self, worker: u32, task: TaskId) {
        let Some(Work::Method(actor)) = self.model.tasks.get(&task.0).map(|task| task.work.clone()) else { return };
        let attempt = self.model.tasks.get(&actor.0).map_or(Attempt(0), |maker| Attempt(maker.attempt));
        self.number += 10;
        let (object, worker) = (ObjectId(self.number), WorkerId(worker));
        let refs = self.some_objects(self.model.tasks.get(&task.0).map(|task| task.job), 20);
        self.event(Event::Put { object, task, worker, value: self.number, refs });
        self.event(Event::Saved { actor, attempt, worker, object });
        self.event(Event::Released { object, worker, times: 1 });
    }
}
