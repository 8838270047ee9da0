//! The engine of the runtime: the state of one node's tasks, actors, objects and streams, without clock, threads or IO of its
//! own.
//!
//! A [`Driver`] performs its IO. Each input (a message of a worker or a peer, a request, a completion, a tick) is handled to
//! its end: parts of the engine change the [`Context`], and queue [effects] for the scheduler and each other. No part calls
//! another: the engine alone routes effects (`dispatch.rs`), and composes the parts for a message of a worker (`messages.rs`).

mod actors;
mod attempts;
mod backpressure;
mod context;
mod deadlines;
mod deadlocks;
mod deliveries;
mod detached;
mod dispatch;
mod driver;
mod effects;
mod files;
mod fuzz;
mod groups;
mod inspect;
mod jobs;
mod leases;
mod messages;
mod objects;
mod peers;
mod refs;
#[cfg(test)]
mod simulation;
mod submission;
mod unmet_demands;
mod usage;
mod values;
mod workers;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst, fence};

use sandbar_core::{Code, Fault, JobId, NodeId, ObjectId, TaskError, TaskId, TenantId, WorkerId};
use sandbar_jobs::{JobQuery, JobResponse, LogEntry};
use sandbar_sched::{DailyAmounts, Event, Submission, TaskState, TenantShare, WorkerKind};
use sandbar_store::{SealedFile, ValueStore};
use sandbar_worker::CallJob;
use tokio::sync::oneshot;

pub(crate) use self::context::EngineOptions;
pub(crate) use self::driver::Driver;
pub use self::fuzz::{FuzzInput, generate_peer_message, run_fuzz_inputs};
pub(crate) use self::jobs::{FinishedJob, JobCounters, JobOutputs, JobResult, NewJob, RootTask};
pub use self::usage::JobUsage;
pub use self::workers::WORKERS_MAX;

use self::backpressure::BackPressure;
use self::context::{Context, LocalJob, Time};
use self::deadlines::{AssignedAttempt, Deadlines, ExpiredAttempt};
use self::deadlocks::Deadlocks;
use self::effects::Effect;
use self::files::OpenedFiles;
use self::inspect::Inspection;
use self::jobs::Jobs;
use self::leases::Leases;
use self::objects::Objects;
use self::peers::{JobReport, Peers, is_resumable};
use self::refs::ProgressAmount;
use self::unmet_demands::UnmetDemands;
use self::workers::{LostWorker, Workers};
use crate::calls::{TaskPayload, units};
use crate::lease_request::{LeaseId, LeaseRequest};
use crate::peer::{CachedResult, Callback, LoadResult, NewPeer};
use crate::policy::TenantPolicy;

/// Maximum number of messages of one peer that a poll handles.
const PEER_MESSAGES_PER_POLL: usize = 256;

/// The runtime's state.
pub(crate) struct Engine {
    cx: Context,
    workers: Workers,
    objects: Objects,
    files: OpenedFiles,
    jobs: Jobs,
    leases: Leases,
    deadlines: Deadlines,
    deadlocks: Deadlocks,
    backpressure: BackPressure,
    unmet_demands: UnmetDemands,
    peers: Peers,
}

impl Engine {
    /// Creates an engine. Jobs that other threads submit have ids of `next_job`. `is_contended` is set while something
    /// waits for what leases hold.
    pub(crate) fn new(
        options: EngineOptions,
        values: ValueStore,
        next_job: Arc<AtomicU32>,
        is_contended: Arc<AtomicBool>,
        driver: Box<dyn Driver>,
    ) -> Engine {
        let workers = Workers::new(options.worker_ids.clone());
        let mut cx = Context::new(options, values, next_job, driver);
        let (node, resources) = (cx.node(), cx.options.resources.clone());
        let workers_max = cx.options.workers;
        cx.step(Event::NodeJoined { node, resources, remote: false, workers: workers_max });
        let leases = Leases::new(&mut cx, is_contended);
        let mut engine = Engine {
            cx,
            workers,
            leases,
            objects: Objects::default(),
            files: OpenedFiles::default(),
            jobs: Jobs::default(),
            deadlines: Deadlines::default(),
            deadlocks: Deadlocks::default(),
            backpressure: BackPressure::default(),
            unmet_demands: UnmetDemands::default(),
            peers: Peers::default(),
        };
        engine.run_effects();
        engine
    }

