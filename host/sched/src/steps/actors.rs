//! Actors: created by a task that lives as long as they do, restarted after failures, and killed when no handle is
//! left.

use std::sync::Arc;

use sandbar_core::{ActorId, Attempt, Code, Fault, JobId, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::{Action, ActorSpec, Outcome, Submission, SubmissionKind, WorkerKind};
use crate::records::actors::Actor;
use crate::records::keys::{ActorKey, JobKey, NumberedTask, TaskKey, WorkerKey};
use crate::records::object::{Object, ObjectOutcome};
use crate::records::step_work::WorkItem;
use crate::records::tasks::{Cancellation, FinalState, Task, TaskPhase};
use crate::records::workers::AssignedTask;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Returns the actor that a creation task creates.
    pub(crate) fn created_by(&self, at: TaskKey) -> Option<ActorKey> {
        let actor = self.tasks[at].actor?;
        (self.actors[actor].creator == Some(at)).then_some(actor)
    }

    /// Whether a task is a method call.
    pub(crate) fn is_method(&self, at: TaskKey) -> bool {
        self.tasks[at].actor.is_some_and(|actor| self.actors[actor].creator != Some(at))
    }

    /// Checks the actor part of a submission.
    pub(crate) fn admit_actor<D>(&self, job: JobKey, submission: &Submission<D>) -> Result<(), Fault> {
        match &submission.kind {
            SubmissionKind::Function | SubmissionKind::Generator(_) | SubmissionKind::Lease => Ok(()),
            SubmissionKind::Method(actor) => self.callable(job, *actor).map(|_| ()),
            SubmissionKind::ActorCreation(spec) => {
                if submission.returns != 1 {
                    return Err(Fault::new(
                        Code::BadRequest,
                        "a task that creates an actor must return one object, the handle",
                    ));
                }
                if spec.detached.is_some() && !(submission.dependencies.is_empty() && submission.refs.is_empty()) {
                    let message = "is detached and takes objects of its job: pass values instead";
                    return Err(Fault::new(Code::BadRequest, message));
                }
                let (usage, limits) = self.cluster.tenants.usage(self.jobs[job].tenant);
                limits.check_actor(usage)?;
                match self.actors.taken_name(&self.jobs[job], spec) {
                    Some(name) => Err(Fault::new(Code::NameTaken, format!("there is an actor `{name}` already"))),
                    None => Ok(()),
                }
            }
        }
    }

    /// Returns the actor that tasks of a job find under a name.
    pub fn actor_named(&self, job: JobId, name: &str) -> Option<ActorId> {
        self.actors.find_named(&self.jobs[self.jobs.find(job)?], name)
    }

    /// Returns an actor, if tasks of a job may call it.
    fn callable(&self, job: JobKey, id: ActorId) -> Result<ActorKey, Fault> {
        let unknown = || Fault::new(Code::ActorDied, format!("actor {id} does not exist or was removed"));
        let at = self.find_actor(id).ok_or_else(unknown)?;
        let actor = &self.actors[at];
        if actor.job != job && (actor.spec.detached.is_none() || !self.is_same_tenant(actor.job, job)) {
            return Err(unknown());
        }
        if let Some(death_cause) = &actor.death_cause {
            return Err(death_cause.fault.clone());
        }
        if self.ids.find_object(actor.id.handle()).is_none() {
            return Err(unknown());
        }
        if actor.calls >= actor.spec.calls_max {
            let message = format!("actor {id} has {} unfinished calls, which is its limit", actor.calls);
            return Err(Fault::new(Code::PendingCalls, message));
        }
        Ok(at)
    }

    /// Returns the actor of a handle. A handle is the return of the creation task, or an object whose value is such a
    /// handle.
    pub(crate) fn find_actor(&self, id: ActorId) -> Option<ActorKey> {
        if let Some(at) = self.actors.find(id) {
            return Some(at);
        }
        match self.objects[self.ids.find_object(id.handle())?].contents() {
            [meant] => self.actors.find(ActorId(self.objects[*meant].id.0)),
            _ => None,
        }
    }

    /// Whether tasks of a job may use an object of another job: it is the handle of a detached actor of the same tenant.
    pub(crate) fn is_shared(&self, object: &Object<V>, job: JobKey) -> bool {
        let actor = self.actors.find(ActorId(object.id.0)).map(|at| &self.actors[at]);
        object.index == Some(0)
            && actor.is_some_and(|actor| actor.spec.detached.is_some())
            && self.is_same_tenant(object.job, job)
    }

    fn is_same_tenant(&self, one: JobKey, other: JobKey) -> bool {
        self.jobs[one].tenant == self.jobs[other].tenant
    }

    /// Registers the actor of a new creation task.
    pub(crate) fn add_actor(&mut self, creator: TaskKey, spec: ActorSpec) {
        let (id, job) = (ActorId(self.tasks[creator].id.0), self.tasks[creator].job);
        if spec.detached.is_some()
            && let Some(handle) = self.ids.find_object(id.handle())
        {
            self.pin(handle);
        }
        self.count(job, |usage| usage.actors += 1);
        let actor = Actor { creator: Some(creator), ..Actor::new(id, job, spec) };
        let at = self.actors.insert(actor, &self.jobs[job]);
        self.tasks[creator].actor = Some(at);
    }

    /// Handles the result of a creation task.
    pub(crate) fn creation_finished(
        &mut self,
        actor: ActorKey,
        creator: TaskKey,
        worker: WorkerKey,
        assigned: AssignedTask,
        outcome: Outcome<V>,
    ) {
        let is_good = |values: &[(V, Vec<ObjectId>)]| self.contents(creator, values).is_ok();
        match outcome {
            Outcome::Succeeded(values)
                if self.tasks[creator].cancellation == Cancellation::None && is_good(&values) =>
            {
                let task = &mut self.tasks[creator];
                (task.state, task.worker) = (TaskPhase::HostsActor, Some(worker));
                self.cluster.host_actor(worker, assigned, &mut self.queue);
                self.actors[actor].worker = Some(worker);
                self.set_handle(actor, values);
                self.assign_calls(actor);
            }
            outcome => {
                if matches!(outcome, Outcome::Succeeded(_)) {
                    // The scheduler does not keep the actor.
                    let (task, worker) = (&self.tasks[creator], self.cluster.workers[worker].id);
                    self.work.act(Action::Interrupt { worker, task: task.id, attempt: task.attempt });
                }
                self.finish_in(creator, worker, outcome);
            }
        }
    }

    /// Sets the value of the handle when the actor is created. A restart keeps the first value.
    fn set_handle(&mut self, actor: ActorKey, values: Vec<(V, Vec<ObjectId>)>) {
        let id = self.actors[actor].id.handle();
        for (value, refs) in values {
            match self.ids.find_object(id).filter(|at| self.objects[*at].is_pending()) {
                Some(at) => {
                    let contents = refs.iter().filter_map(|object| self.ids.find_object(*object)).collect();
                    self.set_ready(at, value, contents);
                }
                None => self.work.act(Action::Drop { object: id, value }),
            }
        }
    }

    /// Handles the end of a hosted actor. The worker has reported its started calls before.
    pub(crate) fn actor_exited(&mut self, id: TaskId, worker: WorkerKey, outcome: Outcome<V>) {
        let assigned = self.cluster.remove_actor(worker, id, &mut self.queue);
        self.work.needs_dispatch = true;
        let Some(creator) = assigned.and_then(|assigned| assigned.task) else { return self.discard(id, outcome) };
        let error = match outcome {
            Outcome::Failed(failure) => failure.error,
            outcome => {
                self.discard(id, outcome);
                self.error(creator, Fault::new(Code::ActorDied, "it has ended"))
            }
        };
        let calls = self.take_calls(creator);
        let may_help = self.cluster.workers[worker].kind != WorkerKind::PeerProxy;
        self.lose_actor(creator, calls, &|_| false, error, may_help);
    }

    /// Takes an actor out of its worker. Returns the calls that the worker had.
    pub(crate) fn take_calls(&mut self, creator: TaskKey) -> Vec<TaskKey> {
        let task = &mut self.tasks[creator];
        (task.state, task.worker) = (TaskPhase::Waiting, None);
        task.actor.map_or_else(Vec::new, |actor| self.take_calls_of(actor))
    }

    /// Takes back the calls that an actor's worker had. They are in no queue and no worker then.
    pub(crate) fn take_calls_of(&mut self, actor: ActorKey) -> Vec<TaskKey> {
        let actor = &mut self.actors[actor];
        actor.worker = None;
        let calls: Vec<TaskKey> = actor.assigned.drain(..).collect();
        for call in &calls {
            let call = &mut self.tasks[*call];
            (call.state, call.worker) = (TaskPhase::Waiting, None);
        }
        calls
    }

    /// Handles the loss of an actor with these assigned calls. Started calls fail. `may_help` is set if a restart
    /// may help.
    pub(crate) fn lose_actor(
        &mut self,
        creator: TaskKey,
        calls: Vec<TaskKey>,
        has_started: &dyn Fn(TaskId) -> bool,
        error: Arc<TaskError>,
        may_help: bool,
    ) {
        for call in calls {
            if has_started(self.tasks[call].id) || self.tasks[call].child.is_some() {
                self.cancel_descendants(call);
                let message = format!("the actor died during the call: {}", error.fault.message);
                let error = TaskError { fault: Fault::new(Code::ActorDied, message), chain: Vec::new() };
                self.fail_attempt(call, Arc::new(error), true);
            } else {
                self.requeue(call);
            }
        }
        self.cancel_descendants(creator);
        self.fail_attempt(creator, error, may_help);
    }

    /// Handles a failed creation or the loss of an actor: restarts it or ends it.
    pub(crate) fn fail_actor(&mut self, actor: ActorKey, creator: TaskKey, error: Arc<TaskError>, may_help: bool) {
        let task = &mut self.tasks[creator];
        if task.cancellation != Cancellation::None {
            let error = self.error(creator, self.cancellation_fault(creator));
            self.end_actor(actor, creator, &error, FinalState::from_error(&error));
        } else if may_help && task.retries() < self.actors[actor].spec.restarts_max {
            task.attempt.0 += 1;
            self.cancel_descendants(creator);
            self.ready(creator);
        } else {
            let error = self.with_chain(creator, error);
            self.end_actor(actor, creator, &error, FinalState::Failed);
        }
    }

    /// Ends a dead actor: all of its calls fail.
    pub(crate) fn end_actor(&mut self, actor: ActorKey, creator: TaskKey, error: &Arc<TaskError>, end: FinalState) {
        let reason = match end {
            FinalState::Cancelled => "was killed, or its last handle was dropped".to_owned(),
            _ => format!("has died: {}", error.fault.message),
        };
        let name = self.classes.get(self.tasks[creator].class).spec.name.clone();
        let fault = Fault::new(Code::ActorDied, format!("actor `{name}` {reason}"));
        let death_cause = Arc::new(TaskError { fault, chain: error.chain.clone() });
        self.remove_name(actor);
        let record = &mut self.actors[actor];
        record.death_cause = Some(death_cause.clone());
        let (id, checkpoint, detached) = (record.id, record.checkpoint.take(), record.spec.detached.is_some());
        self.fail_calls(actor, &death_cause);
        if let Some(checkpoint) = checkpoint {
            self.unpin(checkpoint);
        }
        if let Some(handle) = self.ids.find_object(id.handle()) {
            if self.objects[handle].is_pending() {
                self.set_failed(handle, &death_cause);
            }
            if detached {
                self.unpin(handle);
            }
        }
        self.finish_task(creator, end, Err(error.clone()));
    }

    /// Fails the waiting calls of a dead actor.
    pub(crate) fn fail_calls(&mut self, actor: ActorKey, death_cause: &TaskError) {
        let record = &mut self.actors[actor];
        let (ready_calls, gates) = (std::mem::take(&mut record.ready_calls), std::mem::take(&mut record.gates));
        for call in ready_calls.into_values() {
            self.tasks[call].state = TaskPhase::Waiting;
            self.fail_with_death(call, death_cause);
        }
        for (number, call) in gates.into_values().flatten() {
            if let Some(task) =
                self.tasks.get_numbered_mut(NumberedTask { task: call, number }).filter(|task| !task.has_finished())
            {
                (task.state, task.is_gated) = (TaskPhase::Waiting, false);
                self.fail_with_death(call, death_cause);
            }
        }
    }

    /// Schedules the failure of a call of a dead actor.
    pub(crate) fn fail_with_death(&mut self, call: TaskKey, death_cause: &TaskError) {
        let error = self.error(call, death_cause.fault.clone());
        self.work.add(WorkItem::Fail(call, error));
    }

    fn remove_name(&mut self, actor: ActorKey) {
        self.actors.remove_name(actor, &self.jobs[self.actors[actor].job]);
    }

    /// Updates the actor after its creation task or one of its calls has finished.
    pub(crate) fn actor_task_finished(&mut self, at: TaskKey, actor: ActorKey) {
        if self.actors[actor].creator != Some(at) {
            return self.finish_call(at, actor);
        }
        let record = &mut self.actors[actor];
        record.creator = None;
        let id = record.id;
        self.count(self.tasks[at].job, |usage| usage.actors -= 1);
        // The actor's record may be removed before the record of the creation task, which is a plain task now.
        self.tasks[at].actor = None;
        self.forget_if_unused(id);
    }

    /// Kills an actor whose last handle was dropped. Unfinished calls keep a handle.
    pub(crate) fn drop_handle(&mut self, object: ObjectId) {
        let id = ActorId(object.0);
        let Some(actor) = self.actors.find(id) else { return };
        match self.actors[actor].creator {
            Some(creator) => self.cancel_task(creator, Cancellation::Task),
            None => self.forget_if_unused(id),
        }
    }

    /// Removes an actor that is dead and has no handles and no unfinished calls.
    pub(crate) fn forget_if_unused(&mut self, id: ActorId) {
        if self.ids.find_object(id.handle()).is_some() {
            return;
        }
        let is_unused = |actor: &Actor| actor.creator.is_none() && actor.calls == 0;
        if let Some(at) = self.actors.find(id).filter(|at| is_unused(&self.actors[*at])) {
            self.actors.remove(at);
        }
    }

    /// Returns the actors of a job.
    pub(crate) fn actors_of(&self, job: JobKey) -> Vec<ActorId> {
        self.actors.iter().filter(|(_, actor)| actor.job == job).map(|(_, actor)| actor.id).collect()
    }

    /// Ends an actor with its job, whose own calls are removed already. Calls of other jobs fail.
    pub(crate) fn orphan(&mut self, at: ActorKey) {
        let Some(creator) = self.actors[at].creator else { return };
        self.remove_name(at);
        self.actors.pending.remove(creator);
        self.tasks[creator].actor = None;
        let record = &mut self.actors[at];
        (record.creator, record.worker, record.checkpoint) = (None, None, None);
        let fault = Fault::new(Code::ActorDied, format!("actor {} ended with its job", record.id));
        let death_cause = Arc::new(TaskError { fault, chain: Vec::new() });
        record.death_cause = Some(death_cause.clone());
        let gated = std::mem::take(&mut record.gates).into_values().flatten();
        // Keys in the gates may refer to removed calls.
        let is_left = |task: &Task<C>, number: u64| task.number == number && task.actor == Some(at);
        let gated = gated.filter(|(number, call)| self.tasks.get(*call).is_some_and(|task| is_left(task, *number)));
        let ready_calls = std::mem::take(&mut record.ready_calls).into_values();
        let calls: Vec<TaskKey> =
            record.assigned.drain(..).chain(ready_calls).chain(gated.map(|(_, call)| call)).collect();
        for call in calls {
            let task = &mut self.tasks[call];
            if !task.has_finished() {
                (task.state, task.worker, task.is_gated) = (TaskPhase::Waiting, None, false);
                self.fail_with_death(call, &death_cause);
            }
        }
    }

    pub(crate) fn kill_actor(&mut self, id: ActorId, restart: bool) {
        let Some(creator) = self.find_actor(id).and_then(|at| self.actors[at].creator) else { return };
        if !restart {
            return self.cancel_task(creator, Cancellation::Task);
        }
        let task = &self.tasks[creator];
        if let (TaskPhase::HostsActor, Some(worker), Cancellation::None) = (task.state, task.worker, task.cancellation)
        {
            let worker = self.cluster.workers[worker].id;
            self.work.act(Action::Interrupt { worker, task: task.id, attempt: task.attempt });
        }
    }

    pub(crate) fn checkpoint_actor(&mut self, id: ActorId, attempt: Attempt, worker: WorkerId, object: ObjectId) {
        let Some(worker) = self.cluster.workers.find(worker) else { return };
        let Some(at) = self.actors.find(id).filter(|at| self.actors[*at].worker == Some(worker)) else {
            return;
        };
        let is_now = self.actors[at].creator.is_some_and(|creator| self.tasks[creator].attempt == attempt);
        let job = self.actors[at].job;
        let is_there = |object: &Object<V>| object.job == job && matches!(object.value, ObjectOutcome::Ready(_));
        if let Ok(object) = self.usable(object, is_there)
            && is_now
        {
            self.pin(object);
            if let Some(before) = self.actors[at].checkpoint.replace(object) {
                self.unpin(before);
            }
        }
    }
}
