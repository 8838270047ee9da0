//! Actors: creation, lookup, calls, and their end.

use std::borrow::Cow;
use std::sync::Arc;

use sandbar_core::{
    ActorId, ActorOptions, Argument, Attempt, Code, Fault, JobId, ObjectId, TaskError, TaskId, WorkerId,
};
use sandbar_sched::{
    ActorSpec, Event, Failure, Outcome, ParentRef, ResourceSet, Scheduler, Submission, SubmissionKind,
};
use sandbar_worker::program::{NodeMessage, TaskRole};

use super::context::Context;
use super::effects::Effect;
use super::refs::AttemptRef;
use super::values::StoredValue;
use crate::calls::{ActorCreation, TaskPayload};
use crate::encoding::AlwaysEncodes;

/// Returns the scheduler's description of an actor that a task of a job creates.
pub(super) fn actor_spec(cx: &mut Context, job: JobId, name: Option<&str>, options: &ActorOptions) -> ActorSpec {
    ActorSpec {
        name: name.map(Arc::from),
        detached: options.detached.then(|| cx.detached_job(job)),
        restarts_max: options.max_restarts,
        calls_max: options.max_pending_calls.unwrap_or(u64::MAX),
    }
}

/// How a worker starts a task.
pub(super) struct TaskStart<'c> {
    pub(super) role: TaskRole,
    pub(super) function: u32,
    /// Objects that are delivered before.
    pub(super) needs: Cow<'c, [ObjectId]>,
    /// Objects contained in its arguments that it may keep.
    pub(super) refs: &'c [ObjectId],
    pub(super) arguments: Cow<'c, [u8]>,
}

/// Returns how a worker starts a task. An actor with a checkpoint is restored from it.
pub(super) fn task_start<'c>(
    scheduler: &Scheduler<TaskPayload, StoredValue>,
    task: TaskId,
    call: &'c TaskPayload,
) -> TaskStart<'c> {
    let as_called = |role| TaskStart {
        role,
        function: call.function,
        needs: Cow::Borrowed(&call.needs),
        refs: &call.refs,
        arguments: Cow::Borrowed(&call.arguments),
    };
    let Some(creation) = &call.creation else {
        if call.is_generator()
            && let Some(stream) = scheduler.stream(task.returns(0))
        {
            return as_called(TaskRole::Generator(stream.buffer));
        }
        let Some(actor) = scheduler.actor_of(task) else { return as_called(TaskRole::Plain) };
        let created_by = scheduler.task(actor.creation_task()).map_or(Attempt(0), |creation| creation.attempt);
        return as_called(TaskRole::ActorCall(actor.0, created_by.0, call.timeout().is_some()));
    };
    let role = TaskRole::CreateActor(creation.settings);
    let checkpoint = scheduler.actor(ActorId(task.0)).and_then(|actor| actor.checkpoint).or(creation.checkpoint);
    match (checkpoint, creation.restore) {
        (Some(checkpoint), Some(function)) => {
            let arguments = [Argument::Object(checkpoint)][..].encode();
            let needs = Cow::Owned(vec![checkpoint]);
            TaskStart { role, function, needs, refs: &[], arguments: Cow::Owned(arguments) }
        }
        _ => as_called(role),
    }
}

/// Returns how an actor that has not ended was created, if this node owns it.
pub(super) fn creation(cx: &Context, actor: ActorId) -> Option<&ActorCreation> {
    cx.scheduler.call(actor.creation_task())?.creation.as_deref()
}

/// Submits a task. The creation of an actor may return an existing actor of the same name. Returns the task if it is to be
/// submitted.
pub(super) fn reuse_named(
    cx: &mut Context,
    worker: WorkerId,
    task: Submission<TaskPayload>,
) -> Option<Submission<TaskPayload>> {
    let existing = match (&task.kind, &task.call.creation) {
        (SubmissionKind::ActorCreation(spec), Some(creation)) if creation.options.get_if_exists => {
            spec.name.as_ref().and_then(|name| cx.scheduler.actor_named(task.job, name))
        }
        _ => None,
    };
    let Some(existing) = existing else { return Some(task) };
    let value = Some(existing.0).encode();
    let outcome = Outcome::Succeeded(vec![(StoredValue::Inline(value.into()), vec![existing.handle()])]);
    let task = Submission { kind: SubmissionKind::Function, demand: ResourceSet::default(), ..task };
    cx.step(Event::FinishedInline { task, worker, outcome, nanos: 0 });
    None
}

