//! The node's pool of workers, which take calls from one queue. It executes: what runs when is the scheduler's to say,
//! by [leases](Leases).

mod answer;
mod drive;
mod leases;
mod queue;
mod worker;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_core::{Code, Fault, Function, Limits, TenantId};
use sandbar_dense::DeviceChoice;
use sandbar_store::{SegmentDraft, SegmentPool, SharedMemory};
use tokio::sync::{mpsc, oneshot};

#[doc(hidden)]
pub use self::answer::fuzz_unpack;
pub use self::leases::{CallJob, CallScheduler, Lease, Leases};
use self::queue::{LaneId, OWN_LANE, Queue};
use crate::GpuProcesses;
use crate::compiler::CompiledComponent;
use crate::protocol::{CallWork, progress};

/// Options of a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Number of worker processes.
    pub workers: usize,
    /// Upper bound of the limits of a call.
    pub limits: Limits,
    /// Path of the program `host-worker`, which runs as a worker when it gets [`crate::WORKER_ARGUMENT`].
    pub program: PathBuf,
    /// GPUs for functions that use dense algebra.
    pub gpus: Option<Arc<GpuProcesses>>,
    /// Whether workers start with the first call instead of with the pool.
    pub on_demand: bool,
}

/// A function with bound parameters, which can be called many times.
#[derive(Debug)]
pub struct Binding {
    id: u64,
    /// The component.
    pub program: Arc<CompiledComponent>,
    /// Index of the function among the component's functions.
    pub function: u32,
    /// Parameters, a JSON object.
    pub params: String,
    /// Limits of each call.
    pub limits: Limits,
    /// `component#function`, for errors.
    pub name: String,
    /// Device for dense algebra. Without one, the processor is used.
    pub device: Option<DeviceChoice>,
    /// Plan for the workers' [`crate::Collectors`], for [`CallWork::Collect`].
    plan: Vec<u8>,
}

/// Maximum bytes of a binding's plan.
pub const PLAN_BYTES_MAX: usize = 32 << 10;

/// Maximum bytes of a binding's parameters.
const PARAMS_BYTES_MAX: usize = 64 << 10;
static BINDINGS: AtomicU64 = AtomicU64::new(0);

fn new_id() -> u64 {
    BINDINGS.fetch_add(1, Ordering::Relaxed)
}

impl Binding {
    /// Binds a function of `program`.
    ///
    /// # Errors
    /// When the parameters are too long.
    pub fn new(
        program: Arc<CompiledComponent>,
        function: u32,
        params: String,
        limits: Limits,
        name: String,
    ) -> Result<Arc<Binding>, Fault> {
        if params.len() > PARAMS_BYTES_MAX {
            return Err(Fault::new(
                Code::Columns,
                format!("its parameters take {} bytes, the limit is {PARAMS_BYTES_MAX}", params.len()),
            )
            .of(&name));
        }
        let device = None;
        Ok(Binding { id: new_id(), program, function, params, limits, name, device, plan: Vec::new() }.into())
    }

    /// Returns a copy of the binding that does dense algebra on another device.
    pub fn on(&self, device: Option<DeviceChoice>) -> Arc<Binding> {
        let Binding { program, function, params, limits, name, plan, .. } = self;
        let (program, function, params) = (program.clone(), *function, params.clone());
        let (name, plan) = (name.clone(), plan.clone());
        Binding { id: new_id(), program, function, params, limits: *limits, name, device, plan }.into()
    }

    /// Returns a copy of the binding whose calls can [collect](CallWork::Collect) by `plan`.
    ///
    /// # Errors
    /// When the plan is longer than [`PLAN_BYTES_MAX`].
    pub fn collecting(&self, plan: Vec<u8>) -> Result<Arc<Binding>, Fault> {
        if plan.len() > PLAN_BYTES_MAX {
            return Err(Fault::new(Code::Host, format!("a plan of {} bytes", plan.len())));
        }
        let Binding { program, function, params, limits, name, device, .. } = self;
        let (program, function, params) = (program.clone(), *function, params.clone());
        let (id, limits, name, device) = (new_id(), *limits, name.clone(), *device);
        Ok(Binding { id, program, function, params, limits, name, device, plan }.into())
    }
}

