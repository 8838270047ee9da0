//! Workers: their ids, start, and assigned tasks.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{ActorId, Code, Fault, ObjectId, TaskError, TaskId, TenantId, WorkerId};
use sandbar_sched::{ActorState, Event, Failure, Outcome, Scheduler, WorkerKind};
use sandbar_store::LendResult;
use sandbar_worker::program::{Delivery, NodeMessage, StartTask};

use super::actors::{TaskStart, task_start};
use super::context::Context;
use super::deliveries::{LentDelivery, deliver_lent};
use super::effects::Effect;
use super::refs::AttemptRef;
use super::values::StoredValue;
use crate::calls::TaskPayload;
use crate::client::ClientLink;
use crate::encoding::AlwaysEncodes;
use crate::worker::Worker;

/// Maximum number of worker ids that a node has at a time: see [`WorkerId`].
pub const WORKERS_MAX: u32 = 1 << 12;
/// Number of unused worker ids below which the node requests more.
const UNUSED_IDS_MIN: u32 = WORKERS_MAX / 4;
/// A worker that exits within this time, without a message, has failed to start.
const START_TIME_MAX: Duration = Duration::from_secs(2);
/// Time after which the start of a worker is retried the first time. It doubles with each failed start.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time after which an idle worker of a tenant ends, and the interval of the checks.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive failed starts after which jobs fail.
const FAILED_STARTS_MAX: u32 = 5;

/// Starts workers.
pub(super) struct Workers {
    /// Unused worker ids. The first of the first range is the next.
    unused_ids: VecDeque<Range<u32>>,
    /// Whether more ids were requested.
    has_requested_ids: bool,
    /// Workers that serve one actor.
    of_actors: FxHashMap<ActorId, WorkerId>,
    /// Workers to start.
    requested: Vec<WorkerKind>,
    /// Workers that could not be started, and when that is tried again.
    retries: Vec<WorkerKind>,
    next_retry: Option<Instant>,
    /// Consecutive failed starts.
    failed_starts: u32,
    last_idle_check: Option<Instant>,
}

/// A worker that has disconnected.
pub(super) struct LostWorker {
    pub(super) kind: WorkerKind,
    /// Tasks that it had started.
    pub(super) started: Vec<TaskId>,
    /// Whether workers failed to start too often.
    pub(super) gives_up: bool,
}

impl Workers {
    /// `ids` are the node's worker ids; the first is the engine's own.
    pub(super) fn new(ids: Range<u32>) -> Workers {
        Workers {
            unused_ids: std::iter::once(ids.start + 1..ids.end).collect(),
            has_requested_ids: false,
            of_actors: FxHashMap::default(),
            requested: Vec::new(),
            retries: Vec::new(),
            next_retry: None,
            failed_starts: 0,
            last_idle_check: None,
        }
    }

    /// Returns whether no actor has a worker of its own.
    pub(super) fn has_no_actors(&self) -> bool {
        self.of_actors.is_empty()
    }

    /// Allocates a worker id. Requests more before there are none left.
    pub(super) fn next_id(&mut self, cx: &mut Context) -> Option<WorkerId> {
        let unused: u32 = self.unused_ids.iter().map(|range| range.end - range.start).sum();
        if unused < UNUSED_IDS_MIN && !self.has_requested_ids && cx.driver.has_peers() {
            self.has_requested_ids = true;
            cx.driver.request_worker_ids();
        }
        let first = self.unused_ids.front_mut()?;
        let id = first.next();
        if first.start == first.end {
            self.unused_ids.pop_front();
        }
        id.map(WorkerId)
    }

    pub(super) fn add_ids(&mut self, ids: Range<u32>) {
        self.has_requested_ids = false;
        self.unused_ids.push_back(ids);
    }

    /// Starts a worker. Returns `None` if it can't be started.
    pub(super) fn start(&mut self, cx: &mut Context, kind: WorkerKind) -> Option<WorkerId> {
        let id = self.next_id(cx)?;
        let tenant = cx.tenant_of_worker(kind)?;
        match cx.driver.start_worker(id, kind, tenant) {
            Ok(link) => {
                match kind {
                    WorkerKind::Actor(actor) => _ = self.of_actors.insert(actor, id),
                    WorkerKind::Driver(job) => {
                        if let Some(job) = cx.jobs.get_mut(&job) {
                            job.driver = id;
                        }
                    }
                    _ => {}
                }
                add(cx, Worker::new(id, kind, link, cx.time.now));
                Some(id)
            }
            Err(error) => {
                log::warn!("a worker can't be started: {error}");
                self.failed_starts += 1;
                None
            }
        }
    }

