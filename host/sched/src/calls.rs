//! Calls of actors: each caller's in the order in which it submitted them, to where the actor is.

use sandbar_core::{ActorId, Attempt, Fault, TaskId};

use crate::actors::Actor;
use crate::event::{Action, Outcome};
use crate::places::{ActorAt, TaskAt, WorkerAt};
use crate::scheduler::Scheduler;
use crate::tasks::{State, Stop};

/// An actor's worker is given so many of its calls in advance.
const WINDOW: usize = 256;

impl<C, V> Scheduler<C, V> {
    /// A task was added that calls a method of an actor, which is there.
    pub(crate) fn add_call(&mut self, at: TaskAt, id: ActorId) {
        let Some(actor) = self.find_actor(id) else { unreachable!("it was admitted") };
        self.tasks[at].actor = Some(actor);
        self.actors[actor].calls += 1;
        if let Some(handle) = self.find_object(self.actors[actor].id.handle()) {
            self.pin(handle);
        }
    }

    /// A call waits for objects, for the first time or again, and later ones of its caller for it.
    pub(crate) fn gate(&mut self, at: TaskAt) {
        let Some(actor) = self.tasks[at].actor.filter(|_| self.is_method(at)) else { return };
        let task = &mut self.tasks[at];
        let Some(caller) = task.parent.filter(|_| !task.is_gated) else { return };
        task.is_gated = true;
        let number = task.number;
        let Actor { line, gates, .. } = &mut self.actors[actor];
        let gate = gates.entry(caller).or_default();
        gate.insert(number, at);
        // It may have stood in line before, and others of its caller behind it.
        let tasks = &mut self.tasks;
        let is_later = |_: &u64, call: &mut TaskAt| tasks[*call].parent == Some(caller);
        for (number, call) in line.extract_if(number.., is_later).collect::<Vec<_>>() {
            self.tasks[call].is_gated = true;
            gate.insert(number, call);
        }
    }

    /// A task of an actor has what it needs.
    pub(crate) fn enqueue_of_actor(&mut self, at: TaskAt, actor: ActorAt) {
        if self.actors[actor].maker == Some(at) {
            return self.enqueue_maker(at);
        }
        let task = &mut self.tasks[at];
        task.state = State::Queued;
        let (number, caller, is_gated) = (task.number, task.parent, task.is_gated);
        if let Some(died) = self.actors[actor].died.clone() {
            task.state = State::Waiting;
            return self.fail_of_death(at, &died);
        }
        match caller {
            Some(caller) if is_gated && self.actors[actor].gates.contains_key(&caller) => self.open(actor, caller),
            // What is begun again comes before those that wait.
            Some(caller) if !is_gated && self.is_behind(actor, caller, number) => {
                self.tasks[at].is_gated = true;
                self.actors[actor].gates.entry(caller).or_default().insert(number, at);
            }
            _ => {
                self.tasks[at].is_gated = false;
                self.actors[actor].line.insert(number, at);
            }
        }
        self.feed(actor);
    }

    /// Whether a call that waits for objects comes before this one of its caller.
    fn is_behind(&mut self, actor: ActorAt, caller: TaskAt, number: u64) -> bool {
        self.open(actor, caller);
        let gate = self.actors[actor].gates.get(&caller);
        gate.and_then(|gate| gate.first_key_value()).is_some_and(|(first, _)| *first < number)
    }

