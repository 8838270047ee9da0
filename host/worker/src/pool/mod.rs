//! The node's side: a pool of workers that takes calls from one queue.

mod answer;
mod drive;
mod worker;
mod queue;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_core::{Code, Fault, Function, Limits};
use sandbar_dense::Choice;
use sandbar_store::{SegmentDraft, SegmentPool};
use tokio::sync::{mpsc, oneshot};

#[doc(hidden)]
pub use self::answer::fuzz_unpack;
use self::queue::Queue;
use crate::GpuProcesses;
use crate::compiler::CompiledComponent;
use crate::protocol::CallWork;

/// How a pool is made.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Worker processes.
    pub workers: usize,
    /// The most that a call may ask for.
    pub limits: Limits,
    /// The program `host-worker`, which [`crate::WORKER_ARGUMENT`] makes a worker.
    pub program: PathBuf,
    /// GPUs for those whose functions have dense algebra done.
    pub gpus: Option<Arc<GpuProcesses>>,
    /// Whether a worker starts with the first call instead of with the pool.
    pub on_demand: bool,
}

/// A function with its parameters, to be called many times.
#[derive(Debug)]
pub struct Binding {
    id: u64,
    /// The component.
    pub program: Arc<CompiledComponent>,
    /// The function's place among the component's functions.
    pub function: u32,
    /// Its parameters, a JSON object.
    pub params: String,
    /// What each call may use.
    pub limits: Limits,
    /// `component#function`, for errors.
    pub name: String,
    /// Where dense algebra is to be done, if that is reported: otherwise by the processor.
    pub device: Option<Choice>,
    /// What the workers' [`crate::Collectors`] make of batches, for [`CallWork::Collect`].
    plan: Vec<u8>,
}

/// Longest plan of a binding.
pub const PLAN_BYTES_MAX: usize = 32 << 10;

/// Longest text of a binding's parameters.
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

    /// The same, whose dense algebra is done elsewhere.
    pub fn on(&self, device: Option<Choice>) -> Arc<Binding> {
        let Binding { program, function, params, limits, name, plan, .. } = self;
        let (program, function, params) = (program.clone(), *function, params.clone());
        let (name, plan) = (name.clone(), plan.clone());
        Binding { id: new_id(), program, function, params, limits: *limits, name, device, plan }.into()
    }

    /// The same, whose calls can [collect](CallWork::Collect) by `plan`.
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

/// A call to be run by some worker.
#[derive(Debug, Clone)]
pub struct CallRequest {
    /// What is called.
    pub binding: Arc<Binding>,
    /// The call's seed.
    pub seed: u64,
    /// What it does, and with what.
    pub work: CallWork,
}

/// A line of a guest's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// The line.
    pub message: String,
}

/// What a call handed back.
#[derive(Debug)]
pub enum CallProduct {
    /// Batches, checked.
    Batches(Vec<RecordBatch>),
    /// What its batches were collected into, for [`CallWork::Collect`], and how many rows of a [stored](Payload::Stored)
    /// input there were: what a worker says, which may be anything.
    Collected(Buffer, u64),
    /// What it described, for [`CallWork::Describe`].
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
            CallProduct::Collected(..) => "what was collected",
            CallProduct::Functions(_) => "functions",
        };
        Fault::new(Code::Host, format!("it hands back {what}, which it was not called for"))
    }

    /// The batches.
    ///
    /// # Errors
    /// When it is something else.
    pub fn into_batches(self) -> Result<Vec<RecordBatch>, Fault> {
        if let CallProduct::Batches(batches) = self { Ok(batches) } else { Err(self.other()) }
    }

    /// What was collected, and how many rows of a stored input there were.
    ///
    /// # Errors
    /// When it is something else.
    pub fn into_collected(self) -> Result<(Buffer, u64), Fault> {
        if let CallProduct::Collected(collected, rows) = self { Ok((collected, rows)) } else { Err(self.other()) }
    }

    /// The functions.
    ///
    /// # Errors
    /// When it is something else.
    pub fn into_functions(self) -> Result<Vec<Function>, Fault> {
        if let CallProduct::Functions(functions) = self { Ok(functions) } else { Err(self.other()) }
    }
}