    /// Starts a job. `done` gets its result.
    pub(crate) fn start_job(&mut self, job: JobId, new: NewJob, done: oneshot::Sender<JobResult>) {
        self.cx.time.nanos = self.cx.driver.monotonic_nanos();
        self.start_job_now(job, new, done);
        self.run_effects();
    }

    fn start_job_now(&mut self, job: JobId, new: NewJob, done: oneshot::Sender<JobResult>) {
        let NewJob { tenant, run, program, root_task, seed, lasting, files, outputs } = new;
        let cx = &mut self.cx;
        let Some(id) = cx.ids.take(1).map(TaskId) else { return };
        log::debug!("job {job} of tenant {tenant} starts");
        cx.start_job(job, tenant, run.clone(), Some(cx.time.nanos));
        self.workers.start_first(cx, tenant);
        let kind = WorkerKind::Driver(job);
        let (driver, name, function, arguments) = match root_task {
            RootTask::Function { function, arguments } => {
                let name = program.tasks.get(function as usize).map(|task| task.name.clone());
                (self.workers.start(cx, kind), name.unwrap_or_else(|| "main".into()), function, arguments)
            }
            // A client calls no function of the program.
            RootTask::Client { name, link } => {
                (self.workers.add_client(cx, kind, link), name.into(), u32::MAX, Box::default())
            }
        };
        let Some(driver) = driver else {
            cx.step(Event::JobEnded { job });
            let fault = Fault::new(Code::Host, "a worker for the job can't be started");
            let result = Err(Arc::new(TaskError { fault, chain: Vec::new() }));
            // The submitter may have dropped the receiver.
            let _ = done.send(JobResult { result, counters: JobCounters::default() });
            return;
        };
        let (cluster_name, results) = lasting.filter(|_| is_resumable(&program)).unzip();
        let local = LocalJob { first: id, driver, run, cluster_name, submitted: 0 };
        self.jobs.add(cx, job, local, files, outputs, done);
        let call = TaskPayload::new(program, function, seed, arguments, cx.time.nanos);
        cx.step(Event::Submitted { task: Submission::bare(id, job, name, call) });
        self.peers.job_started(cx, job, results.unwrap_or_default());
    }

    /// Stops a job, unless it has ended.
    pub(crate) fn stop_job(&mut self, job: JobId) {
        let fault = Fault::new(Code::Cancelled, "its job was stopped");
        self.jobs.end_later(job, Err(Arc::new(TaskError { fault, chain: Vec::new() })));
        self.run_effects();
    }

    /// Changes a tenant's share of the node, and its limits.
    pub(crate) fn set_tenant(&mut self, tenant: TenantId, policy: &TenantPolicy) {
        let share = TenantShare { weight: policy.weight, reserved_cpus: units(policy.reserved_cpus) };
        self.jobs.limit_time(tenant, policy.job_time_max);
        self.cx.step(Event::TenantChanged { tenant, share, limits: policy.limits });
        self.run_effects();
    }

    /// Adds to what a tenant has used of its budgets today, before this runtime started.
    pub(crate) fn charge_tenant(&mut self, tenant: TenantId, used: DailyAmounts) {
        self.cx.step(Event::TenantCharged { tenant, used });
    }

    /// A day begins: the budgets of tenants are renewed.
    pub(crate) fn start_day(&mut self) {
        self.charge_tenants();
        self.cx.step(Event::DayStarted);
    }

    /// Returns what jobs have used since the last call.
    pub(crate) fn take_usage(&mut self) -> Vec<JobUsage> {
        self.cx.time.nanos = self.cx.driver.monotonic_nanos();
        self.charge_tenants();
        let Context { workers, usage, time, .. } = &mut self.cx;
        usage.take(time.nanos, |job| workers.values().any(|worker| worker.has_tasks_of(job)))
    }

    /// Tells the scheduler what tenants have used.
    fn charge_tenants(&mut self) {
        for (job, bytes) in self.cx.values.take_spilled_bytes() {
            self.cx.usage.book(job, |amounts| amounts.spilled_bytes += bytes);
        }
        for (tenant, used) in self.cx.usage.take_charges() {
            self.cx.step(Event::TenantCharged { tenant, used });
        }
        let Context { workers, usage, .. } = &mut self.cx;
        if usage.is_large() {
            usage.fold_ended(|job| workers.values().any(|worker| worker.has_tasks_of(job)));
        }
    }

