//! Actor calls: each caller's calls start in the order of their submission, in the worker of the actor.

use sandbar_core::{ActorId, Attempt, Fault, TaskId};

use crate::event::{Action, Outcome};
use crate::records::actors::Actor;
use crate::records::keys::{ActorKey, NumberedTask, TaskKey, WorkerKey};
use crate::records::step_work::WorkItem;
use crate::records::tasks::{Cancellation, TaskPhase};
use crate::scheduler::Scheduler;

/// Maximum number of calls that an actor's worker is assigned in advance.
const WINDOW: usize = 256;

impl<C, V> Scheduler<C, V> {
    /// Registers a new call of an existing actor.
    pub(crate) fn add_call(&mut self, at: TaskKey, id: ActorId) {
        let Some(actor) = self.find_actor(id) else { unreachable!("it was admitted") };
        self.tasks[at].actor = Some(actor);
        self.actors[actor].calls += 1;
        if let Some(handle) = self.ids.find_object(self.actors[actor].id.handle()) {
            self.pin(handle);
        }
    }

    /// Holds back a call that waits for dependencies, and all later calls of its caller.
    pub(crate) fn gate(&mut self, at: TaskKey) {
        let Some(actor) = self.tasks[at].actor.filter(|_| self.is_method(at)) else { return };
        let task = &mut self.tasks[at];
        let Some(caller) = task.parent.filter(|_| !task.is_gated) else { return };
        task.is_gated = true;
        let number = task.number;
        let Actor { ready_calls, gates, .. } = &mut self.actors[actor];
        let gate = gates.entry(caller).or_default();
        gate.insert(number, at);
        // The call may have been ready before, with later calls of its caller behind it.
        let tasks = &mut self.tasks;
        let is_later = |_: &u64, call: &mut TaskKey| tasks[*call].parent == Some(caller);
        for (number, call) in ready_calls.extract_if(number.., is_later).collect::<Vec<_>>() {
            self.tasks[call].is_gated = true;
            gate.insert(number, call);
        }
    }

    /// Queues a task of an actor whose dependencies all have values.
    pub(crate) fn enqueue_of_actor(&mut self, at: TaskKey, actor: ActorKey) {
        if self.actors[actor].creator == Some(at) {
            return self.enqueue_creator(at);
        }
        let task = &mut self.tasks[at];
        task.state = TaskPhase::Queued;
        let (number, caller, is_gated) = (task.number, task.parent, task.is_gated);
        if let Some(death_cause) = self.actors[actor].death_cause.clone() {
            task.state = TaskPhase::Waiting;
            return self.fail_with_death(at, &death_cause);
        }
        match caller {
            Some(caller) if is_gated && self.actors[actor].gates.contains_key(&caller) => self.open_gate(actor, caller),
            // A retried call goes before the calls that wait.
            Some(caller) if !is_gated && self.is_behind_gate(actor, caller, number) => {
                self.tasks[at].is_gated = true;
                self.actors[actor].gates.entry(caller).or_default().insert(number, at);
            }
            _ => {
                self.tasks[at].is_gated = false;
                self.actors[actor].ready_calls.insert(number, at);
            }
        }
        self.assign_calls(actor);
    }

    /// Whether an earlier call of the caller still waits for dependencies.
    fn is_behind_gate(&mut self, actor: ActorKey, caller: TaskKey, number: u64) -> bool {
        self.open_gate(actor, caller);
        let gate = self.actors[actor].gates.get(&caller);
        gate.and_then(|gate| gate.first_key_value()).is_some_and(|(first, _)| *first < number)
    }

    /// Moves the caller's first calls up to one that still waits for dependencies to the ready calls.
    fn open_gate(&mut self, actor: ActorKey, caller: TaskKey) {
        let Some(gate) = self.actors[actor].gates.get_mut(&caller) else { return };
        let mut free = Vec::new();
        while let Some(first) = gate.first_entry() {
            let (number, at) = (*first.key(), *first.get());
            let task =
                self.tasks.get_numbered_mut(NumberedTask { task: at, number }).filter(|task| !task.has_finished());
            match task {
                Some(task) if task.state == TaskPhase::Waiting => break,
                Some(task) => {
                    task.is_gated = false;
                    free.push((number, at));
                }
                None => {}
            }
            first.remove();
        }
        if gate.is_empty() {
            self.actors[actor].gates.remove(&caller);
        }
        self.actors[actor].ready_calls.extend(free);
    }