/// What came of a call that was not refused as a whole.
#[derive(Debug, Default)]
pub struct CompletedCall {
    /// What it handed back.
    pub product: CallProduct,
    /// Groups that took a worker's life, each with why.
    pub lost_groups: Vec<(u32, Fault)>,
    /// Most linear memory it had, in bytes.
    pub memory_bytes: u64,
    /// How long it ran, in nanoseconds, in the worker.
    pub nanos: u64,
}

/// What came of a call.
#[derive(Debug)]
pub struct CallResult {
    /// What it logged; where it took a worker's life, what the group that did had logged by then.
    pub log: Vec<LogLine>,
    /// What it handed back.
    pub result: Result<CompletedCall, Fault>,
}

/// What came of a call that was [submitted](Pool::submit).
#[derive(Debug)]
pub struct CallAnswer {
    /// What it was submitted with.
    pub token: u64,
    /// What came of it.
    pub called: CallResult,
}

/// A function that is called, and where what comes of it goes: what many calls have in common.
#[derive(Debug)]
pub struct Caller {
    binding: Arc<Binding>,
    to: ReplyTo,
}

#[derive(Debug)]
enum ReplyTo {
    /// For one call. Taken by its answer.
    One(Mutex<Option<oneshot::Sender<CallResult>>>),
    Many(mpsc::UnboundedSender<Vec<CallAnswer>>),
}

impl Caller {
    /// Calls `binding`, and has the answers go to `answers`, several at a time.
    pub fn new(binding: Arc<Binding>, answers: mpsc::UnboundedSender<Vec<CallAnswer>>) -> Arc<Caller> {
        Arc::new(Caller { binding, to: ReplyTo::Many(answers) })
    }

    fn once(binding: Arc<Binding>, to: oneshot::Sender<CallResult>) -> Arc<Caller> {
        Arc::new(Caller { binding, to: ReplyTo::One(Mutex::new(Some(to))) })
    }

    fn answer_of(&self, token: u64, mut called: CallResult) -> CallAnswer {
        if called.result.is_err() {
            called.result = called.result.map_err(|fault| fault.of(&self.binding.name));
        }
        CallAnswer { token, called }
    }

    /// Whether no one waits for answers any more.
    fn is_gone(&self) -> bool {
        match &self.to {
            ReplyTo::One(to) => to.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(|to| to.is_closed()),
            ReplyTo::Many(to) => to.is_closed(),
        }
    }

    /// Whoever asked may have gone; then nobody wants the answers.
    fn answer(&self, answers: Vec<CallAnswer>) {
        match &self.to {
            ReplyTo::One(to) => {
                let to = to.lock().unwrap_or_else(PoisonError::into_inner).take();
                _ = to.zip(answers.into_iter().next()).map(|(to, answer)| to.send(answer.called));
            }
            ReplyTo::Many(to) => _ = to.send(answers),
        }
    }
}

/// A call to be [submitted](Pool::submit).
#[derive(Debug)]
pub struct CallSubmission {
    /// What its answer is known by.
    pub token: u64,
    /// The call's seed.
    pub seed: u64,
    /// What it does, and with what.
    pub work: CallWork,
}

fn no_workers() -> Fault {
    Fault::new(Code::Host, "the workers are gone")
}

impl From<Fault> for CallResult {
    fn from(fault: Fault) -> Self {
        CallResult { log: Vec::new(), result: Err(fault) }
    }
}

/// Workers and the queue before them. Dropping it ends the workers.
#[derive(Debug)]
pub struct Pool {
    queue: Arc<Queue>,
    options: PoolOptions,
    memory: Arc<PeakMemory>,
    segments: SegmentPool,
}

/// Process ids of the workers, and the peak memory of those that have ended.
#[derive(Debug, Default)]
struct PeakMemory {
    processes: Mutex<HashMap<usize, u32>>,
    ended_bytes_max: AtomicU64,
}

