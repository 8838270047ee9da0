//! State that all parts of the engine read and change: the scheduler, values, links to workers, connections to peers, and
//! the queue of effects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use rustc_hash::FxHashMap;
use sandbar_core::{
    Fault, IdAllocator, JobId, JobRun, Limits, NodeId, ObjectId, TaskError, TaskId, TenantId, WorkerId,
};
use sandbar_sched::{
    Event, JobLimits, Options, PayloadCallbacks, ResourceSet, Scheduler, TaskView, ValueBytes, ValueLocation,
    WorkerKind,
};
use sandbar_store::{LendResult, StoreAction, ValueKey, ValueMemory, ValueStore, WriterAction};
use sandbar_worker::program::NodeMessage;

use super::driver::Driver;
use super::effects::{Effect, Effects};
use super::peers::Connections;
use super::usage::Usage;
use super::values::{RemoteValues, StoredValue, ValuePlace};
use crate::calls::{Names, TaskPayload};
use crate::worker::Worker;

/// Limits and resources of an engine.
#[derive(Debug, Clone)]
pub(crate) struct EngineOptions {
    pub(crate) node: NodeId,
    /// Worker ids of this node. No other node allocates them.
    pub(crate) worker_ids: Range<u32>,
    /// Maximum number of workers that run tasks of one tenant.
    pub(crate) workers: u32,
    pub(crate) resources: ResourceSet,
    pub(crate) job_limits: JobLimits,
    /// Maximum limits of a task.
    pub(crate) task_limits: Limits,
    /// Memory for objects, in bytes.
    pub(crate) memory_bytes_max: u64,
    /// Memory of this process for tasks, calls, objects and small values of all tenants, in bytes.
    pub(crate) task_bytes_max: u64,
}

/// Shared state of the engine's parts.
pub(crate) struct Context {
    pub(crate) options: EngineOptions,
    pub(crate) scheduler: Scheduler<TaskPayload, StoredValue>,
    pub(crate) values: ValueStore,
    pub(crate) remote_values: RemoteValues,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) peers: Connections,
    pub(crate) jobs: FxHashMap<JobId, LocalJob>,
    /// Jobs of detached actors, which outlive the jobs that create them.
    pub(crate) detached_jobs: BTreeMap<TenantId, JobId>,
    pub(crate) ids: Ids,
    pub(crate) time: Time,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) effects: Effects,
    /// What jobs use.
    pub(super) usage: Usage,
}

/// A job that this node runs, as far as other parts than the job recorder need it.
#[derive(Debug)]
pub(crate) struct LocalJob {
    /// Root task.
    pub(crate) first: TaskId,
    /// Worker of the root task.
    pub(crate) driver: WorkerId,
    /// Identity in accounts.
    pub(crate) run: JobRun,
    /// Name in the cluster, if another node may take the job over.
    pub(crate) cluster_name: Option<Arc<str>>,
    /// Number of submitted tasks.
    pub(crate) submitted: u64,
}

/// The time of the current input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    pub(crate) now: Instant,
    /// Nanoseconds of the machine's monotonic clock, as workers report.
    pub(crate) nanos: u64,
}

/// Allocators of ids and names.
#[derive(Debug)]
pub(crate) struct Ids {
    allocator: IdAllocator,
    /// Worker id that allocates the ids of jobs' root tasks, of proxy tasks and of leases. No worker process has it.
    own: WorkerId,
    next_job: Arc<AtomicU32>,
    pub(crate) names: Names,
}

impl Ids {
    pub(crate) fn new(own: WorkerId, next_job: Arc<AtomicU32>) -> Ids {
        Ids { allocator: IdAllocator::for_worker(own), own, next_job, names: Names::default() }
    }

    /// Allocates consecutive ids. Returns the first, or `None` if there are none left.
    pub(crate) fn take(&mut self, count: u32) -> Option<u64> {
        self.allocator.take(count)
    }

    /// Returns whether this node's engine itself allocates an id, rather than a worker or another node.
    pub(crate) fn is_own(&self, id: u64) -> bool {
        IdAllocator::issuer(id) == self.own
    }

    /// Returns the worker id under which this node's engine allocates ids. No worker process has it.
    pub(crate) fn own_worker(&self) -> WorkerId {
        self.own
    }

    pub(crate) fn next_job(&self) -> JobId {
        JobId(self.next_job.fetch_add(1, Relaxed))
    }
}

/// Id, in accounts, of the job of a tenant's detached actors.
const DETACHED: &str = "(actors)";