    /// Adds a client as a worker: usually that of its job's root task.
    pub(super) fn add_client(
        &mut self,
        cx: &mut Context,
        kind: WorkerKind,
        mut client: ClientLink,
    ) -> Option<WorkerId> {
        let id = self.next_id(cx)?;
        client.set_worker(id);
        add(cx, Worker::new(id, kind, Box::new(client), cx.time.now));
        Some(id)
    }

    /// Starts a worker for a tenant's tasks, unless it has one: it is ready when the first task is.
    pub(super) fn start_first(&mut self, cx: &mut Context, tenant: TenantId) {
        let kind = WorkerKind::Tasks(tenant);
        let is_present = cx.workers.values().any(|worker| worker.kind == kind) || self.retries.contains(&kind);
        if !is_present && cx.options.workers > 0 {
            self.start_or_retry(cx, kind);
        }
    }

    /// Requests a worker: [`Workers::start_requested`] starts it.
    pub(super) fn request(&mut self, kind: WorkerKind) {
        self.requested.push(kind);
    }

    /// Starts requested workers. Those that can't be started are retried later.
    pub(super) fn start_requested(&mut self, cx: &mut Context) {
        for kind in std::mem::take(&mut self.requested) {
            self.start_or_retry(cx, kind);
        }
    }

    /// Retries workers that could not be started. Returns whether workers failed to start too often.
    pub(super) fn tick(&mut self, cx: &mut Context) -> bool {
        if self.next_retry.is_none_or(|at| cx.time.now < at) {
            return false;
        }
        self.next_retry = None;
        for kind in std::mem::take(&mut self.retries) {
            self.start_or_retry(cx, kind);
        }
        self.gives_up()
    }

    /// Starts a worker that is still needed, or has it retried.
    fn start_or_retry(&mut self, cx: &mut Context, kind: WorkerKind) {
        let is_needed = match kind {
            WorkerKind::Actor(actor) => cx.scheduler.actor(actor).is_some_and(|view| view.state != ActorState::Dead),
            WorkerKind::Driver(job) => cx.jobs.contains_key(&job),
            _ => true,
        };
        if is_needed && self.start(cx, kind).is_none() {
            self.retries.push(kind);
            let delay = RETRY_DELAY * 2_u32.pow(self.failed_starts.min(FAILED_STARTS_MAX));
            self.next_retry.get_or_insert(cx.time.now + delay);
        }
    }

    /// Returns whether workers failed to start too often, once.
    fn gives_up(&mut self) -> bool {
        let gives_up = self.failed_starts >= FAILED_STARTS_MAX;
        if gives_up {
            self.failed_starts = 0;
        }
        gives_up
    }

    /// Removes and kills a worker, and counts failed starts.
    pub(super) fn lose(&mut self, cx: &mut Context, id: WorkerId, why: &str) -> Option<LostWorker> {
        let worker = remove(cx, id)?;
        log::warn!("worker {} ({:?}) is lost: {why}", id.0, worker.kind);
        let started = worker.started_tasks();
        for job in started.iter().filter_map(|task| worker.job_of(*task)) {
            cx.usage.book(job, |amounts| amounts.attempts_lost += 1);
        }
        let has_started = !started.is_empty() || worker.has_sent || cx.time.now - worker.created >= START_TIME_MAX;
        self.failed_starts = if has_started { 0 } else { self.failed_starts + 1 };
        Some(LostWorker { kind: worker.kind, started, gives_up: self.gives_up() })
    }

    /// An actor has ended: its worker, if it has its own, is killed.
    pub(super) fn actor_ended(&mut self, cx: &mut Context, actor: ActorId) {
        if let Some(worker) = self.of_actors.remove(&actor) {
            Workers::dismiss(cx, worker);
        }
    }