    /// Starts a job whose calls need leases.
    ///
    /// # Errors
    /// Its tenant has used up a budget.
    pub(crate) fn start_call_job(&mut self, id: JobId, job: CallJob) -> Result<(), Fault> {
        self.cx.time.nanos = self.cx.driver.monotonic_nanos();
        // The node of a job has checked it when the job started.
        if job.origin.is_none() {
            self.charge_tenants();
            self.cx.scheduler.check_budget(job.tenant)?;
        }
        self.leases.start_job(&mut self.cx, id, job);
        self.run_effects();
        Ok(())
    }

    /// Ends a job with leases.
    pub(crate) fn end_call_job(&mut self, id: JobId) {
        self.cx.time.nanos = self.cx.driver.monotonic_nanos();
        self.leases.end_job(&mut self.cx, id);
        self.run_effects();
    }

    /// Requests a lease.
    pub(crate) fn request_lease(&mut self, request: LeaseRequest) {
        self.leases.request(&mut self.cx, request);
        self.run_effects();
    }

    /// Returns a lease.
    pub(crate) fn return_lease(&mut self, id: LeaseId) {
        self.leases.returned(&mut self.cx, id);
        self.run_effects();
    }

    /// Shuts down: hands over the records of jobs that have not ended.
    pub(crate) fn close(&mut self) {
        self.jobs.close_all(&self.cx);
    }

    /// Answers a query about a job.
    pub(crate) fn inspect(&self, job: JobId, query: JobQuery) -> JobResponse {
        Inspection { cx: &self.cx, jobs: &self.jobs, deadlocks: &self.deadlocks }.query(job, query)
    }

    /// Connects a node. An earlier connection to it ends.
    pub(crate) fn join(&mut self, new: NewPeer) {
        let NewPeer { node, resources, slots, line } = new;
        let cx = &mut self.cx;
        self.peers.disconnect(cx, node);
        cx.step(Event::NodeJoined { node, resources, remote: true, workers: 0 });
        let ids: Vec<WorkerId> = (0..=slots).map_while(|_| self.workers.next_id(cx)).collect();
        self.peers.join(cx, node, line, ids.into_iter());
        self.run_effects();
    }

    /// Shares the value of an object with another node.
    pub(crate) fn share(&mut self, object: ObjectId, reply: Callback<Result<SealedFile, Fault>>) {
        if let Some(reply) = self.objects.share(&mut self.cx, object, reply) {
            let cached = self.peers.cached_value(object);
            reply(cached.ok_or_else(|| Fault::new(Code::Host, "there is no such value")));
        }
    }

    /// Adds worker ids: see [`Driver::request_worker_ids`].
    pub(crate) fn add_worker_ids(&mut self, ids: Range<u32>) {
        self.workers.add_ids(ids);
    }

    /// A value was fetched, or can't be: see [`Driver::fetch`].
    pub(crate) fn fetched(&mut self, number: u64, fetched: Result<SealedFile, Fault>) {
        self.peers.fetched(&mut self.cx, number, fetched);
        self.run_effects();
        self.cx.run_store_actions();
    }

    /// A program was loaded, or can't be: see [`Driver::load`].
    pub(crate) fn loaded(&mut self, node: NodeId, program: u32, loaded: LoadResult) {
        self.peers.loaded(&mut self.cx, node, program, loaded);
        self.run_effects();
    }

    /// Returns cached results of a job from a number on, each with the number after it.
    pub(crate) fn cached_results(&self, name: &str, from: u64) -> Vec<(u64, CachedResult)> {
        self.peers.cached_results(name, from)
    }

    /// Drains the node. `reply` is called once no other node needs it, and no job of its own runs.
    pub(crate) fn drain(&mut self, reply: Callback<()>) {
        self.peers.drain(&mut self.cx, reply);
    }

    /// Returns whether workers have work, so that they are checked often.
    pub(crate) fn is_busy(&self) -> bool {
        self.cx.workers.values().any(|worker| worker.is_busy())
    }

