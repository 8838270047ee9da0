//! The node's side: a pool of workers that takes calls from one queue.

mod answer;
mod drive;
mod link;
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
use sandbar_store::{Draft, Segments};
use tokio::sync::{mpsc, oneshot};

#[doc(hidden)]
pub use self::answer::unpack_any;
use self::queue::Queue;
use crate::Gpus;
use crate::compiler::Compiled;
use crate::protocol::Work;

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
    pub gpus: Option<Arc<Gpus>>,
    /// Whether a worker starts with the first call instead of with the pool.
    pub on_demand: bool,
}

/// A function with its parameters, to be called many times.
#[derive(Debug)]
pub struct Binding {
    id: u64,
    /// The component.
    pub program: Arc<Compiled>,
    /// The function's place among the component's functions.
    pub function: u32,
    /// Its parameters, a JSON object.
    pub params: String,
    /// What each call may use.
    pub limits: Limits,
    /// `component#function`, for errors.
    pub name: String,
    /// Where dense algebra is to be done, if that is said: otherwise by the processor.
    pub device: Option<Choice>,
    /// What the workers' [`crate::Collectors`] make of batches, for [`Work::Collect`].
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
        program: Arc<Compiled>,
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

    /// The same, whose calls can [collect](Work::Collect) by `plan`.
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
pub struct Request {
    /// What is called.
    pub binding: Arc<Binding>,
    /// The call's seed.
    pub seed: u64,
    /// What it does, and with what.
    pub work: Work,
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
pub enum Product {
    /// Batches, checked.
    Batches(Vec<RecordBatch>),
    /// What its batches were collected into, for [`Work::Collect`], and how many rows of a [stored](Payload::Stored)
    /// input there were: what a worker says, which may be anything.
    Collected(Buffer, u64),
    /// What it described, for [`Work::Describe`].
    Functions(Vec<Function>),
}

impl Default for Product {
    fn default() -> Self {
        Product::Batches(Vec::new())
    }
}

impl Product {
    fn other(&self) -> Fault {
        let what = match self {
            Product::Batches(_) => "batches",
            Product::Collected(..) => "what was collected",
            Product::Functions(_) => "functions",
        };
        Fault::new(Code::Host, format!("it hands back {what}, which it was not called for"))
    }

    /// The batches.
    ///
    /// # Errors
    /// When it is something else.
    pub fn into_batches(self) -> Result<Vec<RecordBatch>, Fault> {
        if let Product::Batches(batches) = self { Ok(batches) } else { Err(self.other()) }
    }

    /// What was collected, and how many rows of a stored input there were.
    ///
    /// # Errors
    /// When it is something else.
    pub fn into_collected(self) -> Result<(Buffer, u64), Fault> {
        if let Product::Collected(collected, rows) = self { Ok((collected, rows)) } else { Err(self.other()) }
    }

    /// The functions.
    ///
    /// # Errors
    /// When it is something else.
    pub fn into_functions(self) -> Result<Vec<Function>, Fault> {
        if let Product::Functions(functions) = self { Ok(functions) } else { Err(self.other()) }
    }
}

/// What came of a call that was not refused as a whole.
#[derive(Debug, Default)]
pub struct Completed {
    /// What it handed back.
    pub product: Product,
    /// Groups that took a worker's life, each with why.
    pub lost_groups: Vec<(u32, Fault)>,
    /// Most linear memory it had, in bytes.
    pub memory_bytes: u64,
    /// How long it ran, in nanoseconds, in the worker.
    pub nanos: u64,
}

/// What came of a call.
#[derive(Debug)]
pub struct Called {
    /// What it logged; where it took a worker's life, what the group that did had logged by then.
    pub log: Vec<LogLine>,
    /// What it handed back.
    pub result: Result<Completed, Fault>,
}

/// What came of a call that was [submitted](Pool::submit).
#[derive(Debug)]
pub struct Answer {
    /// What it was submitted with.
    pub token: u64,
    /// What came of it.
    pub called: Called,
}

/// A function that is called, and where what comes of it goes: what many calls have in common.
#[derive(Debug)]
pub struct Caller {
    binding: Arc<Binding>,
    to: To,
}

#[derive(Debug)]
enum To {
    /// For one call. Taken by its answer.
    One(Mutex<Option<oneshot::Sender<Called>>>),
    Many(mpsc::UnboundedSender<Vec<Answer>>),
}

impl Caller {
    /// Calls `binding`, and has the answers go to `answers`, several at a time.
    pub fn new(binding: Arc<Binding>, answers: mpsc::UnboundedSender<Vec<Answer>>) -> Arc<Caller> {
        Arc::new(Caller { binding, to: To::Many(answers) })
    }

