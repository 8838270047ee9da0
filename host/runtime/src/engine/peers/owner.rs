//! The owner's side of remote tasks: tasks of this node that other nodes run, and actors that they host for it.

use std::borrow::Cow;
use std::sync::Arc;

use sandbar_core::{ActorId, ActorOptions, Attempt, Code, Fault, JobId, NodeId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_jobs::AttemptRecord;
use sandbar_sched::{Event, Failure, Outcome, TaskView};
use sandbar_worker::program::AttemptUsage;

use super::super::actors::creation;
use super::super::attempts::attempt_record;
use super::super::context::Context;
use super::super::effects::{Effect, JobEffect};
use super::super::refs::{AttemptRef, TaskInWorker};
use super::super::values::StoredValue;
use super::borrowed::Borrowed;
use super::limits::too_large_for_peers;
use super::peer_values::{OutgoingValue, VALUE_BYTES_MAX, outgoing_within, receive, return_value};
use super::proxy_tasks::ProxyTasks;
use crate::calls::TaskPayload;
use crate::peer::{Amounts, PeerMessage, PeerValue, RemoteActor, RemoteResults, RemoteTaskSpec, RemoteWork};

/// Number of retries of a call that stands for the default of its actor, which another node knows.
pub(super) const ACTOR_DEFAULT_RETRIES: u32 = u32::MAX;

/// Assigns a task to another node.
pub(super) fn assign(cx: &mut Context, proxies: &ProxyTasks, worker: WorkerId, task: TaskId) {
    let (Some(node), Some(call)) = (cx.peers.node_of(worker), cx.scheduler.call(task).cloned()) else { return };
    let (Some(work), Some(view)) = (remote_work(cx, task, &call), cx.scheduler.task(task)) else { return };
    let needs = needs(cx, task, &call);
    let objects = needs.len() + cx.scheduler.refs(task).count();
    if let Some(fault) = too_large_for_peers(view.returns, objects, call.arguments.len()) {
        // A call runs where its actor is, however large it is.
        let error = Arc::new(TaskError { fault, chain: Vec::new() });
        let outcome = Outcome::Failed(Failure { error, system: false });
        let attempt = view.attempt;
        return cx.step_later(Event::AttemptFinished { task, attempt, worker, outcome, nanos: 0 });
    }
    let job = cx.scheduler.job_of(task);
    let values = needed_values(cx, &needs);
    let tenant = job.and_then(|job| cx.scheduler.tenant_of(job)).unwrap_or_default();
    cx.peers.introduce_program(node, tenant, &call.program);
    let Some(job) = cx.scheduler.job_of(task) else { return };
    proxies.introduce(cx, node, job);
    let (Some(view), Some(proxy_worker)) = (cx.scheduler.task(task), cx.peers.proxy_worker(node)) else { return };
    let (name, refs) = (view.name.clone(), cx.scheduler.refs(task).collect::<Vec<ObjectId>>());
    let spec = RemoteTaskSpec {
        task,
        attempt: view.attempt,
        slot: worker,
        returns: view.returns,
        demand: Amounts::from_resources(view.demand),
        priority: view.priority,
        depth: view.depth,
        bundle: cx.scheduler.bundle_of(task),
        refs: refs.clone(),
        needs: needs.clone(),
        values: values.iter().map(|(object, value)| (*object, value.as_message())).collect(),
        work,
        ..spec_of_call(cx, proxies, job, &name, &call)
    };
    for object in needs.into_iter().chain(refs) {
        cx.step_later(Event::ReferenceAdded { object, worker: proxy_worker, task });
    }
    cx.peers.send(node, &PeerMessage::Submit(spec));
}

/// Returns the objects that a task needs: those of its arguments, and the checkpoint of an actor.
fn needs(cx: &Context, task: TaskId, call: &TaskPayload) -> Vec<ObjectId> {
    let checkpoint = call.creation.as_ref().and_then(|_| cx.scheduler.actor(ActorId(task.0))?.checkpoint);
    call.needs.iter().copied().chain(checkpoint).collect()
}

/// Returns the description of a task, as far as its call has it.
pub(super) fn spec_of_call<'a>(
    cx: &Context,
    proxies: &ProxyTasks,
    job: JobId,
    name: &'a str,
    call: &'a TaskPayload,
) -> RemoteTaskSpec<'a> {
    RemoteTaskSpec {
        task: TaskId(0),
        attempt: Attempt(0),
        slot: WorkerId(0),
        job: proxies.root(cx, job),
        program: call.program.compiled.number(),
        function: call.function,
        seed: call.seed,
        lineage: call.lineage,
        name: Cow::Borrowed(name),
        returns: 1,
        demand: Amounts::default(),
        priority: 0,
        depth: 1,
        bundle: None,
        timeout_ms: call.timeout_ms.map(Into::into),
        needs: call.needs.to_vec(),
        refs: Vec::new(),
        values: Vec::new(),
        arguments: &call.arguments,
        work: RemoteWork::Task,
    }
}