    /// Returns whether a worker or a peer has sent messages that can be handled, or a file was read.
    pub(crate) fn has_input(&mut self) -> bool {
        self.cx.time.now = self.cx.driver.now();
        let cx = &self.cx;
        let can_handle = |worker: &crate::worker::Worker| {
            worker.held_message.is_none() && worker.link.has_messages() && !self.backpressure.holds_client(cx, worker)
        };
        let has_files = self.files.can_admit() && cx.driver.has_files();
        has_files || cx.peers.has_messages() || cx.workers.values().any(can_handle)
    }

    /// Tells workers whether the engine's thread sleeps, so that their messages must wake it.
    pub(crate) fn announce_sleep(&self, sleeps: bool) {
        self.cx.workers.values().for_each(|worker| worker.link.set_node_sleeps(sleeps));
        // A worker that does not see it has published its messages before: they are checked for next.
        fence(SeqCst);
    }

    /// Handles pending messages of workers and peers, and completions of the disk. Returns whether any were pending.
    /// `frame` is a buffer for messages.
    pub(crate) fn poll(&mut self, frame: &mut Vec<u8>) -> bool {
        self.cx.time.now = self.cx.driver.now();
        let mut worked = false;
        let workers: Vec<WorkerId> = self.cx.workers.keys().copied().collect();
        for worker in workers {
            worked |= self.poll_worker(worker, frame);
        }
        worked |= self.poll_peers();
        worked |= self.objects.poll_disk(&mut self.cx);
        self.run_effects();
        for worker in self.objects.take_held() {
            if let Some(message) = self.objects.release(&mut self.cx, worker) {
                self.handle_admitted(worker, &message);
            }
        }
        worked |= self.files.poll(&mut self.cx);
        self.run_effects();
        self.cx.run_store_actions();
        Workers::flush(&mut self.cx);
        self.cx.peers.flush();
        worked
    }

    fn poll_peers(&mut self) -> bool {
        if !self.cx.peers.is_any() {
            return false;
        }
        let mut worked = false;
        for node in self.cx.peers.nodes() {
            for _ in 0..PEER_MESSAGES_PER_POLL {
                let Some(frame) = self.cx.peers.next_frame(node) else { break };
                worked = true;
                self.handle_peer_message(node, &frame);
            }
            if self.cx.peers.is_closed(node) {
                worked = true;
                self.peers.disconnect(&mut self.cx, node);
                self.run_effects();
            }
        }
        worked
    }

    fn handle_peer_message(&mut self, node: NodeId, frame: &[u8]) {
        self.cx.time.nanos = self.cx.driver.monotonic_nanos();
        match self.peers.handle(&mut self.cx, node, frame) {
            Ok(Some(JobReport::Attempt { of, attempt })) => self.jobs.attempt_finished(of, attempt),
            Ok(Some(JobReport::Log { job, task, name, worker, level, line })) => {
                self.jobs.log(job, LogEntry { task: Some((task, &name, worker)), level, line });
            }
            Ok(Some(JobReport::Progress { job, task, name, done, total })) => {
                self.jobs.progress(job, task, name, ProgressAmount { done, total });
            }
            Ok(None) => {}
            Err(error) => {
                log::warn!("node {node} sent an invalid message, and is disconnected: {error}");
                self.peers.disconnect(&mut self.cx, node);
            }
        }
        self.run_effects();
        self.jobs.forget_attempt();
    }

    /// Performs periodic work: checks workers, deadlines, deadlocks, demands, back-pressure and peers.
    pub(crate) fn tick(&mut self) {
        self.cx.time = Time { now: self.cx.driver.now(), nanos: self.cx.driver.monotonic_nanos() };
        for (worker, why) in Workers::check(&mut self.cx) {
            self.lose_worker(worker, &why, None);
        }
        self.run_effects();
        self.cx.run_store_actions();
        self.interrupt_expired();
        self.end_actors_with_calls();
        self.run_effects();
        self.check_interrupted();
        if self.workers.tick(&mut self.cx) {
            self.jobs.end_all(Fault::new(Code::Host, "workers can't be started"));
        }
        self.workers.end_idle(&mut self.cx);
        self.charge_tenants();
        self.jobs.end_overdue(&self.cx);
        self.cx.step(Event::Tick);
        self.objects.tick(&mut self.cx);
        self.unmet_demands.tick(&mut self.cx);
        self.deadlocks.tick(&mut self.cx);
        self.backpressure.tick(&mut self.cx);
        let leases = self.leases.usage_by_origin(&self.cx);
        self.peers.tick(&mut self.cx, !self.jobs.is_empty() || !self.leases.is_empty(), &leases);
        self.run_effects();
    }