/// A call for any worker of the pool.
#[derive(Debug, Clone)]
pub struct CallRequest {
    /// The bound function.
    pub binding: Arc<Binding>,
    /// Seed of the call.
    pub seed: u64,
    /// Operation, with its input.
    pub work: CallWork,
}

/// A line of a guest's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// Text of the line.
    pub message: String,
}

/// Output of a call.
#[derive(Debug)]
pub enum CallProduct {
    /// Validated batches.
    Batches(Vec<RecordBatch>),
    /// Collected output of [`CallWork::Collect`], and the number of rows of a [stored](Payload::Stored) input. Both are
    /// reported by the worker and untrusted.
    Collected(Buffer, u64),
    /// Descriptions of functions, for [`CallWork::Describe`].
    Functions(Vec<Function>),
}

impl Default for CallProduct {
    fn default() -> Self {
        CallProduct::Batches(Vec::new())
    }
}

impl CallProduct {
    fn other(&self) -> Fault {
        let what = match self {
            CallProduct::Batches(_) => "batches",
            CallProduct::Collected(..) => "collected output",
            CallProduct::Functions(_) => "functions",
        };
        Fault::new(Code::Host, format!("it returned {what} for a call of another kind"))
    }

    /// Returns the batches.
    ///
    /// # Errors
    /// When the output is of another kind.
    pub fn into_batches(self) -> Result<Vec<RecordBatch>, Fault> {
        if let CallProduct::Batches(batches) = self { Ok(batches) } else { Err(self.other()) }
    }

    /// Returns the collected output, and the number of rows of a stored input.
    ///
    /// # Errors
    /// When the output is of another kind.
    pub fn into_collected(self) -> Result<(Buffer, u64), Fault> {
        if let CallProduct::Collected(collected, rows) = self { Ok((collected, rows)) } else { Err(self.other()) }
    }

    /// Returns the descriptions of functions.
    ///
    /// # Errors
    /// When the output is of another kind.
    pub fn into_functions(self) -> Result<Vec<Function>, Fault> {
        if let CallProduct::Functions(functions) = self { Ok(functions) } else { Err(self.other()) }
    }
}

/// Result of a call that did not fail as a whole.
#[derive(Debug, Default)]
pub struct CompletedCall {
    /// Its output.
    pub product: CallProduct,
    /// Groups that ended a worker, each with its fault.
    pub lost_groups: Vec<(u32, Fault)>,
    /// Peak linear memory of the sandbox, in bytes.
    pub memory_bytes: u64,
    /// Run time in the worker, in nanoseconds.
    pub nanos: u64,
}

/// Result of a call.
#[derive(Debug)]
pub struct CallResult {
    /// Log of the call. If the call ended a worker, the log of the group that did so.
    pub log: Vec<LogLine>,
    /// Its output, or its fault.
    pub result: Result<CompletedCall, Fault>,
}

/// Result of a [submitted](Pool::submit) call.
#[derive(Debug)]
pub struct SubmissionResult {
    /// Token from the submission.
    pub token: u64,
    /// Result of the call.
    pub called: CallResult,
}

/// A bound function and the receiver of its results, shared by many calls.
#[derive(Debug)]
pub struct Caller {
    binding: Arc<Binding>,
    to: ReplyTo,
    /// Lane of its calls in the queue.
    lane: LaneId,
}

#[derive(Debug)]
enum ReplyTo {
    /// Receiver of one result, which is taken when the result is sent.
    One(Mutex<Option<oneshot::Sender<CallResult>>>),
    Many(mpsc::UnboundedSender<Vec<SubmissionResult>>),
}

impl Caller {
    /// Creates a caller of `binding` that sends its results to `answers`, several at a time.
    pub fn new(binding: Arc<Binding>, answers: mpsc::UnboundedSender<Vec<SubmissionResult>>) -> Arc<Caller> {
        Arc::new(Caller { binding, to: ReplyTo::Many(answers), lane: OWN_LANE })
    }

    fn once(binding: Arc<Binding>, to: oneshot::Sender<CallResult>, lane: LaneId) -> Arc<Caller> {
        Arc::new(Caller { binding, to: ReplyTo::One(Mutex::new(Some(to))), lane })
    }

