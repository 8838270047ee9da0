//! Tasks that other nodes submit to this one, and values of objects that they lend for them.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{
    ActorOptions, Attempt, Code, Fault, NodeId, ObjectId, RetryOn, STREAM_BUFFER_MAX, Strategy, TaskError, TaskId,
    TaskKind,
};
use sandbar_sched::{Event, ParentRef, ResourceSet, Submission, SubmissionKind};
use sandbar_wire::Priority;

use super::super::actors::actor_spec;
use super::super::context::Context;
use super::super::effects::Effect;
use super::super::refs::{ReceivedObject, TaskInWorker};
use super::super::values::StoredValue;
use super::actors::{actor_of_message, default_retries};
use super::borrowed::Borrowed;
use super::executor::{Executor, HostedTask, RemoteTask, send_failed};
use super::limits::REMOTE_RETURNS_MAX;
use super::peer_values::{OutgoingValue, receive};
use super::proxy_tasks::ProxyTasks;
use super::remote_values::fetch;
use super::reservations::Reservations;
use crate::calls::{ActorCreation, Program, TaskPayload};
use crate::peer::{PeerMessage, RemoteTaskSpec, RemoteWork};

/// Parts that the start of a task of another node needs.
pub(super) struct HostingParts<'a> {
    pub(super) proxies: &'a mut ProxyTasks,
    pub(super) borrowed: &'a mut Borrowed,
    pub(super) executor: &'a mut Executor,
    pub(super) reservations: &'a Reservations,
}

/// Starts a task of another node, whose program is loaded.
///
/// # Errors
/// The task is invalid.
pub(super) fn start(
    cx: &mut Context,
    parts: HostingParts<'_>,
    node: NodeId,
    spec: RemoteTaskSpec<'_>,
    program: Arc<Program>,
) -> io::Result<()> {
    let HostingParts { proxies, borrowed, executor, reservations } = parts;
    check(cx, &spec, &program)?;
    let strategy = match spec.bundle.map(|(group, index)| reservations.strategy(node, group, index)) {
        Some(Ok(strategy)) => strategy,
        Some(Err(fault)) => {
            refuse(cx, node, &spec, fault);
            return Ok(());
        }
        // Its owner chooses another node if this one is lost.
        None => Strategy::Node { node: cx.node(), soft: false },
    };
    let Some(job) = proxies.job_of_root(cx, node, spec.job) else {
        refuse(cx, node, &spec, Fault::new(Code::Cancelled, "its job has ended"));
        return Ok(());
    };
    let (Some(proxy), Some(worker)) = (proxies.get_or_start(cx, node, job, &program), cx.peers.proxy_worker(node))
    else {
        return Err(invalid("a task, but there are no ids left"));
    };
    cx.usage.book(job, |amounts| amounts.network_bytes += spec.arguments.len() as u64);
    let lent: Vec<ObjectId> = spec.needs.iter().chain(&spec.refs).copied().collect();
    lent.iter().for_each(|object| borrowed.add(cx, node, *object, proxy, worker));
    for (object, value) in &spec.values {
        let received = ReceivedObject { object: *object, value: *value, contains: Vec::new() };
        handle_value(cx, proxies, borrowed, node, received, Priority::Argument);
    }
    let is_creation = matches!(spec.work, RemoteWork::CreateActor { .. });
    // An actor that is created for a node outlives the node's other work here, as long as it is referenced.
    let own = cx.jobs.get(&job).filter(|_| is_creation);
    let proxy_ref = TaskInWorker { job, task: proxy, worker };
    let creator = own.map_or(proxy_ref, |own| TaskInWorker { job, task: own.first, worker: own.driver });
    if let Some(task) =
        submission(cx, borrowed, executor, HostedSubmission { node, creator, spec: &spec, strategy, program })
    {
        if is_creation {
            let object = task.id.returns(0);
            cx.push(Effect::Submit(creator.worker, Box::new(task)));
            push_step(cx, Event::ReferenceAdded { object, worker, task: proxy });
            push_step(cx, Event::ReferencesReleased { object, worker: creator.worker, count: 1 });
        } else {
            host(cx, executor, node, proxy_ref, &spec, task);
        }
    }
    for object in lent {
        push_step(cx, Event::ReferencesReleased { object, worker, count: 1 });
    }
    Ok(())
}