/// Values in the store may be lost with its disk, inline values may not.
const PAYLOAD_CALLBACKS: PayloadCallbacks<TaskPayload, StoredValue> = PayloadCallbacks {
    can_be_lost: |value| !matches!(value, StoredValue::Inline(_)),
    location: |value| match value {
        StoredValue::Inline(_) => None,
        StoredValue::Local(_, bytes) => Some(ValueLocation { node: None, bytes: *bytes }),
        StoredValue::Remote(key) => Some(ValueLocation { node: Some(key.node), bytes: key.bytes }),
    },
    call_bytes: |call| call.bytes(),
    value_bytes: |value| match value {
        StoredValue::Inline(bytes) => ValueBytes { memory: bytes.len() as u64, stored: 0 },
        StoredValue::Local(_, bytes) => ValueBytes { memory: 0, stored: *bytes },
        StoredValue::Remote(_) => ValueBytes::default(),
    },
};

impl Context {
    pub(crate) fn new(
        options: EngineOptions,
        values: ValueStore,
        next_job: Arc<AtomicU32>,
        driver: Box<dyn Driver>,
    ) -> Context {
        let own = WorkerId(options.worker_ids.start);
        let time = Time { now: driver.now(), nanos: driver.monotonic_nanos() };
        let scheduler_options = Options { memory_bytes_max: options.task_bytes_max, ..Options::default() };
        Context {
            options,
            scheduler: Scheduler::with_lineage(scheduler_options, PAYLOAD_CALLBACKS),
            values,
            remote_values: RemoteValues::default(),
            workers: BTreeMap::new(),
            peers: Connections::default(),
            jobs: FxHashMap::default(),
            detached_jobs: BTreeMap::new(),
            ids: Ids::new(own, next_job),
            time,
            driver,
            effects: Effects::default(),
            usage: Usage::default(),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.options.node
    }

    /// Runs a scheduler step. Its actions are handled after the current input, in order, as effects.
    pub(crate) fn step(&mut self, event: Event<TaskPayload, StoredValue>) {
        if let Event::Submitted { task } | Event::StartedInline { task, .. } | Event::FinishedInline { task, .. } =
            &event
            && let Some(job) = self.jobs.get_mut(&task.job)
        {
            job.submitted += 1;
        }
        if let Event::JobEnded { job } = &event {
            self.usage.end(*job, self.time.nanos);
        }
        self.scheduler.set_time(self.time.nanos);
        self.effects.run_step(&mut self.scheduler, event);
    }

    /// Starts a job, and opens its account, in which its time counts from `timed_since` unless another node counts it.
    pub(crate) fn start_job(&mut self, job: JobId, tenant: TenantId, run: JobRun, timed_since: Option<u64>) {
        self.usage.open(job, tenant, run, timed_since);
        let limits = self.options.job_limits;
        self.step(Event::JobStarted { job, tenant, limits });
    }

    /// Returns the job of detached actors that a job creates: its tenant has one.
    pub(crate) fn detached_job(&mut self, job: JobId) -> JobId {
        let tenant = self.scheduler.tenant_of(job).unwrap_or_default();
        if let Some(job) = self.detached_jobs.get(&tenant) {
            return *job;
        }
        let job = self.ids.next_job();
        self.start_job(job, tenant, JobRun::first(DETACHED), None);
        self.detached_jobs.insert(tenant, job);
        job
    }

    pub(crate) fn steps(&mut self, events: impl IntoIterator<Item = Event<TaskPayload, StoredValue>>) {
        events.into_iter().for_each(|event| self.step(event));
    }

    /// Runs a scheduler step after the effects of the current one.
    pub(crate) fn step_later(&mut self, event: Event<TaskPayload, StoredValue>) {
        self.effects.events.push_back(event);
    }

    /// Queues an effect after those of earlier steps.
    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.queue.push_back(effect);
    }