/// Returns the work of another node for a task.
fn remote_work<'a>(cx: &Context, task: TaskId, call: &'a TaskPayload) -> Option<RemoteWork<'a>> {
    if let Some(actor) = cx.scheduler.actor_of(task) {
        let view = cx.scheduler.task(task)?;
        let retries = (view.retries_max != ACTOR_DEFAULT_RETRIES).then_some(view.retries_max);
        return Some(RemoteWork::Call { actor: remote_actor(cx, actor), retries, retry_on: view.retry_on });
    }
    if let Some(creation) = &call.creation {
        let restarts = cx.scheduler.task(task).map_or(0, |view| view.attempt.0);
        let max_restarts = creation.options.max_restarts.saturating_sub(restarts);
        let options = ActorOptions { max_restarts, detached: false, get_if_exists: false, ..creation.options.clone() };
        let checkpoint = cx.scheduler.actor(ActorId(task.0)).and_then(|actor| actor.checkpoint);
        return Some(RemoteWork::HostActor(options, checkpoint));
    }
    Some(match cx.scheduler.stream(task.returns(0)).filter(|_| call.is_generator()) {
        Some(stream) => RemoteWork::Generator(stream.buffer),
        None => RemoteWork::Task,
    })
}

/// Returns an actor on another node as that node knows it.
pub(super) fn remote_actor(cx: &Context, actor: ActorId) -> RemoteActor {
    match cx.scheduler.task(actor.creation_task()) {
        Some(task) if creation(cx, actor).is_some() => RemoteActor::Hosted(task.id, task.attempt),
        _ => RemoteActor::Lent(actor),
    }
}

/// Returns values of needed objects that go with the task's message.
fn needed_values(cx: &mut Context, needs: &[ObjectId]) -> Vec<(ObjectId, OutgoingValue)> {
    let (mut values, mut limit) = (Vec::new(), VALUE_BYTES_MAX);
    for need in needs {
        // Contained objects are lent when the value is requested.
        if cx.scheduler.contained_objects(*need).next().is_none()
            && let Some(value) = outgoing_within(cx, *need, &mut limit)
        {
            values.push((*need, value));
        }
    }
    values
}

/// Requests the tasks of a slot that have not started.
pub(super) fn recall(cx: &mut Context, slot: WorkerId) {
    if let Some(node) = cx.peers.node_of(slot) {
        cx.peers.send(node, &PeerMessage::Recall(slot));
    }
}

/// Ends an attempt that another node runs, or a proxy task. `ends_call` is set for a call of an actor that must end even if it
/// runs.
pub(super) fn cancel(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    worker: WorkerId,
    AttemptRef { task, attempt }: AttemptRef,
    ends_call: bool,
) {
    let Some(node) = cx.peers.node_of(worker) else { return };
    if !proxies.end(task) {
        return cx.peers.send(node, &PeerMessage::Cancel(task, attempt, ends_call));
    }
    let error = Arc::new(TaskError { fault: Fault::new(Code::Cancelled, "it was cancelled"), chain: Vec::new() });
    let outcome = Outcome::Failed(Failure { error, system: false });
    cx.step_later(Event::AttemptFinished { task, attempt, worker, outcome, nanos: 0 });
}

/// Reports the number of consumed items to a generator.
pub(super) fn send_credit(cx: &mut Context, slot: WorkerId, task: TaskId, consumed: u64) {
    if let Some(node) = cx.peers.node_of(slot) {
        cx.peers.send(node, &PeerMessage::ItemsTaken(task, consumed));
    }
}

/// An attempt has finished on another node, or an actor has ended there.
pub(super) struct RemoteFinished<'a> {
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
    pub(super) slot: WorkerId,
    pub(super) returned: Result<RemoteResults<'a>, Box<TaskError>>,
    pub(super) is_system: bool,
    pub(super) usage: AttemptUsage,
}

/// A job, and the name of a task of it.
pub(super) type TaskName = (JobId, Arc<str>);