    /// Ends workers for tasks and actors that have had none for a while.
    pub(super) fn end_idle(&mut self, cx: &mut Context) {
        let now = cx.time.now;
        if self.last_idle_check.is_some_and(|last| now.saturating_duration_since(last) < IDLE_CHECK_INTERVAL) {
            return;
        }
        self.last_idle_check = Some(now);
        let mut ended = Vec::new();
        for view in cx.scheduler.workers() {
            let is_shared = matches!(view.kind, WorkerKind::Tasks(_) | WorkerKind::Actors(_));
            let Some(worker) = cx.workers.get_mut(&view.id).filter(|_| is_shared) else { continue };
            let is_idle = view.assigned.is_empty() && view.blocked.is_empty() && view.actors.is_empty();
            if !is_idle || worker.is_busy() || worker.link.has_messages() {
                worker.idle_since = None;
            } else if now.saturating_duration_since(*worker.idle_since.get_or_insert(now)) >= IDLE_TIME_MAX {
                ended.push(view.id);
            }
        }
        ended.into_iter().for_each(|worker| Workers::dismiss(cx, worker));
    }

    /// Kills a worker that has no tasks left.
    pub(super) fn dismiss(cx: &mut Context, worker: WorkerId) {
        // An attempt that it runs ends with its job or its actor.
        if let Some((job, _)) = cx.workers.get(&worker).and_then(Worker::running_job) {
            cx.usage.book(job, |amounts| amounts.attempts_failed += 1);
        }
        if remove(cx, worker).is_some() {
            cx.step_later(Event::WorkerLost { worker, started: Vec::new(), culprit: None });
        }
    }

    /// Assigns a task to a worker, behind tasks for which its queue had no room.
    pub(super) fn assign(cx: &mut Context, id: WorkerId, task: TaskId) {
        let Some(worker) = cx.workers.get_mut(&id) else { return };
        // If the task's job has ended, the scheduler has the attempt interrupted next, which removes it from the overflow.
        if !worker.overflow.is_empty() || cx.scheduler.call(task).is_none() {
            worker.overflow.push_back(task);
            return;
        }
        let assigned = try_assign(cx, id, task);
        let Some(worker) = cx.workers.get_mut(&id) else { return };
        match assigned {
            Ok(true) => {}
            Ok(false) => worker.overflow.push_back(task),
            Err(e) => worker.fail(e),
        }
    }

    /// Ends an attempt that waits for room in its worker's queue: the worker does not know it. Returns whether it did.
    pub(super) fn cancel_overflow(
        cx: &mut Context,
        worker: WorkerId,
        AttemptRef { task, attempt }: AttemptRef,
        reason: Option<Fault>,
    ) -> bool {
        let Some(connected) = cx.workers.get_mut(&worker) else { return false };
        let Some(at) = connected.overflow.iter().position(|other| *other == task) else { return false };
        connected.overflow.remove(at);
        let fault = reason.unwrap_or_else(|| Fault::new(Code::Cancelled, "it was cancelled"));
        let outcome =
            Outcome::Failed(Failure { error: Arc::new(TaskError { fault, chain: Vec::new() }), system: false });
        cx.step_later(Event::AttemptFinished { task, attempt, worker, outcome, nanos: 0 });
        true
    }

    /// Takes back the tasks that a worker has not started.
    pub(super) fn recall(cx: &mut Context, id: WorkerId) {
        let Some(worker) = cx.workers.get_mut(&id) else { return };
        let mut tasks = worker.reclaim_tasks();
        for task in &tasks {
            drop_needs(worker, &cx.scheduler, *task);
        }
        tasks.extend(worker.overflow.drain(..));
        cx.step_later(Event::Recalled { worker: id, tasks });
    }

    /// Assigns tasks that wait for room, and returns workers that exited or failed, with the reasons.
    pub(super) fn check(cx: &mut Context) -> Vec<(WorkerId, String)> {
        let mut failed = Vec::new();
        let mut waiting = Vec::new();
        for worker in cx.workers.values_mut() {
            worker.link.claim_unpublished();
            if let Some(why) = worker.failure.take() {
                failed.push((worker.id, why));
            } else if !worker.link.has_messages() && worker.link.has_exited() {
                failed.push((worker.id, "it has exited".to_owned()));
            } else if !worker.overflow.is_empty() {
                waiting.push(worker.id);
            }
        }
        for id in waiting {
            while let Some(task) = cx.workers.get(&id).and_then(|worker| worker.overflow.front().copied()) {
                match try_assign(cx, id, task) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(e) => {
                        failed.push((id, e.to_string()));
                        break;
                    }
                }
                cx.workers.get_mut(&id).map(|worker| worker.overflow.pop_front());
            }
        }
        failed
    }

    /// Publishes messages and tasks to all workers.
    pub(super) fn flush(cx: &mut Context) {
        for worker in cx.workers.values_mut() {
            if let Err(e) = worker.link.flush() {
                worker.fail(e);
            }
        }
    }
}