    /// Sends a message to a worker, unless it has disconnected.
    pub(crate) fn send(&mut self, worker: WorkerId, message: &NodeMessage<'_>) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.link.send(message);
        }
    }

    /// Adds a received value to the value store, if it is large.
    pub(crate) fn store(&mut self, job: JobId, object: ObjectId, memory: ValueMemory) -> Result<StoredValue, Fault> {
        self.values.add(job, object, memory).map(|key| self.stored(key))
    }

    /// Returns the value of a key of the value store.
    pub(crate) fn stored(&self, key: ValueKey) -> StoredValue {
        StoredValue::Local(key, self.values.view(key).map_or(0, |view| view.bytes))
    }

    /// Drops a value that no object has.
    pub(crate) fn discard(&mut self, value: &StoredValue) {
        match value {
            StoredValue::Inline(_) => {}
            StoredValue::Local(key, _) => self.values.drop_value(*key),
            StoredValue::Remote(key) => self.push(Effect::DropRemoteValue(*key)),
        }
    }

    /// Returns where an object's value is, if there is one, and its size.
    pub(crate) fn value_place(&self, object: ObjectId) -> Option<(ValuePlace, u64)> {
        let in_store = |key| {
            let view = self.values.view(key)?;
            Some((if view.in_memory { ValuePlace::Memory } else { ValuePlace::Disk }, view.bytes))
        };
        match self.scheduler.value(object)?.ok()? {
            StoredValue::Inline(bytes) => Some((ValuePlace::Inline, bytes.len() as u64)),
            StoredValue::Local(key, _) => in_store(*key),
            StoredValue::Remote(key) => {
                let copy = self.remote_values.local_copy(*key).and_then(in_store);
                Some((copy.map_or(ValuePlace::Remote, |(place, _)| place), key.bytes))
            }
        }
    }

    /// Returns the bytes of a call's arguments, and of the objects among them.
    pub(crate) fn input_bytes(&self, call: &TaskPayload) -> u64 {
        let needed = call.needs.iter().map(|object| self.value_place(*object).map_or(0, |(_, bytes)| bytes));
        call.arguments.len() as u64 + needed.sum::<u64>()
    }

    /// Returns an error of an attempt, with the names of the tasks for which it was submitted here.
    pub(crate) fn with_ancestors(&self, task: TaskId, error: TaskError) -> TaskError {
        if error.chain.is_empty() {
            return error;
        }
        let mut chain = self.scheduler.ancestor_names(task);
        chain.extend(error.chain.into_iter().skip(1));
        TaskError { chain, ..error }
    }

    /// Returns the number of tasks of each job.
    pub(crate) fn count_by_job(&self, tasks: &[TaskId]) -> BTreeMap<JobId, u64> {
        let mut counts = BTreeMap::new();
        for job in tasks.iter().filter_map(|task| self.scheduler.job_of(*task)) {
            *counts.entry(job).or_default() += 1;
        }
        counts
    }

    /// Returns the tenant of a worker of this kind, if only one uses it.
    pub(crate) fn tenant_of_worker(&self, kind: WorkerKind) -> Option<TenantId> {
        match kind {
            WorkerKind::Tasks(tenant) | WorkerKind::Actors(tenant) => Some(tenant),
            WorkerKind::Driver(job) => self.scheduler.tenant_of(job),
            WorkerKind::Actor(actor) => self.scheduler.tenant_of(self.scheduler.actor(actor)?.job),
            WorkerKind::RemoteTasks | WorkerKind::PeerProxy | WorkerKind::Leases => None,
        }
    }

    /// Returns the tasks of a job that are assigned to workers.
    pub(crate) fn assigned_tasks(&self, job: JobId) -> impl Iterator<Item = TaskView<'_>> {
        let all = self.scheduler.workers().flat_map(|worker| worker.assigned.into_iter().chain(worker.blocked));
        all.filter_map(move |task| self.scheduler.task(task).filter(|view| view.job == job))
    }

    /// Performs the actions of the value store: messages to workers, and tasks of the disk.
    pub(crate) fn run_store_actions(&mut self) {
        for action in self.values.take_actions() {
            match action {
                StoreAction::Forget(worker, key) => self.send(worker, &NodeMessage::ReleaseFile(key.0)),
                StoreAction::Writer(worker, number, action) => {
                    if let Some(worker) = self.workers.get_mut(&worker) {
                        reclaim_memory(worker, number, action);
                    }
                }
                StoreAction::Disk(task) => self.driver.submit_disk_task(task),
            }
        }
    }

    /// Lends a value to a worker. Requests the return of files first: the lent file may be among them.
    pub(crate) fn lend(&mut self, key: ValueKey, worker: WorkerId) -> LendResult {
        self.run_store_actions();
        self.values.lend(key, worker)
    }
}

/// Reuses or drops memory that a worker wrote a value to.
fn reclaim_memory(worker: &mut Worker, number: u32, action: WriterAction) {
    let link = &mut worker.link;
    match action {
        WriterAction::Reuse => link.mark_memory_free(number),
        // The worker writes to it already.
        WriterAction::Trim(_) if !link.reclaim_memory(number) => {}
        WriterAction::Trim(memory) => {
            let _ = memory.discard();
            link.send(&NodeMessage::DropMemory(number));
        }
        WriterAction::Close => link.send(&NodeMessage::DropMemory(number)),
    }
}