/// Most memory that a process ever had resident, in bytes; zero when it is gone.
pub fn peak_memory_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Calls of one caller, which wait one behind another: at least one, and one only of [`ReplyTo::One`].
#[derive(Debug)]
struct CallRun {
    caller: Arc<Caller>,
    /// From which they are taken at the front.
    calls: std::vec::IntoIter<PendingCall>,
}

#[derive(Debug)]
struct PendingCall {
    token: u64,
    seed: u64,
    work: CallWork,
    /// Most have none: a queue is the faster the smaller its items are.
    losses: Option<Box<Losses>>,
}

/// What an item has cost.
#[derive(Debug, Default)]
struct Losses {
    /// Workers that died while they ran it.
    deaths: u32,
    groups: Vec<(u32, Fault)>,
    /// What these groups had logged.
    log: Vec<LogLine>,
}

impl CallRun {
    fn new(caller: Arc<Caller>, calls: Vec<PendingCall>) -> CallRun {
        CallRun { caller, calls: calls.into_iter() }
    }

    /// Takes the first `calls` out.
    fn split(&mut self, calls: usize) -> CallRun {
        CallRun::new(self.caller.clone(), self.calls.by_ref().take(calls).collect())
    }

    /// Answers all alike.
    fn refuse(self, fault: &Fault) {
        let CallRun { caller, calls } = self;
        caller.answer(calls.map(|item| caller.answer_of(item.token, fault.clone().into())).collect());
    }
}

impl PeakMemory {
    fn started(&self, worker: usize, process: u32) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, process);
    }

    /// To be called before the process is waited for.
    fn ending(&self, worker: usize) {
        let process = self.processes.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
        self.ended_bytes_max.fetch_max(process.map_or(0, peak_memory_bytes), Ordering::Relaxed);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Pool {
    /// Starts the workers, unless they start on demand. They set themselves up while this returns.
    pub fn start(options: PoolOptions) -> Pool {
        let queue = Arc::new(Queue::default());
        let memory = Arc::new(PeakMemory::default());
        for index in 0..options.workers.max(1) {
            tokio::spawn(drive::drive(index, options.clone(), queue.register(), memory.clone()));
        }
        Pool { queue, options, memory, segments: SegmentPool::default() }
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.options.workers.max(1)
    }

    /// The peak memory of the workers, added up: an upper bound of what they had
    /// at once, since what they share is counted for each.
    pub fn peak_memory_bytes(&self) -> u64 {
        let processes = self.memory.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let alive: u64 = processes.values().map(|process| peak_memory_bytes(*process)).sum();
        alive + self.memory.ended_bytes_max.load(Ordering::Relaxed)
    }

    /// PeakMemory for the input of a call. It is used again when the call's request
    /// is no more.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn draft(&self, bytes: usize) -> io::Result<SegmentDraft> {
        self.segments.draft(bytes)
    }

    /// Runs a call. Cancelled when dropped: a call that waits is not begun.
    pub async fn call(&self, request: CallRequest) -> CallResult {
        let (to, answer) = oneshot::channel();
        let CallRequest { binding, seed, work } = request;
        match self.enqueue(Caller::once(binding, to), vec![PendingCall { token: 0, seed, work, losses: None }]) {
            Ok(()) => answer.await.unwrap_or_else(|_| no_workers().into()),
            Err(fault) => fault.into(),
        }
    }

    /// Has calls run whose answers are wanted as they come, several at a time. Cancelled when the other end of what the
    /// caller has its answers go to is dropped.
    ///
    /// # Errors
    /// When there are no workers any more.
    pub fn submit(&self, caller: &Arc<Caller>, calls: impl IntoIterator<PendingCall = CallSubmission>) -> Result<(), Fault> {
        let item = |CallSubmission { token, seed, work }| PendingCall { token, seed, work, losses: None };
        self.enqueue(caller.clone(), calls.into_iter().map(item).collect())
    }

    fn enqueue(&self, caller: Arc<Caller>, calls: Vec<PendingCall>) -> Result<(), Fault> {
        self.queue.push(CallRun::new(caller, calls)).map_err(|queue::NoDrivers| no_workers())
    }
}
