//! What became of attempts: a result counts once, from the worker and the attempt that it was asked of.

use std::sync::Arc;

use sandbar_core::{Attempt, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::{Action, Failure, Outcome, Role};
use crate::places::{ObjectAt, TaskAt, WorkerAt};
use crate::scheduler::Scheduler;
use crate::tasks::{End, State, Stop, end_of};

impl<C, V> Scheduler<C, V> {
    pub(crate) fn finished(&mut self, id: TaskId, attempt: Attempt, worker: WorkerId, outcome: Outcome<V>, nanos: u64) {
        let Some(at) = self.cluster.find(worker) else { return self.discard(id, outcome) };
        if let Some(task) = self.find_task(id).filter(|task| self.is_method(*task)) {
            return self.finished_call(task, attempt, at, outcome, nanos);
        }
        if self.cluster.workers[at].residents.get(&id).is_some_and(|given| given.attempt == attempt) {
            return self.finished_resident(id, at, outcome);
        }
        let workers = &self.cluster.workers;
        let given = if let Some(place) = self.cluster.position(at, id)
            && workers[at].given[place].attempt == attempt
        {
            self.cluster.take_given(at, place, &mut self.queue)
        } else if let Some(place) = self.cluster.position_blocked(at, id)
            && workers[at].blocked[place].attempt == attempt
        {
            self.cluster.take_blocked(at, place, &mut self.queue)
        } else {
            None
        };
        let Some(given) = given else { return self.discard(id, outcome) };
        self.cluster.workers[at].is_robbed = false;
        self.changed(at);
        let Some(task) = given.task else { return self.discard(id, outcome) };
        self.tasks[task].worker = None;
        self.classes.get_mut(self.tasks[task].class).took(nanos);
        match self.made_by(task) {
            Some(actor) => self.finished_making(actor, task, (at, given), outcome),
            None => self.finish(task, outcome, false),
        }
    }

    /// As [`Scheduler::finish`], of what has to do with an actor and was in this worker. What another scheduler says is final.
    pub(crate) fn finish_in(&mut self, at: TaskAt, worker: WorkerAt, outcome: Outcome<V>) {
        self.finish(at, outcome, self.cluster.workers[worker].role == Role::Peer);
    }

    /// What became of an attempt of a task that is in no worker any more. It is not begun again after what is final.
    pub(crate) fn finish(&mut self, at: TaskAt, outcome: Outcome<V>, is_final: bool) {
        let task = &mut self.tasks[at];
        task.state = State::Waiting;
        match outcome {
            Outcome::Succeeded(values) if task.stop == Stop::No => match self.contents(at, &values) {
                Ok(contents) => self.commit(at, values, contents),
                Err(fault) => {
                    self.discard(self.tasks[at].id, Outcome::Succeeded(values));
                    let error = Arc::new(TaskError { fault, chain: Vec::new() });
                    self.finish_failed(at, Failure { error, system: false }, is_final);
                }
            },
            Outcome::Succeeded(_) => {
                let id = task.id;
                self.discard(id, outcome);
                let error = self.error(at, self.stopped(at));
                let end = end_of(&error);
                self.end_failed(at, error, end);
            }
            Outcome::Failed(failure) => self.finish_failed(at, failure, is_final),
        }
    }

    fn finish_failed(&mut self, at: TaskAt, failure: Failure, is_final: bool) {
        let retry_on = self.classes.get(self.tasks[at].class).kind.retry_on;
        let may_help = !is_final && retry_on.allows(failure.error.fault.code, failure.system);
        self.fail_attempt(at, failure.error, may_help);
    }

    /// What the values of a task contain, if they are as many as it returns and contain what they may.
    pub(crate) fn contents(&self, at: TaskAt, values: &[(V, Vec<ObjectId>)]) -> Result<Vec<Vec<ObjectAt>>, Fault> {
        let task = &self.tasks[at];
        if values.len() != task.returns as usize {
            let message = format!("handed back {} values, it returns {}", values.len(), task.returns);
            return Err(Fault::new(Code::BadOutput, message));
        }
        if values.iter().all(|(_, refs)| refs.is_empty()) {
            return Ok(Vec::new());
        }
        values.iter().map(|(_, refs)| self.all_usable(task.job, refs)).collect()
    }

    /// A task has succeeded. No `contents` means that no value contains any.
    fn commit(&mut self, at: TaskAt, values: Vec<(V, Vec<ObjectId>)>, contents: Vec<Vec<ObjectAt>>) {
        let may_be_lost = values.iter().any(|(value, _)| self.can_be_lost(value)) && !self.has_stream(at);
        if self.tasks[at].lineage.is_some() || may_be_lost {
            self.keep_lineage(at);
        }
        let contents = contents.into_iter().chain(std::iter::repeat_with(Vec::new));
        for ((index, (value, _)), contents) in (0..).zip(values).zip(contents) {
            match self.pending_return(at, index) {
                Some(object) => self.set_ready(object, value, contents),
                // It has ended before, and this was not lost.
                None => self.out.push(Action::Drop { object: self.tasks[at].id.returns(index), value }),
            }
        }
        self.end(at, End::Succeeded, Ok(()));
    }

    /// Values that nobody asked for, or not any more.
    pub(crate) fn discard(&mut self, id: TaskId, outcome: Outcome<V>) {
        let Outcome::Succeeded(values) = outcome else { return };
        for (index, (value, _)) in (0u64..).zip(values) {
            self.out.push(Action::Drop { object: ObjectId(id.0.saturating_add(index)), value });
        }
    }
}
