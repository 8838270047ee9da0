//! Actors of other nodes, and actors whose handles other nodes have.
//!
//! An actor that is created for a job of another node is created by that node, the job's root: it is found there by its name,
//! and outlives this node. An actor in a placement group of this node, or one that must be on this node, is created here.

use sandbar_core::{ActorId, Attempt, Code, Fault, NodeId, ObjectId, Strategy, TaskError, TaskId, WorkerId};
use sandbar_sched::{Event, Submission, SubmissionKind};

use super::super::actors::creation;
use super::super::context::Context;
use super::super::effects::Effect;
use super::super::refs::TaskInWorker;
use super::borrowed::Borrowed;
use super::executor::Executor;
use super::limits::too_large_for_peers;
use super::owner::{ACTOR_DEFAULT_RETRIES, remote_actor, spec_of_call};
use super::peer_values::OutgoingValue;
use super::proxy_tasks::ProxyTasks;
use crate::calls::TaskPayload;
use crate::peer::{Amounts, JobRoot, PeerMessage, RemoteActor, RemoteTaskSpec, RemoteWork};

/// Returns the root that creates an actor, if this node does not.
pub(super) fn creating_root(cx: &Context, proxies: &ProxyTasks, task: &Submission<TaskPayload>) -> Option<JobRoot> {
    let SubmissionKind::ActorCreation(spec) = &task.kind else { return None };
    let is_local = match task.strategy {
        Strategy::Group { .. } => true,
        Strategy::Node { node, soft: false } => node == cx.node() && spec.name.is_none(),
        _ => false,
    };
    proxies.remote_root(task.job).filter(|_| !is_local)
}

/// Has a job's root create an actor.
pub(super) fn create_at_root(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    borrowed: &mut Borrowed,
    root: JobRoot,
    worker: WorkerId,
    task: Submission<TaskPayload>,
) {
    cx.push(Effect::ForgetLimit(task.id));
    let (Some(parent), Some(creation)) = (task.parent, task.call.creation.as_deref()) else { return };
    let parent = parent.task;
    let objects = task.dependencies.len() + task.refs.len();
    if let Some(fault) = too_large_for_peers(1, objects, task.call.arguments.len()) {
        return cx.step(Event::PutFailed { object: task.id.returns(0), task: parent, worker, fault });
    }
    let parent_ref = TaskInWorker { job: task.job, task: parent, worker };
    let object = task.id.returns(0);
    let Some((proxy_worker, proxy)) = borrow_of_root(cx, proxies, borrowed, root, parent_ref, object, missing) else {
        return;
    };
    cx.step(Event::ActorBorrowed { actor: ActorId(task.id.0), worker: proxy_worker });
    let tenant = cx.scheduler.tenant_of(task.job).unwrap_or_default();
    cx.peers.introduce_program(root.node, tenant, &task.call.program);
    for object in task.dependencies.iter().chain(&task.refs) {
        cx.step(Event::ReferenceAdded { object: *object, worker: proxy_worker, task: proxy });
    }
    let spec = RemoteTaskSpec {
        task: task.id,
        demand: Amounts::from_resources(&task.demand),
        priority: task.priority,
        depth: cx.scheduler.task(parent).map_or(1, |parent| parent.depth).saturating_add(1),
        refs: task.refs,
        work: RemoteWork::CreateActor {
            options: creation.options.clone(),
            actor_name: creation.name.as_deref().map(Into::into),
            strategy: task.strategy,
        },
        ..spec_of_call(cx, proxies, task.job, &task.name, &task.call)
    };
    cx.peers.send(root.node, &PeerMessage::Submit(spec));
}

/// Has a job's root find an actor for a task of a worker.
pub(super) fn find_at_root(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    borrowed: &mut Borrowed,
    root: JobRoot,
    requester: TaskInWorker,
    object: ObjectId,
    name: &str,
) {
    if let Some((proxy_worker, _)) = borrow_of_root(cx, proxies, borrowed, root, requester, object, missing) {
        cx.step(Event::ActorBorrowed { actor: ActorId(object.0), worker: proxy_worker });
        cx.peers.send(root.node, &PeerMessage::FindActor { object, job: root, name: name.into() });
    }
}