    fn once(binding: Arc<Binding>, to: oneshot::Sender<Called>) -> Arc<Caller> {
        Arc::new(Caller { binding, to: To::One(Mutex::new(Some(to))) })
    }

    fn answer_of(&self, token: u64, mut called: Called) -> Answer {
        if called.result.is_err() {
            called.result = called.result.map_err(|fault| fault.of(&self.binding.name));
        }
        Answer { token, called }
    }

    /// Whether no one waits for answers any more.
    fn is_gone(&self) -> bool {
        match &self.to {
            To::One(to) => to.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(|to| to.is_closed()),
            To::Many(to) => to.is_closed(),
        }
    }

    /// Whoever asked may have gone; then nobody wants the answers.
    fn answer(&self, answers: Vec<Answer>) {
        match &self.to {
            To::One(to) => {
                let to = to.lock().unwrap_or_else(PoisonError::into_inner).take();
                _ = to.zip(answers.into_iter().next()).map(|(to, answer)| to.send(answer.called));
            }
            To::Many(to) => _ = to.send(answers),
        }
    }
}

/// A call to be [submitted](Pool::submit).
#[derive(Debug)]
pub struct Submission {
    /// What its answer is known by.
    pub token: u64,
    /// The call's seed.
    pub seed: u64,
    /// What it does, and with what.
    pub work: Work,
}

fn gone() -> Fault {
    Fault::new(Code::Host, "the workers are gone")
}

impl From<Fault> for Called {
    fn from(fault: Fault) -> Self {
        Called { log: Vec::new(), result: Err(fault) }
    }
}

/// Workers and the queue before them. Dropping it ends the workers.
#[derive(Debug)]
pub struct Pool {
    queue: Arc<Queue>,
    options: PoolOptions,
    memory: Arc<Memory>,
    segments: Segments,
}

/// Process ids of the workers, and the peak memory of those that have ended.
#[derive(Debug, Default)]
struct Memory {
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

/// Calls of one caller, which wait one behind another: at least one, and one only of [`To::One`].
#[derive(Debug)]
struct Run {
    caller: Arc<Caller>,
    /// From which they are taken at the front.
    calls: std::vec::IntoIter<Item>,
}

#[derive(Debug)]
struct Item {
    token: u64,
    seed: u64,
    work: Work,
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

impl Run {
    fn new(caller: Arc<Caller>, calls: Vec<Item>) -> Run {
        Run { caller, calls: calls.into_iter() }
    }

    /// Takes the first `calls` out.
    fn split(&mut self, calls: usize) -> Run {
        Run::new(self.caller.clone(), self.calls.by_ref().take(calls).collect())
    }

    /// Answers all alike.
    fn refuse(self, fault: &Fault) {
        let Run { caller, calls } = self;
        caller.answer(calls.map(|item| caller.answer_of(item.token, fault.clone().into())).collect());
    }
}

impl Memory {
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
        let memory = Arc::new(Memory::default());
        for index in 0..options.workers.max(1) {
            tokio::spawn(drive::drive(index, options.clone(), queue.seat(), memory.clone()));
        }
        Pool { queue, options, memory, segments: Segments::default() }
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

    /// Memory for the input of a call. It is used again when the call's request
    /// is no more.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn draft(&self, bytes: usize) -> io::Result<Draft> {
        self.segments.draft(bytes)
    }

    /// Runs a call. Cancelled when dropped: a call that waits is not begun.
    pub async fn call(&self, request: Request) -> Called {
        let (to, answer) = oneshot::channel();
        let Request { binding, seed, work } = request;
        match self.enqueue(Caller::once(binding, to), vec![Item { token: 0, seed, work, losses: None }]) {
            Ok(()) => answer.await.unwrap_or_else(|_| gone().into()),
            Err(fault) => fault.into(),
        }
    }

    /// Has calls run whose answers are wanted as they come, several at a time. Cancelled when the other end of what the
    /// caller has its answers go to is dropped.
    ///
    /// # Errors
    /// When there are no workers any more.
    pub fn submit(&self, caller: &Arc<Caller>, calls: impl IntoIterator<Item = Submission>) -> Result<(), Fault> {
        let item = |Submission { token, seed, work }| Item { token, seed, work, losses: None };
        self.enqueue(caller.clone(), calls.into_iter().map(item).collect())
    }

    fn enqueue(&self, caller: Arc<Caller>, calls: Vec<Item>) -> Result<(), Fault> {
        self.queue.push(Run::new(caller, calls)).map_err(|queue::Gone| gone())
    }
}