/// Replies to a task that looks up a named actor, as if the task had run a task that returns the handle.
pub(super) fn find(cx: &mut Context, worker: WorkerId, id: TaskId, parent: AttemptRef, name: &str) {
    let AttemptRef { task: parent, attempt } = parent;
    let (Some(job), Some(call)) = (cx.scheduler.job_of(parent), cx.scheduler.call(parent)) else { return };
    let call = TaskPayload::new(call.program.clone(), call.function, call.seed, Box::default(), cx.time.nanos);
    let outcome = match cx.scheduler.actor_named(job, name) {
        Some(actor) => {
            let value = actor.0.encode();
            Outcome::Succeeded(vec![(StoredValue::Inline(value.into()), vec![actor.handle()])])
        }
        None => {
            let fault = Fault::new(Code::NoActor, format!("there is no actor `{name}`"));
            let error = Arc::new(TaskError { fault, chain: Vec::new() });
            Outcome::Failed(Failure { error, system: false })
        }
    };
    let name = cx.ids.names.intern("find".to_owned());
    let parent = ParentRef { task: parent, attempt, worker };
    let task = Submission { parent: Some(parent), ..Submission::bare(id, job, name, call) };
    cx.step(Event::FinishedInline { task, worker, outcome, nanos: 0 });
}

/// Returns whether a worker holds an actor's handle, and so may kill it.
pub(super) fn holds_handle(cx: &Context, worker: WorkerId, actor: ActorId) -> bool {
    let is_holder = |(holder, _): &(WorkerId, u32)| *holder == worker;
    cx.scheduler.object(actor.handle()).is_some_and(|handle| handle.holders.iter().any(is_holder))
}

/// Returns whether a task of a worker may kill an actor, as it may use its handle. The worker may hold handles of other jobs
/// of its tenant as well.
pub(super) fn may_kill(cx: &Context, worker: WorkerId, task: TaskId, actor: ActorId) -> bool {
    let view = cx.scheduler.task(task).filter(|view| view.worker == Some(worker));
    view.is_some() && cx.scheduler.may_use(task, actor.handle())
}

/// Returns whether a worker runs an attempt of a call.
pub(super) fn runs_call(cx: &Context, worker: WorkerId, call: TaskId, attempt: Attempt) -> bool {
    cx.scheduler.task(call).is_some_and(|view| view.worker == Some(worker) && view.attempt == attempt)
}

/// Takes back a call of an actor, unless it runs or waits within the actor's code.
pub(super) fn withdraw(cx: &mut Context, worker: WorkerId, task: TaskId, attempt: Attempt) {
    if let Some(actor) = cx.scheduler.actor_of(task) {
        cx.send(worker, &NodeMessage::WithdrawCall(actor.0, task.0, attempt.0));
    }
}

/// Cancels the task of an object for a task of the same job. A call of an actor ends wherever it is, as after its time limit.
/// (A call that is cancelled with its parent runs on: others call that actor too.)
pub(super) fn cancel(cx: &mut Context, object: ObjectId, by: TaskId, recursive: bool) {
    let Some(task) = cx.scheduler.producer(object) else { return };
    if cx.scheduler.job_of(by).is_none_or(|job| cx.scheduler.job_of(task) != Some(job)) {
        return;
    }
    cx.push(Effect::EndCall(task));
    cx.push(Effect::Step(Box::new(Event::Cancelled { task, recursive })));
}

#[cfg(test)]
mod tests {
    use sandbar_core::{JobRun, Limits, TenantId};
    use sandbar_sched::WorkerKind;
    use sandbar_worker::CompiledComponent;

    use super::super::simulation::idle_engine;
    use super::*;
    use crate::calls::Program;

    /// A task may name any number, and a worker may hold handles for several jobs of a tenant.
    #[test]
    fn tasks_kill_actors_of_their_job_alone() {
        /// An empty list.
        const NO_ARGUMENTS: [u8; 1] = [0];
        let mut engine = idle_engine(4);
        let compiled = Arc::new(CompiledComponent::placeholder().unwrap());
        let program = Arc::new(Program { compiled, limits: Limits::default(), tasks: Vec::new() });
        let [(first, one), (second, other)] = [(JobId(11), TaskId(1)), (JobId(12), TaskId(2))].map(|(job, task)| {
            engine.cx.start_job(job, TenantId(7), JobRun::default(), None);
            let worker = engine.workers.start(&mut engine.cx, WorkerKind::Driver(job)).unwrap();
            let call = TaskPayload::new(program.clone(), 0, 0, NO_ARGUMENTS.into(), 0);
            engine.cx.step(Event::Submitted { task: Submission::bare(task, job, "main".into(), call) });
            engine.run_effects();
            (worker, task)
        });
        let (object, value) = (ObjectId(50), StoredValue::Inline(Box::default()));
        engine.cx.step(Event::Put { object, task: one, worker: first, value, refs: Vec::new() });
        let may_kill = |worker, task| may_kill(&engine.cx, worker, task, ActorId(object.0));
        assert_eq!([may_kill(first, one), may_kill(second, other), may_kill(first, other)], [true, false, false]);
    }
}