fn missing() -> Fault {
    Fault::new(Code::ActorDied, "the node that runs the job, and has its actors, is not connected")
}

/// Borrows an object that a job's root creates for a task of a worker, which becomes the error `missing` if the root is not
/// connected. Returns the root's proxy worker and proxy task.
pub(super) fn borrow_of_root(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    borrowed: &mut Borrowed,
    root: JobRoot,
    TaskInWorker { job, task, worker }: TaskInWorker,
    object: ObjectId,
    missing: impl FnOnce() -> Fault,
) -> Option<(WorkerId, TaskId)> {
    let program = cx.scheduler.call(task)?.program.clone();
    let (proxy_worker, proxy) = (cx.peers.proxy_worker(root.node), proxies.get_or_start(cx, root.node, job, &program));
    let (Some(proxy_worker), Some(proxy)) = (proxy_worker, proxy) else {
        cx.step(Event::PutFailed { object, task, worker, fault: missing() });
        return None;
    };
    proxies.introduce(cx, root.node, job);
    borrowed.add_for(cx, root.node, object, task, worker);
    Some((proxy_worker, proxy))
}

/// A node requests the handle of an actor of a job that this node runs.
pub(super) fn handle_find(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    node: NodeId,
    object: ObjectId,
    root: JobRoot,
    name: &str,
) {
    let job = proxies.job_of_root(cx, node, root);
    let proxy = job.and_then(|job| proxies.get_or_start_known(cx, node, job));
    match (proxy, cx.peers.proxy_worker(node)) {
        (Some(task), Some(worker)) => {
            let (object, attempt, name) = (TaskId(object.0), Attempt(0), name.to_owned());
            cx.push(Effect::FindActor { worker, object, task, attempt, name });
        }
        _ => {
            let fault = Fault::new(Code::Cancelled, "its job has ended");
            let value = OutgoingValue::failed(&TaskError { fault, chain: Vec::new() });
            let value = value.as_message();
            cx.peers.send(node, &PeerMessage::ObjectValue { object, value, contains: Vec::new() });
        }
    }
}

/// Returns the actor of a node's message, or `None` if it has ended. A report of its end is on the way to the node.
pub(super) fn actor_of_message(
    cx: &mut Context,
    borrowed: &Borrowed,
    executor: &Executor,
    node: NodeId,
    actor: RemoteActor,
) -> Option<ActorId> {
    match actor {
        RemoteActor::Lent(actor) => {
            meet(cx, borrowed, actor);
            Some(actor)
        }
        RemoteActor::Hosted(task, attempt) => {
            let id = executor.id_of(node, task)?;
            executor.get(id).filter(|hosted| hosted.remote.attempt == attempt)?;
            Some(ActorId(id.0))
        }
    }
}

/// Tells the scheduler of an actor of another node, if that node has lent its handle.
pub(super) fn meet(cx: &mut Context, borrowed: &Borrowed, actor: ActorId) {
    if cx.scheduler.actor(actor).is_none()
        && let Some(lender) = borrowed.lender(actor.handle())
        && let Some(worker) = cx.peers.proxy_worker(lender)
    {
        cx.step(Event::ActorBorrowed { actor, worker });
    }
}

/// Returns the default number of retries of calls of an actor.
pub(in crate::engine) fn default_retries(cx: &Context, actor: ActorId) -> u32 {
    match creation(cx, actor) {
        Some(creation) => creation.options.max_task_retries,
        None if cx.peers.is_any() => ACTOR_DEFAULT_RETRIES,
        None => 0,
    }
}

/// Kills an actor of another node, or restarts it there. Returns whether another node has it.
pub(super) fn kill(cx: &mut Context, borrowed: &Borrowed, actor: ActorId, restart: bool) -> bool {
    if let Some(lender) = borrowed.lender(actor.handle()) {
        cx.peers.send(lender, &PeerMessage::KillActor(RemoteActor::Lent(actor), restart));
        return true;
    }
    let host = cx.scheduler.actor(actor).and_then(|actor| cx.peers.node_of(actor.worker?));
    match host.filter(|_| restart) {
        Some(node) => {
            let actor = remote_actor(cx, actor);
            cx.peers.send(node, &PeerMessage::KillActor(actor, true));
            true
        }
        None => false,
    }
}