    fn answer_of(&self, token: u64, mut called: CallResult) -> SubmissionResult {
        if called.result.is_err() {
            called.result = called.result.map_err(|fault| fault.of(&self.binding.name));
        }
        SubmissionResult { token, called }
    }

    /// Returns whether the receiver of the results has been dropped.
    fn is_gone(&self) -> bool {
        match &self.to {
            ReplyTo::One(to) => {
                to.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(|to| to.is_closed())
            }
            ReplyTo::Many(to) => to.is_closed(),
        }
    }

    /// Sends results. The receiver may have been dropped, in which case they are discarded.
    fn answer(&self, answers: Vec<SubmissionResult>) {
        match &self.to {
            ReplyTo::One(to) => {
                let to = to.lock().unwrap_or_else(PoisonError::into_inner).take();
                _ = to.zip(answers.into_iter().next()).map(|(to, answer)| to.send(answer.called));
            }
            ReplyTo::Many(to) => _ = to.send(answers),
        }
    }
}

/// A call to [submit](Pool::submit).
#[derive(Debug)]
pub struct CallSubmission {
    /// Token that identifies its result.
    pub token: u64,
    /// Seed of the call.
    pub seed: u64,
    /// Operation, with its input.
    pub work: CallWork,
}

fn no_workers() -> Fault {
    Fault::new(Code::Host, "the pool has no workers left")
}

impl From<Fault> for CallResult {
    fn from(fault: Fault) -> Self {
        CallResult { log: Vec::new(), result: Err(fault) }
    }
}

/// Workers and their queue. Dropping it ends the workers.
#[derive(Debug)]
pub struct Pool {
    queue: Arc<Queue>,
    options: PoolOptions,
    running: Arc<RunningWorkers>,
    segments: SegmentPool,
}

/// The running workers, and the peak memory of ended ones.
#[derive(Debug, Default)]
struct RunningWorkers {
    all: Mutex<HashMap<usize, RunningWorker>>,
    ended_bytes_max: AtomicU64,
}

#[derive(Debug)]
struct RunningWorker {
    process: u32,
    progress: Arc<SharedMemory>,
}

/// Returns the peak resident memory of a process in bytes; zero when it has ended.
pub fn peak_memory_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Consecutive calls of one caller: at least one, and exactly one for [`ReplyTo::One`].
#[derive(Debug)]
struct CallRun {
    caller: Arc<Caller>,
    /// Calls, taken from the front.
    calls: std::vec::IntoIter<PendingCall>,
}

#[derive(Debug)]
struct PendingCall {
    token: u64,
    seed: u64,
    work: CallWork,
    /// `None` for most calls. Boxed, because small entries make the queue faster.
    losses: Option<Box<Losses>>,
}

/// Failures of a call so far.
#[derive(Debug, Default)]
struct Losses {
    /// Number of workers that died while they ran it.
    deaths: u32,
    groups: Vec<(u32, Fault)>,
    /// Log of these groups.
    log: Vec<LogLine>,
}

impl CallRun {
    fn new(caller: Arc<Caller>, calls: Vec<PendingCall>) -> CallRun {
        CallRun { caller, calls: calls.into_iter() }
    }

    /// Splits off the first `calls` calls.
    fn split(&mut self, calls: usize) -> CallRun {
        CallRun::new(self.caller.clone(), self.calls.by_ref().take(calls).collect())
    }

    /// Fails all calls with the same fault.
    fn refuse(self, fault: &Fault) {
        let CallRun { caller, calls } = self;
        caller.answer(calls.map(|item| caller.answer_of(item.token, fault.clone().into())).collect());
    }
}

impl RunningWorkers {
    fn started(&self, worker: usize, process: u32, progress: Arc<SharedMemory>) {
        self.lock().insert(worker, RunningWorker { process, progress });
    }