fn push_step(cx: &mut Context, event: Event<TaskPayload, StoredValue>) {
    cx.push(Effect::Step(Box::new(event)));
}

fn check(cx: &Context, spec: &RemoteTaskSpec<'_>, program: &Program) -> io::Result<()> {
    let kind = program.tasks.get(spec.function as usize).map(|function| function.kind);
    let is_valid = match spec.work {
        RemoteWork::Task => kind == Some(TaskKind::Task),
        RemoteWork::Generator(_) => kind == Some(TaskKind::Generator) && spec.returns == 1,
        RemoteWork::Call { .. } => matches!(kind, Some(TaskKind::Method | TaskKind::Shared)),
        RemoteWork::HostActor(..) => kind == Some(TaskKind::Make) && spec.returns == 1,
        RemoteWork::CreateActor { .. } => {
            kind == Some(TaskKind::Make) && spec.returns == 1 && !cx.ids.is_own(spec.task.0)
        }
    };
    match is_valid && (1..=REMOTE_RETURNS_MAX).contains(&spec.returns) {
        true => Ok(()),
        false => Err(invalid("a task that is not of its program")),
    }
}

/// Runs a task, and sends its results to its owner.
fn host(
    cx: &mut Context,
    executor: &mut Executor,
    owner: NodeId,
    TaskInWorker { job, task: proxy, worker }: TaskInWorker,
    spec: &RemoteTaskSpec<'_>,
    task: Submission<TaskPayload>,
) {
    let id = task.id;
    if let Some(limit) = spec.timeout_ms {
        cx.push(Effect::Limit(id, Duration::from_millis(limit.into())));
    }
    let lineage = spec.lineage.filter(|_| matches!(spec.work, RemoteWork::Task));
    let is_actor = matches!(spec.work, RemoteWork::HostActor(..));
    let remote = remote_task(spec);
    executor.add(id, HostedTask::new(owner, job, remote, spec.returns, lineage, is_actor));
    cx.step(Event::Submitted { task });
    let returned = (0..spec.returns).map(|index| id.returns(index));
    cx.steps(returned.map(|object| Event::ObjectRequested { object, worker, task: proxy }));
}

fn remote_task(spec: &RemoteTaskSpec<'_>) -> RemoteTask {
    RemoteTask { task: spec.task, attempt: spec.attempt, slot: spec.slot }
}

/// A task of another node that runs here.
struct HostedSubmission<'a> {
    /// The owner.
    node: NodeId,
    /// Its parent here.
    creator: TaskInWorker,
    spec: &'a RemoteTaskSpec<'a>,
    /// Default placement.
    strategy: Strategy,
    program: Arc<Program>,
}