    /// Handles a worker that has disconnected, or disconnects it: because of the task `culprit`, if there is one.
    fn lose_worker(&mut self, worker: WorkerId, why: &str, culprit: Option<TaskId>) {
        let Some(LostWorker { kind, started, gives_up }) = self.workers.lose(&mut self.cx, worker, why) else {
            return;
        };
        let cx = &mut self.cx;
        if !started.is_empty() {
            self.jobs.worker_lost(cx, &started, &format!("worker {} is lost: {why}", worker.0));
        }
        cx.step(Event::WorkerLost { worker, started, culprit });
        if gives_up {
            self.jobs.end_all(Fault::new(Code::Host, format!("workers can't be started: {why}")));
        }
        // Its job may end.
        self.run_effects();
        match kind {
            _ if gives_up => {}
            // A lost driver had not started its job's root task if the job still exists.
            WorkerKind::Driver(_) => self.workers.request(kind),
            // The scheduler requests another if it needs one.
            _ => {}
        }
        self.run_effects();
    }

    /// Ends attempts that exceed their time limits.
    fn interrupt_expired(&mut self) {
        let Engine { cx, deadlines, .. } = self;
        let assigned = |task: TaskId| {
            let view = cx.scheduler.task(task)?;
            let worker = view.worker?;
            Some(AssignedAttempt {
                worker,
                attempt: view.attempt,
                is_started: cx.workers.get(&worker).is_some_and(|worker| worker.has_started(task)),
                is_actor_call: cx.scheduler.actor_of(task).is_some(),
            })
        };
        for expired in deadlines.expired(cx.time.now, |task| cx.scheduler.task(task).is_some(), assigned) {
            let ExpiredAttempt { task, worker, attempt, is_actor_call, reason } = expired;
            if is_actor_call {
                actors::withdraw(cx, worker, task, attempt);
            } else {
                cx.push(Effect::Interrupt { worker, task, attempt, reason: Some(reason) });
            }
        }
    }

    /// Ends actors with a call that must end, and runs or waits within the actor's code: the call can't be interrupted alone.
    fn end_actors_with_calls(&mut self) {
        let Engine { cx, deadlines, .. } = self;
        let Context { scheduler, workers, peers, .. } = &*cx;
        let runs = |call: TaskId, worker: WorkerId| {
            // Another node ends the calls of its actors.
            !peers.is_remote(worker)
                && (workers.get(&worker).is_some_and(|worker| worker.link.current_call() == Some(call.0))
                    || scheduler.task(call).is_some_and(|view| view.state == TaskState::Blocked))
        };
        for (call, worker, reason) in deadlines.running_calls(|call| scheduler.task(call).is_some(), runs) {
            let creation = cx.scheduler.actor_of(call).and_then(|actor| cx.scheduler.task(actor.creation_task()));
            let Some((task, attempt)) = creation.map(|view| (view.id, view.attempt)) else { continue };
            if !deadlines.is_ending(task) {
                let reason = Fault::new(Code::ActorDied, format!("it ended with one of its calls: {}", reason.message));
                cx.push(Effect::Interrupt { worker, task, attempt, reason: Some(reason) });
            }
        }
    }

    /// Interrupts attempts again that were requested to end, and kills workers whose attempts don't end in time.
    fn check_interrupted(&mut self) {
        let Engine { cx, deadlines, .. } = self;
        deadlines.check_ending(cx.time.now, |task, worker| {
            let connected = cx.workers.get(&worker)?;
            let current = TaskId(connected.link.current_task()?);
            if current == task {
                // The flag in shared memory names one task.
                connected.link.interrupt(task.0);
            }
            // A worker could claim to run a task that it does not have.
            connected.has_started(current).then_some(current)
        });
        for (worker, task) in self.deadlines.stuck_workers(self.cx.time.now) {
            self.lose_worker(worker, "a task did not end when it was told to", Some(task));
        }
    }
}
