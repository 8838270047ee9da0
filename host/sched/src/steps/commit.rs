//! Results of attempts. A result counts once, if it comes from the worker and the attempt that the task was assigned
//! to.

use std::sync::Arc;

use sandbar_core::{Attempt, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::{Action, Failure, Outcome, WorkerKind};
use crate::records::keys::{ObjectKey, TaskKey, WorkerKey};
use crate::records::tasks::{Cancellation, FinalState, TaskPhase};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    pub(crate) fn attempt_finished(
        &mut self,
        id: TaskId,
        attempt: Attempt,
        worker: WorkerId,
        outcome: Outcome<V>,
        nanos: u64,
    ) {
        let Some(at) = self.cluster.workers.find(worker) else { return self.discard(id, outcome) };
        if let Some(task) = self.ids.find_task(id).filter(|task| self.is_method(*task)) {
            return self.call_attempt_finished(task, attempt, at, outcome, nanos);
        }
        if self.cluster.workers[at].actors.get(&id).is_some_and(|assigned| assigned.attempt == attempt) {
            return self.actor_exited(id, at, outcome);
        }
        let workers = &self.cluster.workers;
        let assigned = if let Some(place) = self.cluster.position(at, id)
            && workers[at].assigned[place].attempt == attempt
        {
            self.cluster.unassign(at, place, &mut self.queue)
        } else if let Some(place) = self.cluster.position_blocked(at, id)
            && workers[at].blocked[place].attempt == attempt
        {
            self.cluster.unassign_blocked(at, place, &mut self.queue)
        } else {
            None
        };
        let Some(assigned) = assigned else { return self.discard(id, outcome) };
        self.cluster.workers[at].was_stolen_from = false;
        self.assignments_changed(at);
        let Some(task) = assigned.task else { return self.discard(id, outcome) };
        self.tasks[task].worker = None;
        self.classes.get_mut(self.tasks[task].class).record_duration(nanos);
        match self.created_by(task) {
            Some(actor) => self.creation_finished(actor, task, at, assigned, outcome),
            None => self.finish(task, outcome, false),
        }
    }

    /// Like [`Scheduler::finish`], for a creation task or a call that was in this worker. The result of a remote
    /// scheduler is final.
    pub(crate) fn finish_in(&mut self, at: TaskKey, worker: WorkerKey, outcome: Outcome<V>) {
        self.finish(at, outcome, self.cluster.workers[worker].kind == WorkerKind::PeerProxy);
    }

    /// Handles the result of an attempt whose task is in no worker any more. A final failure is not retried.
    pub(crate) fn finish(&mut self, at: TaskKey, outcome: Outcome<V>, is_final: bool) {
        let task = &mut self.tasks[at];
        task.state = TaskPhase::Waiting;
        match outcome {
            Outcome::Succeeded(values) if task.cancellation == Cancellation::None => match self.contents(at, &values) {
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
                let error = self.error(at, self.cancellation_fault(at));
                let end = FinalState::from_error(&error);
                self.finish_with_error(at, error, end);
            }
            Outcome::Failed(failure) => self.finish_failed(at, failure, is_final),
        }
    }

    fn finish_failed(&mut self, at: TaskKey, failure: Failure, is_final: bool) {
        let retry_on = self.classes.get(self.tasks[at].class).spec.retry_on;
        let may_help = !is_final && retry_on.allows(failure.error.fault.code, failure.system);
        self.fail_attempt(at, failure.error, may_help);
    }

    /// Checks the number of returned values. Returns the objects that they contain.
    pub(crate) fn contents(&self, at: TaskKey, values: &[(V, Vec<ObjectId>)]) -> Result<Vec<Vec<ObjectKey>>, Fault> {
        let task = &self.tasks[at];
        if values.len() != task.returns as usize {
            let message = format!("returned {} values instead of {}", values.len(), task.returns);
            return Err(Fault::new(Code::BadOutput, message));
        }
        self.has_room_for_values(task.job, values.iter().map(|(value, _)| value))?;
        if values.iter().all(|(_, refs)| refs.is_empty()) {
            return Ok(Vec::new());
        }
        values.iter().map(|(_, refs)| self.all_usable(task.job, refs)).collect()
    }

    /// Finishes a task with its values. Empty `contents` means that no value contains objects.
    fn commit(&mut self, at: TaskKey, values: Vec<(V, Vec<ObjectId>)>, contents: Vec<Vec<ObjectKey>>) {
        let may_be_lost = values.iter().any(|(value, _)| self.can_be_lost(value)) && !self.has_stream(at);
        if self.tasks[at].lineage.is_some() || may_be_lost {
            self.keep_lineage(at);
        }
        let contents = contents.into_iter().chain(std::iter::repeat_with(Vec::new));
        for ((index, (value, _)), contents) in (0..).zip(values).zip(contents) {
            match self.pending_return(at, index) {
                Some(object) => self.set_ready(object, value, contents),
                // The task runs again, and this return was not lost.
                None => self.work.act(Action::Drop { object: self.tasks[at].id.returns(index), value }),
            }
        }
        self.finish_task(at, FinalState::Succeeded, Ok(()));
    }

    /// Drops the values of a result that does not count.
    pub(crate) fn discard(&mut self, id: TaskId, outcome: Outcome<V>) {
        let Outcome::Succeeded(values) = outcome else { return };
        for (index, (value, _)) in (0u64..).zip(values) {
            self.work.act(Action::Drop { object: ObjectId(id.0.saturating_add(index)), value });
        }
    }
}