/// Returns a remote task as a task of this node, or `None` if it does not run: its actor has ended.
fn submission(
    cx: &mut Context,
    borrowed: &Borrowed,
    executor: &Executor,
    hosted: HostedSubmission<'_>,
) -> Option<Submission<TaskPayload>> {
    let HostedSubmission { node, creator: TaskInWorker { job, task: parent, worker }, spec, strategy: here, program } =
        hosted;
    let creation =
        |options: &ActorOptions, name| Some(Box::new(program.creation(spec.function, options.clone(), name)));
    let (kind, creation, strategy, retries_max, retry_on) = match &spec.work {
        RemoteWork::Task => (SubmissionKind::Function, None, here, 0, RetryOn::System),
        RemoteWork::Generator(buffer) => {
            (SubmissionKind::Generator((*buffer).min(STREAM_BUFFER_MAX)), None, here, 0, RetryOn::System)
        }
        RemoteWork::Call { actor, retries, retry_on } => {
            let actor = actor_of_message(cx, borrowed, executor, node, *actor)?;
            let retries = retries.unwrap_or_else(|| default_retries(cx, actor));
            (SubmissionKind::Method(actor), None, Strategy::Default, retries, *retry_on)
        }
        RemoteWork::HostActor(options, checkpoint) => {
            let kind = SubmissionKind::ActorCreation(Box::new(actor_spec(cx, job, None, options)));
            let checkpoint = checkpoint.filter(|checkpoint| spec.needs.contains(checkpoint));
            let creation = creation(options, None).map(|creation| Box::new(ActorCreation { checkpoint, ..*creation }));
            (kind, creation, here, 0, RetryOn::System)
        }
        RemoteWork::CreateActor { options, actor_name, strategy } => {
            let kind = SubmissionKind::ActorCreation(Box::new(actor_spec(cx, job, actor_name.as_deref(), options)));
            (kind, creation(options, None), *strategy, 0, RetryOn::System)
        }
    };
    let is_creation = matches!(spec.work, RemoteWork::CreateActor { .. });
    let id = if is_creation { spec.task } else { TaskId(cx.ids.take(spec.returns)?) };
    let is_function = matches!(kind, SubmissionKind::Function | SubmissionKind::Generator(_));
    let is_method = matches!(kind, SubmissionKind::Method(_));
    Some(Submission {
        id,
        job,
        parent: Some(ParentRef { task: parent, attempt: Attempt(0), worker }),
        // The scheduler adds 2: the proxy task is at 1.
        remote_depth: spec.depth.saturating_sub(2),
        name: cx.ids.names.intern(spec.name.clone().into_owned()),
        returns: spec.returns,
        demand: if is_method { ResourceSet::default() } else { spec.demand.resources() },
        strategy,
        priority: spec.priority,
        retries_max,
        retry_on,
        call: TaskPayload {
            program,
            function: spec.function,
            timeout_ms: spec.timeout_ms.and_then(NonZeroU32::new),
            seed: spec.seed,
            lineage: None,
            arguments: spec.arguments.into(),
            needs: spec.needs.as_slice().into(),
            refs: if is_function { Box::new([]) } else { spec.refs.as_slice().into() },
            creation,
            submitted: cx.time.nanos,
        },
        dependencies: spec.needs.clone(),
        refs: spec.refs.clone(),
        kind,
    })
}

/// Rejects a task: releases the objects that were lent for it, and sends an error.
pub(super) fn refuse(cx: &mut Context, node: NodeId, spec: &RemoteTaskSpec<'_>, fault: Fault) {
    for object in spec.needs.iter().chain(&spec.refs) {
        cx.peers.send(node, &PeerMessage::Release(*object, 1));
    }
    let error = TaskError { fault, chain: Vec::new() };
    if let RemoteWork::CreateActor { .. } = spec.work {
        let value = OutgoingValue::failed(&error);
        let (object, value) = (spec.task.returns(0), value.as_message());
        return cx.peers.send(node, &PeerMessage::ObjectValue { object, value, contains: Vec::new() });
    }
    send_failed(cx, node, remote_task(spec), error);
}

/// Handles the value of an object that a node has lent, fetched with this priority if it is on another node.
pub(super) fn handle_value(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    borrowed: &mut Borrowed,
    lender: NodeId,
    ReceivedObject { object, value, contains }: ReceivedObject<'_>,
    priority: Priority,
) {
    let job = cx.scheduler.job_of_object(object).filter(|_| borrowed.lender(object) == Some(lender));
    let proxy = job.and_then(|job| proxies.get_or_start_known(cx, lender, job));
    let (Some(job), Some(proxy), Some(worker)) = (job, proxy, cx.peers.proxy_worker(lender)) else {
        contains.into_iter().for_each(|content| cx.peers.send(lender, &PeerMessage::Release(content, 1)));
        return;
    };
    contains.iter().for_each(|content| borrowed.add(cx, lender, *content, proxy, worker));
    let value = receive(cx, job, object, value, None);
    let created_for = borrowed.created_for(object).filter(|task| cx.scheduler.task(*task).is_some());
    let value = match (value, created_for) {
        (Err(error), Some(task)) => Err(Arc::new(cx.with_ancestors(task, error.as_ref().clone()))),
        (value, _) => value,
    };
    if let Ok(StoredValue::Remote(key)) = &value {
        fetch(cx, *key, priority);
    }
    cx.step(Event::BorrowResolved { object, value, refs: contains.clone() });
    cx.steps(contains.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}