    /// Those of a caller's calls go on that need not wait any more.
    fn open(&mut self, actor: ActorAt, caller: TaskAt) {
        let Some(gate) = self.actors[actor].gates.get_mut(&caller) else { return };
        let mut free = Vec::new();
        while let Some(first) = gate.first_entry() {
            let (number, at) = (*first.key(), *first.get());
            let task = self.tasks.get_mut(at).filter(|task| task.number == number && !task.has_ended());
            match task {
                Some(task) if task.state == State::Waiting => break,
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
        self.actors[actor].line.extend(free);
    }

    /// Gives an actor's worker calls, if it has not enough.
    pub(crate) fn feed(&mut self, at: ActorAt) {
        let Some(worker) = self.actors[at].worker else { return };
        while self.actors[at].given.len() < WINDOW
            && let Some((_, call)) = self.actors[at].line.pop_first()
        {
            if self.tasks[call].stop != Stop::No {
                // It is about to fail.
                continue;
            }
            if self.lacks(call) {
                continue;
            }
            let task = &mut self.tasks[call];
            (task.state, task.worker) = (State::Given, Some(worker));
            let (id, attempt) = (task.id, task.attempt);
            self.actors[at].given.push_back(call);
            self.out.push(Action::Run { worker: self.cluster.workers[worker].id, task: id, attempt });
        }
    }

    /// Takes a task of an actor out of whatever line it stands in.
    pub(crate) fn dequeue_of_actor(&mut self, at: TaskAt, actor: ActorAt) {
        if self.actors[actor].maker == Some(at) {
            self.unplaced.remove(at);
            self.is_stale = true;
        } else if !self.tasks[at].is_gated {
            // What is gated is passed over when its turn comes.
            self.actors[actor].line.remove(&self.tasks[at].number);
        }
    }

    /// A call that no worker has fails: it can't ever begin.
    pub(crate) fn doom(&mut self, id: TaskId, fault: Fault) {
        let is_method = |at: &TaskAt| self.is_method(*at);
        if let Some(at) = self.find_task(id).filter(is_method)
            && matches!(self.tasks[at].state, State::Waiting | State::Queued)
        {
            self.failing.push((at, self.error(at, fault)));
        }
    }

    /// What became of a call.
    pub(crate) fn finished_call(
        &mut self,
        at: TaskAt,
        attempt: Attempt,
        worker: WorkerAt,
        outcome: Outcome<V>,
        nanos: u64,
    ) {
        let task = &self.tasks[at];
        let Some(actor) = task.actor.filter(|_| task.worker == Some(worker) && task.attempt == attempt) else {
            return self.discard(self.tasks[at].id, outcome);
        };
        self.take_given(actor, at);
        self.classes.get_mut(self.tasks[at].class).took(nanos);
        self.finish_in(at, worker, outcome);
        if self.actors.get(actor).is_some() {
            self.feed(actor);
        }
    }

    /// A call is not its actor's worker's any more.
    fn take_given(&mut self, actor: ActorAt, at: TaskAt) {
        let given = &mut self.actors[actor].given;
        // Mostly the first.
        if let Some(place) = given.iter().position(|call| *call == at) {
            given.remove(place);
        }
        self.tasks[at].worker = None;
    }

    /// A call has ended for good.
    pub(crate) fn ended_call(&mut self, at: TaskAt, actor: ActorAt) {
        let task = &mut self.tasks[at];
        // The actor's record may go before the call's.
        task.actor = None;
        let (caller, was_gated) = (task.parent, std::mem::take(&mut task.is_gated));
        let record = &mut self.actors[actor];
        record.calls -= 1;
        let handle = record.id.handle();
        if let Some(caller) = caller.filter(|_| was_gated) {
            self.open(actor, caller);
            self.feed(actor);
        }
        match self.find_object(handle) {
            Some(handle) => self.unpin(handle),
            None => self.forget_if_gone(ActorId(handle.0)),
        }
    }

    /// A call goes with its job.
    pub(crate) fn forget_call(&mut self, at: TaskAt) {
        let task = &self.tasks[at];
        let Some(actor) = task.actor.filter(|_| !task.has_ended()) else { return };
        if let Some(worker) = task.worker {
            if task.stop == Stop::No {
                let (worker, task, attempt) = (self.cluster.workers[worker].id, task.id, task.attempt);
                self.out.push(Action::Withdraw { worker, task, attempt });
            }
            self.take_given(actor, at);
        } else if task.state == State::Queued {
            self.dequeue_of_actor(at, actor);
        }
        self.tasks[at].state = State::Waiting;
        self.ended_call(at, actor);
    }
}
