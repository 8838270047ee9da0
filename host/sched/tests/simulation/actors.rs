//! The model's actors, and the simulated ends of actors.

use sandbar_core::{ActorId, Attempt, Code, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Action, Event, Outcome, SubmissionKind};

use crate::cluster::History;
use crate::model::{AssignedTask, Model, Task, Value};

impl Model {
    /// Returns the worker of an actor that accepts calls.
    pub fn actor_worker(&self, actor: u64) -> Option<u32> {
        if let Some(borrowed) = self.borrowed_actors.get(&actor) {
            return borrowed.owner;
        }
        let worker = self.tasks.get(&actor)?.worker?;
        let is_it = |assigned: &AssignedTask| assigned.task == actor && !assigned.is_ghost;
        self.workers[&worker].actors.iter().any(is_it).then_some(worker)
    }

    /// Returns the unfinished calls of an actor, in order of submission.
    pub fn calls(&self, actor: u64) -> Vec<u64> {
        let is_call = |task: &Task| !task.has_finished && task.kind == SubmissionKind::Method(ActorId(actor));
        let mut calls: Vec<u64> = self.tasks.iter().filter(|(_, task)| is_call(task)).map(|(id, _)| *id).collect();
        calls.sort_by_key(|id| self.tasks[id].number);
        calls
    }

    pub fn has_actor(&self, worker: WorkerId, task: TaskId, attempt: u32) -> bool {
        let is_it = |assigned: &AssignedTask| assigned.task == task.0 && assigned.attempt == attempt;
        self.workers.get(&worker.0).is_some_and(|worker| worker.actors.iter().any(is_it))
    }

    /// Handles the result of a creation task.
    pub fn actor_created(&mut self, id: u64, worker: u32, assigned: AssignedTask, values: &[(u64, Vec<ObjectId>)]) {
        let creator = &self.tasks[&id];
        let are_good = values.len() == 1 && values.iter().all(|(_, refs)| self.of_job(creator.job, refs));
        let outcome = Outcome::Succeeded(values.to_vec());
        if creator.cancellation > 0 || !are_good {
            self.step.interrupted.insert((worker, id));
            return self.finish(id, &outcome, self.is_peer(worker));
        }
        self.workers
            .get_mut(&worker)
            .expect("the worker exists")
            .actors
            .push(AssignedTask { is_blocked: false, ..assigned });
        self.tasks.get_mut(&id).expect("it is known").worker = Some(worker);
        match self.objects.get_mut(&id).filter(|object| object.value == Value::Pending) {
            Some(handle) => {
                let (value, refs) = &values[0];
                self.values.add([*value]);
                handle.value = Value::Ready(*value, refs.iter().map(|id| id.0).collect());
                self.step.ready.insert(id);
            }
            None => self.discard(&outcome),
        }
    }

    /// Takes the calls that an actor's worker had.
    pub fn take_calls(&mut self, id: u64) -> Vec<u64> {
        if let Some(creator) = self.tasks.get_mut(&id) {
            creator.worker = None;
        }
        let calls = self.calls(id).into_iter();
        let take = |call: &u64| {
            let call = self.tasks.get_mut(call).expect("it is known");
            call.is_blocked = false;
            call.worker.take().is_some()
        };
        calls.filter(take).collect()
    }

    /// Handles the loss of an actor. `may_help` is set if a restart may help.
    pub fn lose_actor(&mut self, id: u64, calls: Vec<u64>, has_started: &dyn Fn(u64) -> bool, may_help: bool) {
        for call in calls {
            if has_started(call) || self.has_kept_child(call) {
                self.cancel_descendants(call);
                self.fail_attempt(call, Code::ActorDied, true);
            } else {
                self.requeue(call);
            }
        }
        self.cancel_descendants(id);
        self.fail_attempt(id, Code::ActorDied, may_help);
    }
}

impl History {
    pub fn any_actor(&mut self) -> Option<ActorId> {
        let all: Vec<u64> = self.model.actors.keys().chain(self.model.borrowed_actors.keys()).copied().collect();
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
            .flat_map(|(id, state)| state.actors.iter().map(|(task, attempt)| (*id, *task, *attempt)))
            .collect();
        if let Some((worker, actor, attempt)) = self.pick(&all) {
            self.end_actor(worker, actor, attempt);
        }
    }

    /// Ends an actor: its started calls fail, the others are dropped silently.
    pub fn end_actor(&mut self, worker: u32, actor: TaskId, attempt: Attempt) {
        let is_call = |task: &TaskId| {
            let task = self.model.tasks.get(&task.0);
            task.is_some_and(|task| task.kind == SubmissionKind::Method(ActorId(actor.0)))
        };
        let state = self.workers.get_mut(&worker).expect("it is there");
        state.actors.retain(|other| *other != (actor, attempt));
        state.waiting.retain(|(task, _)| !is_call(task));
        state.inbox.retain(|action| !matches!(action, Action::Run { task, .. } if is_call(task)));
        let started: Vec<(TaskId, Attempt)> = state
            .started
            .iter()
            .filter(|(task, ..)| is_call(task))
            .map(|(task, attempt, _)| (*task, *attempt))
            .collect();
        for (task, attempt) in started {
            self.finish(worker, task, attempt, false);
        }
        let outcome = self.outcome(actor, false);
        self.event(Event::AttemptFinished { task: actor, attempt, worker: WorkerId(worker), outcome, nanos: 0 });
    }

    /// A call saves a checkpoint of its actor.
    pub fn save(&mut self, worker: u32, task: TaskId) {
        let Some(SubmissionKind::Method(actor)) = self.model.tasks.get(&task.0).map(|task| task.kind.clone()) else {
            return;
        };
        let attempt = self.model.tasks.get(&actor.0).map_or(Attempt(0), |creator| Attempt(creator.attempt));
        self.number += 10;
        let (object, worker) = (ObjectId(self.number), WorkerId(worker));
        let refs = self.some_objects(self.model.tasks.get(&task.0).map(|task| task.job), 20);
        self.event(Event::Put { object, task, worker, value: self.number, refs });
        self.event(Event::Checkpointed { actor, attempt, worker, object });
        self.event(Event::ReferencesReleased { object, worker, count: 1 });
    }
}