/// Handles the end of an attempt on another node. Returns its record, with the job and the name of its task unless another
/// attempt runs.
pub(super) fn handle_finished(
    cx: &mut Context,
    borrowed: &mut Borrowed,
    node: NodeId,
    finished: RemoteFinished<'_>,
) -> Option<(Option<TaskName>, AttemptRecord)> {
    let RemoteFinished { task, attempt, slot: worker, returned, is_system, usage } = finished;
    if cx.peers.node_of(worker) != Some(node) {
        return None;
    }
    let view = cx.scheduler.task(task).filter(|view| is_attempt(view, worker, attempt));
    let of = view.map(|view| (view.job, view.name.clone()));
    let job = of.as_ref().map(|(job, _)| *job);
    let mut held = Vec::new();
    let outcome = match (returned, job) {
        (Ok(values), Some(job)) => {
            receive_results(cx, borrowed, node, TaskInWorker { job, task, worker }, values, &mut held)
        }
        // The job has ended, or another attempt runs.
        (Ok(values), None) => {
            values.into_iter().for_each(|(value, contains)| return_value(cx, node, value, contains));
            Outcome::Succeeded(Vec::new())
        }
        (Err(error), job) => {
            if let Some(job) = job {
                cx.push(Effect::Job(JobEffect::AttemptFailed(job)));
            }
            Outcome::Failed(Failure { error: Arc::new(cx.with_ancestors(task, *error)), system: is_system })
        }
    };
    let bytes_out = match &outcome {
        Outcome::Succeeded(values) => values.iter().map(|(value, _)| value.bytes()).sum(),
        Outcome::Failed(_) => 0,
    };
    let record = attempt_record(cx, worker, task, cx.scheduler.call(task), &usage, bytes_out);
    // The slot is occupied until this event, whatever has become of the task.
    cx.step(Event::AttemptFinished { task, attempt, worker, outcome, nanos: usage.nanos });
    cx.steps(held.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
    Some((of, record))
}

/// Stores results. Adds the contained objects, which the slot holds until the event, to `held`.
fn receive_results(
    cx: &mut Context,
    borrowed: &mut Borrowed,
    node: NodeId,
    TaskInWorker { job, task, worker }: TaskInWorker,
    values: RemoteResults<'_>,
    held: &mut Vec<ObjectId>,
) -> Outcome<StoredValue> {
    let mut all = Vec::with_capacity(values.len());
    let mut failed = None;
    for ((value, refs), index) in values.into_iter().zip(0u64..) {
        refs.iter().for_each(|content| borrowed.add(cx, node, *content, task, worker));
        held.extend(refs.iter().copied());
        match receive(cx, job, ObjectId(task.0 + index), value, Some(node)) {
            Ok(value) => all.push((value, refs)),
            Err(error) => failed = Some(error),
        }
    }
    let Some(error) = failed else { return Outcome::Succeeded(all) };
    all.iter().for_each(|(value, _)| cx.discard(value));
    Outcome::Failed(Failure { error, system: true })
}

/// An item of a generator on another node.
pub(super) struct RemoteItem<'a> {
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
    pub(super) slot: WorkerId,
    pub(super) index: u64,
    pub(super) object: ObjectId,
    pub(super) value: PeerValue<'a>,
    pub(super) contains: Vec<ObjectId>,
}

pub(super) fn handle_item(cx: &mut Context, borrowed: &mut Borrowed, node: NodeId, item: RemoteItem<'_>) {
    let RemoteItem { task, attempt, slot: worker, index, object, value, contains } = item;
    let is_valid = |view: &TaskView<'_>| {
        !cx.ids.is_own(object.0) && is_attempt(view, worker, attempt) && cx.peers.node_of(worker) == Some(node)
    };
    let Some(job) = cx.scheduler.task(task).filter(is_valid).map(|view| view.job) else {
        return return_value(cx, node, value, contains);
    };
    contains.iter().for_each(|content| borrowed.add(cx, node, *content, task, worker));
    let value = receive(cx, job, object, value, Some(node)).map_err(|error| error.fault.clone());
    cx.step(Event::Yielded { task, attempt, worker, index, object, value, refs: contains.clone() });
    cx.steps(contains.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
}

/// Returns whether a worker runs this attempt of a task.
pub(super) fn is_attempt(view: &TaskView<'_>, worker: WorkerId, attempt: Attempt) -> bool {
    view.worker == Some(worker) && view.attempt == attempt
}
