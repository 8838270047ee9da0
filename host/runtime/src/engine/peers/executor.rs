//! The executor's side of remote tasks: tasks that run here for other nodes, and actors that are hosted for them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use rustc_hash::FxHashMap;
use sandbar_core::{Attempt, Code, Fault, JobId, NodeId, ObjectId, Strategy, TaskError, TaskId, WorkerId};
use sandbar_sched::{Event, ResourceSet, TaskState};
use sandbar_worker::program::AttemptUsage;

use super::super::context::Context;
use super::super::effects::Effect;
use super::super::refs::{AttemptRef, ProgressAmount};
use super::peer_values::{OutgoingValue, VALUE_BYTES_MAX, outgoing, outgoing_within, with_contents};
use crate::peer::PeerMessage;

/// Maximum bytes of a log line, and of a name of progress, that is sent to another node.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A task that runs here for its owner, or an actor that is hosted for it.
#[derive(Debug)]
pub(super) struct HostedTask {
    pub(super) owner: NodeId,
    pub(super) job: JobId,
    pub(super) remote: RemoteTask,
    pub(super) returns: u32,
    /// Number of returned objects without a value yet.
    missing: u32,
    usage: AttemptUsage,
    /// Of a generator: number of items that were sent, and that their owner reports as consumed.
    yielded: u64,
    consumed: u64,
    /// Identity across runs of its job.
    lineage: Option<NonZeroU64>,
    /// Whether it is an actor, which is hosted until it has ended.
    pub(super) is_actor: bool,
}

/// A task as its owner knows it: id, attempt, and slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteTask {
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
    pub(super) slot: WorkerId,
}

/// A task that has finished, whose results may be kept for a later run of its job.
pub(super) struct FinishedTask {
    pub(super) task: TaskId,
    pub(super) lineage: NonZeroU64,
    pub(super) returns: u32,
    pub(super) nanos: u64,
}

/// Tasks that run here for other nodes.
#[derive(Debug, Default)]
pub(super) struct Executor {
    /// By the id here.
    tasks: FxHashMap<TaskId, HostedTask>,
    /// Ids here, by returned objects, and by owner and the owner's id.
    by_return: FxHashMap<ObjectId, TaskId>,
    by_owner: FxHashMap<(NodeId, TaskId), TaskId>,
    /// Ended actors with their errors, not yet reported to their owners.
    ended_actors: Vec<(TaskId, TaskError)>,
}