/// Removes and kills a worker, and drops the values of a message that it waits with.
fn remove(cx: &mut Context, id: WorkerId) -> Option<Worker> {
    let mut worker = cx.workers.remove(&id)?;
    let running = worker.running_job();
    worker.link.kill();
    worker.admitted.drain(..).flatten().for_each(|key| cx.values.drop_value(key));
    cx.push(Effect::WorkerDisconnected(id));
    // The time of the attempt that it ran, as far as known: since the worker last reported one.
    if let Some((job, since)) = running {
        let nanos = cx.time.nanos.saturating_sub(since);
        cx.usage.book(job, |amounts| amounts.cpu_ns = amounts.cpu_ns.saturating_add(nanos));
    }
    Some(worker)
}

fn add(cx: &mut Context, worker: Worker) {
    let (id, kind) = (worker.id, worker.kind);
    cx.workers.insert(id, worker);
    cx.push(Effect::WorkerAdded(id));
    cx.step(Event::WorkerReady { worker: id, node: cx.node(), kind });
}

/// Assigns a task to a worker, with the objects that it needs. Returns whether its queue had room.
fn try_assign(cx: &mut Context, id: WorkerId, task: TaskId) -> io::Result<bool> {
    let Some(call) = cx.scheduler.call(task) else { return Ok(true) };
    if !call.needs.is_empty() || call.creation.is_some() {
        for object in task_start(&cx.scheduler, task, call).needs.into_owned() {
            deliver_need(cx, id, object)?;
        }
    }
    let Context { workers, scheduler, time, .. } = cx;
    let (Some(call), Some(view)) = (scheduler.call(task), scheduler.task(task)) else { return Ok(true) };
    let Some(worker) = workers.get_mut(&id) else { return Ok(true) };
    let program = call.program.compiled.number();
    if worker.programs.insert(program) {
        worker.link.send_program(&call.program.compiled, &call.program.limits, call.program.kinds())?;
    }
    let TaskStart { role, function, needs, refs, arguments } = task_start(scheduler, task, call);
    let start = StartTask {
        task: task.0,
        attempt: view.attempt.0,
        job: view.job.0,
        program,
        function,
        seed: call.seed,
        role,
        has_gpu: view.demand.gpus > 0,
        needs: needs.iter().map(|object| object.0).collect(),
        refs: refs.iter().map(|object| object.0).collect(),
        arguments: &arguments,
    };
    Ok(match worker.link.assign(&start) {
        Some(position) => {
            worker.task_assigned(task, view.job, position, time.nanos);
            true
        }
        None => {
            drop_needs(worker, scheduler, task);
            false
        }
    })
}

/// Delivers an object that the next task needs. The task requests a value that is not in memory.
fn deliver_need(cx: &mut Context, id: WorkerId, object: ObjectId) -> io::Result<()> {
    let Some(job) = cx.scheduler.job_of_object(object) else { return Ok(()) };
    let contains = cx.scheduler.contained_objects(object).map(|object| object.0).collect();
    let key = cx.scheduler.value(object).and_then(|value| value.ok()?.key());
    let lent = key.map(|key| cx.lend(key, id));
    let Some(worker) = cx.workers.get_mut(&id) else { return Ok(()) };
    let message =
        |value, contains| NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: false };
    match (cx.scheduler.value(object), lent) {
        (Some(Ok(StoredValue::Inline(bytes))), _) => worker.link.send(&message(Delivery::Value(bytes), contains)),
        (Some(Err(failed)), _) => {
            let error = failed.encode();
            worker.link.send(&message(Delivery::Failed(&error), contains));
        }
        (_, lent) => {
            let lent = lent.unwrap_or(LendResult::Pending);
            deliver_lent(worker, LentDelivery { job, object, key, lent, contains, requested: false })?;
        }
    }
    Ok(())
}

/// Drops the deliveries for a task that its worker does not start.
fn drop_needs(worker: &mut Worker, scheduler: &Scheduler<TaskPayload, StoredValue>, task: TaskId) {
    let (Some(call), Some(job)) = (scheduler.call(task), scheduler.job_of(task)) else { return };
    for object in task_start(scheduler, task, call).needs.iter() {
        worker.link.send(&NodeMessage::DropDelivery(job.0, object.0));
    }
}