    /// Records the peak memory of a worker. Must be called before its process is reaped.
    fn ending(&self, worker: usize) {
        let ended = self.lock().remove(&worker);
        self.ended_bytes_max.fetch_max(ended.map_or(0, |ended| peak_memory_bytes(ended.process)), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, RunningWorker>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Pool {
    /// Starts the workers, unless they start on demand. Returns before they are ready.
    pub fn start(options: PoolOptions) -> Pool {
        let queue = Arc::new(Queue::new());
        let running = Arc::new(RunningWorkers::default());
        for index in 0..options.workers.max(1) {
            tokio::spawn(drive::drive(index, options.clone(), queue.register(), running.clone()));
        }
        Pool { queue, options, running, segments: SegmentPool::default() }
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.options.workers.max(1)
    }

    /// Returns the sum of the workers' peak memory in bytes: an upper bound of their memory at any time, since shared
    /// pages count for each.
    pub fn peak_memory_bytes(&self) -> u64 {
        let alive: u64 = self.running.lock().values().map(|worker| peak_memory_bytes(worker.process)).sum();
        alive + self.running.ended_bytes_max.load(Ordering::Relaxed)
    }

    /// Returns the tenants of the last call of each running worker, as the workers report.
    pub fn tenants(&self) -> Vec<TenantId> {
        let tenant = |worker: &RunningWorker| worker.progress.atomic(progress::TENANT).load(Ordering::Relaxed);
        self.running.lock().values().map(tenant).map(TenantId).collect()
    }

    /// Returns memory for the input of a call. It is reused once the call's request is dropped.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn draft(&self, bytes: usize) -> io::Result<SegmentDraft> {
        self.segments.draft(bytes)
    }

    /// Runs a call of the node itself, which needs no lease. Dropping the future cancels the call if it has not started.
    pub async fn call(&self, request: CallRequest) -> CallResult {
        self.call_in(request, OWN_LANE).await
    }

    async fn call_in(&self, request: CallRequest, lane: LaneId) -> CallResult {
        let (to, answer) = oneshot::channel();
        let CallRequest { binding, seed, work } = request;
        match self.enqueue(Caller::once(binding, to, lane), vec![PendingCall { token: 0, seed, work, losses: None }]) {
            Ok(()) => answer.await.unwrap_or_else(|_| no_workers().into()),
            Err(fault) => fault.into(),
        }
    }

    /// Submits calls of the node itself, whose results are sent to the caller's receiver as they complete, several at a time. Dropping the
    /// receiver cancels them.
    ///
    /// # Errors
    /// When no workers are left.
    pub fn submit(&self, caller: &Arc<Caller>, calls: impl IntoIterator<Item = CallSubmission>) -> Result<(), Fault> {
        let item = |CallSubmission { token, seed, work }| PendingCall { token, seed, work, losses: None };
        self.enqueue(caller.clone(), calls.into_iter().map(item).collect())
    }

    fn enqueue(&self, caller: Arc<Caller>, calls: Vec<PendingCall>) -> Result<(), Fault> {
        self.queue.push(CallRun::new(caller, calls)).map_err(|fault| fault.unwrap_or_else(no_workers))
    }
}

/// The calls of a job on the workers of a pool. They run by the leases of the job, and are of its tenant.
#[derive(Debug, Clone)]
pub struct JobCalls {
    pool: Arc<Pool>,
    lane: Arc<JobLane>,
    tenant: TenantId,
}

/// Removes the lane of a job when the job has ended.
#[derive(Debug)]
struct JobLane {
    queue: Arc<Queue>,
    id: LaneId,
}

impl Drop for JobLane {
    fn drop(&mut self) {
        self.queue.remove_lane(self.id);
    }
}

impl JobCalls {
    /// Starts a job on the workers of `pool`.
    ///
    /// # Errors
    /// Fails if the scheduler can't start.
    pub fn start(pool: &Arc<Pool>, scheduler: &dyn CallScheduler, job: CallJob) -> Result<JobCalls, Fault> {
        let tenant = job.tenant;
        let id = pool.queue.add_lane(tenant, scheduler.start(job)?.into());
        Ok(JobCalls { pool: pool.clone(), lane: Arc::new(JobLane { queue: pool.queue.clone(), id }), tenant })
    }

    /// Runs a call. Dropping the future cancels the call if it has not started.
    pub async fn call(&self, request: CallRequest) -> CallResult {
        self.pool.call_in(request, self.lane.id).await
    }

    /// Returns the tenant of the job.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}