impl Executor {
    pub(super) fn len(&self) -> usize {
        self.tasks.len() + self.by_return.len() + self.by_owner.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn get(&self, task: TaskId) -> Option<&HostedTask> {
        self.tasks.get(&task)
    }

    /// Returns the id here of an owner's task.
    pub(super) fn id_of(&self, owner: NodeId, task: TaskId) -> Option<TaskId> {
        self.by_owner.get(&(owner, task)).copied()
    }

    pub(super) fn has_job(&self, job: JobId) -> bool {
        self.tasks.values().any(|hosted| hosted.job == job)
    }

    /// Adds a task.
    pub(super) fn add(&mut self, id: TaskId, hosted: HostedTask) {
        self.by_owner.insert((hosted.owner, hosted.remote.task), id);
        self.by_return.extend((0..hosted.returns).map(|index| (id.returns(index), id)));
        self.tasks.insert(id, hosted);
    }

    /// An attempt has finished in its worker.
    pub(super) fn attempt_finished(&mut self, task: TaskId, usage: &AttemptUsage) {
        if let Some(hosted) = self.tasks.get_mut(&task) {
            hosted.usage = *usage;
        }
    }

    /// Handles a returned object that got its value. Returns `None` if the object is not of a hosted task; otherwise the task,
    /// if it is finished and its results may be kept.
    pub(super) fn handle_return(&mut self, object: ObjectId) -> Option<Option<FinishedTask>> {
        let id = *self.by_return.get(&object)?;
        let Some(hosted) = self.tasks.get_mut(&id) else { return Some(None) };
        hosted.missing = hosted.missing.saturating_sub(1);
        let (lineage, returns, nanos) = (hosted.lineage, hosted.returns, hosted.usage.nanos);
        if hosted.missing > 0 {
            return Some(None);
        }
        Some(lineage.map(|lineage| FinishedTask { task: id, lineage, returns, nanos }))
    }

    /// Sends the results of a finished task to its owner.
    pub(super) fn send_results(&mut self, cx: &mut Context, object: ObjectId) {
        let Some(id) = self.by_return.get(&object).copied() else { return };
        let Some(hosted) = self.tasks.get(&id).filter(|hosted| hosted.missing == 0) else { return };
        let (owner, returns, remote, usage) = (hosted.owner, hosted.returns, hosted.remote, hosted.usage);
        let is_actor = hosted.is_actor;
        let Some(worker) = cx.peers.proxy_worker(owner) else { return };
        let (mut values, mut failed, mut limit) = (Vec::new(), None, VALUE_BYTES_MAX);
        for object in (0..returns).map(|index| id.returns(index)) {
            self.by_return.remove(&object);
            if let Some(Err(error)) = cx.scheduler.value(object) {
                failed = Some(error.clone());
            }
            let Some(value) = outgoing_within(cx, object, &mut limit) else { continue };
            let (value, contains) = with_contents(cx, object, value);
            if value.is_complete() && !is_actor {
                cx.step_later(Event::ReferencesReleased { object, worker, count: 1 });
            }
            values.push((value, contains));
        }
        match (is_actor, &failed) {
            (true, None) => {}
            // The end of the actor is reported to the owner later.
            (true, Some(_)) => return,
            (false, _) => {
                self.tasks.remove(&id);
                self.by_owner.remove(&(owner, remote.task));
            }
        }
        let returned = match &failed {
            None => Ok(values),
            Some(error) => Err(Box::new(without_proxy(error))),
        };
        let is_system = failed.is_some_and(|error| matches!(error.fault.code, Code::WorkerLost | Code::ObjectLost));
        send_finished(cx, owner, remote, returned, is_system, &usage);
    }

    /// Handles the end of a task. An actor's end is reported after the results of its calls: see
    /// [`Executor::send_ended_actors`].
    pub(super) fn task_ended(&mut self, task: TaskId, error: Option<&TaskError>) {
        if self.tasks.get(&task).is_some_and(|hosted| hosted.is_actor) {
            let ended = || TaskError { fault: Fault::new(Code::ActorDied, "it has ended"), chain: Vec::new() };
            self.ended_actors.push((task, error.map_or_else(ended, without_proxy)));
        }
    }

    pub(super) fn send_ended_actors(&mut self, cx: &mut Context) {
        for (id, error) in std::mem::take(&mut self.ended_actors) {
            let Some(hosted) = self.tasks.remove(&id) else { continue };
            self.forget_ids(id, &hosted);
            if let Some(worker) = cx.peers.proxy_worker(hosted.owner) {
                cx.step_later(Event::ReferencesReleased { object: id.returns(0), worker, count: 1 });
            }
            send_finished(cx, hosted.owner, hosted.remote, Err(Box::new(error)), false, &hosted.usage);
        }
    }

    /// Sends an item of a generator to the owner.
    pub(super) fn send_item(&mut self, cx: &mut Context, worker: WorkerId, stream: ObjectId, object: ObjectId) {
        let Some(value) = outgoing(cx, object) else { return };
        let (value, contains) = with_contents(cx, object, value);
        if value.is_complete() {
            cx.step_later(Event::ReferencesReleased { object, worker, count: 1 });
        }
        let Some(hosted) = self.tasks.get_mut(&TaskId(stream.0)) else { return };
        let (index, RemoteTask { task, attempt, slot }, owner) = (hosted.yielded, hosted.remote, hosted.owner);
        hosted.yielded += 1;
        // An earlier attempt has yielded it.
        if hosted.consumed >= hosted.yielded {
            cx.step_later(Event::ItemsConsumed { stream, worker, consumed: hosted.consumed });
        }
        let value = value.as_message();
        cx.peers.send(owner, &PeerMessage::Yielded { task, attempt, slot, index, object, value, contains });
    }

    /// The owner reports consumed items of a generator.
    pub(super) fn handle_items_taken(&mut self, cx: &mut Context, node: NodeId, task: TaskId, consumed: u64) {
        let (Some(id), Some(worker)) = (self.id_of(node, task), cx.peers.proxy_worker(node)) else { return };
        if let Some(hosted) = self.tasks.get_mut(&id) {
            hosted.consumed = consumed;
        }
        cx.step(Event::ItemsConsumed { stream: id.returns(0), worker, consumed });
    }

    /// Returns the tasks of a slot that have not started to their owner, beside `unsubmitted` ones.
    pub(super) fn handle_recall(&mut self, cx: &mut Context, node: NodeId, slot: WorkerId, unsubmitted: Vec<TaskId>) {
        let mut recalled = unsubmitted;
        let is_recalled = |id: &TaskId, hosted: &HostedTask| {
            let state = cx.scheduler.task(*id).map(|view| view.state);
            let is_of = hosted.owner == node && hosted.remote.slot == slot;
            is_of && matches!(state, Some(TaskState::Pending | TaskState::Queued))
        };
        let found = self.tasks.iter().filter(|(id, hosted)| is_recalled(id, hosted)).map(|(id, _)| *id);
        let mut ids: Vec<TaskId> = found.collect();
        ids.sort_unstable();
        for id in ids {
            let Some(hosted) = self.tasks.remove(&id) else { continue };
            self.forget_ids(id, &hosted);
            recalled.push(hosted.remote.task);
            cx.step(Event::Cancelled { task: id, recursive: true });
            release_returns(cx, node, id, hosted.returns);
        }
        cx.peers.send(node, &PeerMessage::Recalled(slot, recalled));
    }

    /// The owner cancels an attempt, with running calls of actors if `ends_call`.
    pub(super) fn handle_cancel(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        AttemptRef { task, attempt }: AttemptRef,
        ends_call: bool,
    ) {
        let Some(id) = self.id_of(node, task) else { return };
        if self.tasks.get(&id).is_some_and(|hosted| hosted.remote.attempt == attempt) {
            if ends_call {
                cx.push(Effect::EndCall(id));
            }
            cx.push(Effect::Step(Box::new(Event::Cancelled { task: id, recursive: true })));
        }
    }

    /// Removes tasks that need no further reports to their owners. Returns them by id.
    pub(super) fn remove(&mut self, is_removed: impl Fn(&HostedTask) -> bool) -> Vec<(TaskId, HostedTask)> {
        let mut removed: Vec<_> = self.tasks.extract_if(|_, hosted| is_removed(hosted)).collect();
        removed.sort_unstable_by_key(|(id, _)| *id);
        removed.iter().for_each(|(id, hosted)| self.forget_ids(*id, hosted));
        removed
    }

    fn forget_ids(&mut self, id: TaskId, hosted: &HostedTask) {
        self.by_owner.remove(&(hosted.owner, hosted.remote.task));
        (0..hosted.returns).for_each(|index| _ = self.by_return.remove(&id.returns(index)));
    }

    /// Reports that a task waits for objects, or continues.
    pub(super) fn task_blocked(&self, cx: &mut Context, task: TaskId, blocked: bool) {
        if let Some(hosted) = self.tasks.get(&task) {
            cx.peers.send(hosted.owner, &PeerMessage::Blocked(hosted.remote.task, blocked));
        }
    }

    /// Returns the resources that running tasks of each owner use, apart from reserved ones.
    pub(super) fn usage_by_owner(&self, cx: &Context) -> BTreeMap<NodeId, ResourceSet> {
        let mut usage = BTreeMap::<NodeId, ResourceSet>::new();
        for (id, hosted) in &self.tasks {
            let Some(view) = cx.scheduler.task(*id) else { continue };
            let of_owner = usage.entry(hosted.owner).or_default();
            match (view.strategy, view.state) {
                (Strategy::Group { .. }, _) => {}
                (_, TaskState::Running) => of_owner.add(view.demand),
                (_, TaskState::Blocked) => of_owner.add(&ResourceSet { cpus: 0, ..view.demand.clone() }),
                _ => {}
            }
        }
        usage
    }
}

impl HostedTask {
    pub(super) fn new(
        owner: NodeId,
        job: JobId,
        remote: RemoteTask,
        returns: u32,
        lineage: Option<NonZeroU64>,
        is_actor: bool,
    ) -> HostedTask {
        let usage = AttemptUsage::default();
        HostedTask { owner, job, remote, returns, missing: returns, usage, yielded: 0, consumed: 0, lineage, is_actor }
    }
}

/// Tells an owner that its task was cancelled.
pub(super) fn send_cancelled(cx: &mut Context, owner: NodeId, remote: RemoteTask) {
    let error = TaskError { fault: Fault::new(Code::Cancelled, "it was cancelled"), chain: Vec::new() };
    send_failed(cx, owner, remote, error);
}

/// Tells an owner that its task has failed before it started.
pub(super) fn send_failed(cx: &mut Context, owner: NodeId, remote: RemoteTask, error: TaskError) {
    send_finished(cx, owner, remote, Err(Box::new(error)), false, &AttemptUsage::default());
}

fn send_finished(
    cx: &mut Context,
    owner: NodeId,
    remote: RemoteTask,
    returned: Result<Vec<(OutgoingValue, Vec<ObjectId>)>, Box<TaskError>>,
    system: bool,
    usage: &AttemptUsage,
) {
    let returned = match &returned {
        Ok(values) => Ok(values.iter().map(|(value, contains)| (value.as_message(), contains.clone())).collect()),
        Err(error) => Err(error.clone()),
    };
    let usage = AttemptUsage { started: cx.time.nanos.saturating_sub(usage.started.min(cx.time.nanos)), ..*usage };
    let RemoteTask { task, attempt, slot } = remote;
    cx.peers.send(owner, &PeerMessage::Finished { task, attempt, slot, returned, system, usage });
}

/// A node no longer holds the returned objects of a task.
pub(super) fn release_returns(cx: &mut Context, node: NodeId, id: TaskId, returns: u32) {
    let Some(worker) = cx.peers.proxy_worker(node) else { return };
    cx.steps((0..returns).map(|index| Event::ReferencesReleased { object: id.returns(index), worker, count: 1 }));
}

/// Sends a log line of a task to the node that runs its job.
pub(super) fn send_log(
    cx: &mut Context,
    root: crate::peer::JobRoot,
    worker: WorkerId,
    task: TaskId,
    level: u8,
    line: &str,
) {
    let Some(view) = cx.scheduler.task(task) else { return };
    let (name, line) = (view.name.to_string().into(), truncate(line));
    cx.peers.send(root.node, &PeerMessage::Log { job: root.job, task, name, worker, level, line });
}

/// Sends the progress of a task to the node that runs its job.
pub(super) fn send_progress(
    cx: &mut Context,
    root: crate::peer::JobRoot,
    task: TaskId,
    name: &str,
    ProgressAmount { done, total }: ProgressAmount,
) {
    cx.peers.send(root.node, &PeerMessage::Progress { job: root.job, task, name: truncate(name), done, total });
}

fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(LINE_BYTES_MAX)]
}

/// Returns an error without the name of the owner's proxy task.
fn without_proxy(error: &TaskError) -> TaskError {
    TaskError { chain: error.chain.iter().skip(1).cloned().collect(), ..error.clone() }
}