    /// Assigns ready calls to the actor's worker, up to the window.
    pub(crate) fn assign_calls(&mut self, at: ActorKey) {
        let Some(worker) = self.actors[at].worker else { return };
        while self.actors[at].assigned.len() < WINDOW
            && let Some((_, call)) = self.actors[at].ready_calls.pop_first()
        {
            if self.tasks[call].cancellation != Cancellation::None {
                // It is among the failing tasks.
                continue;
            }
            if self.requeue_if_incomplete(call) {
                continue;
            }
            let task = &mut self.tasks[call];
            (task.state, task.worker) = (TaskPhase::Assigned, Some(worker));
            let (id, attempt) = (task.id, task.attempt);
            self.actors[at].assigned.push_back(call);
            self.work.act(Action::Run { worker: self.cluster.workers[worker].id, task: id, attempt });
        }
    }

    /// Takes a task of an actor out of its queue.
    pub(crate) fn dequeue_of_actor(&mut self, at: TaskKey, actor: ActorKey) {
        if self.actors[actor].creator == Some(at) {
            self.actors.pending.remove(at);
            self.work.needs_dispatch = true;
        } else if !self.tasks[at].is_gated {
            // A gated call is skipped when its gate opens.
            self.actors[actor].ready_calls.remove(&self.tasks[at].number);
        }
    }

    /// Fails a call that can never start, if it is in no worker.
    pub(crate) fn fail_deadlocked(&mut self, id: TaskId, fault: Fault) {
        let is_method = |at: &TaskKey| self.is_method(*at);
        if let Some(at) = self.ids.find_task(id).filter(is_method)
            && matches!(self.tasks[at].state, TaskPhase::Waiting | TaskPhase::Queued)
        {
            self.work.add(WorkItem::Fail(at, self.error(at, fault)));
        }
    }

    /// Handles a finished attempt of a call.
    pub(crate) fn call_attempt_finished(
        &mut self,
        at: TaskKey,
        attempt: Attempt,
        worker: WorkerKey,
        outcome: Outcome<V>,
        nanos: u64,
    ) {
        let task = &self.tasks[at];
        let Some(actor) = task.actor.filter(|_| task.worker == Some(worker) && task.attempt == attempt) else {
            return self.discard(self.tasks[at].id, outcome);
        };
        self.unassign_call(actor, at);
        self.classes.get_mut(self.tasks[at].class).record_duration(nanos);
        self.finish_in(at, worker, outcome);
        if self.actors.get(actor).is_some() {
            self.assign_calls(actor);
        }
    }

    /// Removes a call from the calls of its actor's worker.
    fn unassign_call(&mut self, actor: ActorKey, at: TaskKey) {
        let assigned = &mut self.actors[actor].assigned;
        // It is the first one in most cases.
        if let Some(place) = assigned.iter().position(|call| *call == at) {
            assigned.remove(place);
        }
        self.tasks[at].worker = None;
    }

    /// Updates the actor after a call has finished for good.
    pub(crate) fn finish_call(&mut self, at: TaskKey, actor: ActorKey) {
        let task = &mut self.tasks[at];
        // The actor's record may be removed before the record of the call.
        task.actor = None;
        let (caller, was_gated) = (task.parent, std::mem::take(&mut task.is_gated));
        let record = &mut self.actors[actor];
        record.calls -= 1;
        let handle = record.id.handle();
        if let Some(caller) = caller.filter(|_| was_gated) {
            self.open_gate(actor, caller);
            self.assign_calls(actor);
        }
        match self.ids.find_object(handle) {
            Some(handle) => self.unpin(handle),
            None => self.forget_if_unused(ActorId(handle.0)),
        }
    }

    /// Removes a call together with its job.
    pub(crate) fn forget_call(&mut self, at: TaskKey) {
        let task = &self.tasks[at];
        let Some(actor) = task.actor.filter(|_| !task.has_finished()) else { return };
        if let Some(worker) = task.worker {
            if task.cancellation == Cancellation::None {
                let (worker, task, attempt) = (self.cluster.workers[worker].id, task.id, task.attempt);
                self.work.act(Action::Withdraw { worker, task, attempt });
            }
            self.unassign_call(actor, at);
        } else if task.state == TaskPhase::Queued {
            self.dequeue_of_actor(at, actor);
        }
        self.tasks[at].state = TaskPhase::Waiting;
        self.finish_call(at, actor);
    }
}
