//! What can be seen of a job: rows of lists, as they are answered, kept and printed.

use std::fmt;

use sandbar_core::TaskError;
use serde::{Deserialize, Serialize};

use crate::job_record::RunState;

/// Rows, and how many there would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing<T> {
    /// How many there are, as far as anybody counted.
    pub total: u64,
    /// Of how many these rows were chosen, where all would have been too many to look at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
    /// The first of them, or those that are kept.
    pub rows: Vec<T>,
}

impl<T> Listing<T> {
    /// Rows of so many.
    pub fn new(total: u64, rows: Vec<T>) -> Listing<T> {
        Listing { total, looked_at: None, rows }
    }
}

impl<T> Default for Listing<T> {
    fn default() -> Listing<T> {
        Listing::new(0, Vec::new())
    }
}

/// A task. Times are in nanoseconds since the job began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// The worker that gave out its number, and which of these it is: `3-17`.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Where it is.
    pub state: RunState,
    /// What it waits for, if it does: `objects`, or `a worker`.
    pub waits_for: Option<String>,
    /// Who submitted it, while that was known.
    pub parent: Option<String>,
    /// How often it was begun, or is to be begun.
    pub attempts: u32,
    /// Where it runs, or where its last attempt ended.
    pub worker: Option<u32>,
    /// When it was submitted.
    pub submitted_ns: Option<u64>,
    /// When its last attempt began.
    pub begun_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: Option<u64>,
    /// How long it computed, which is less where it waited for others.
    pub computed_ns: Option<u64>,
    /// How long GPUs worked for it, as far as it waited for them.
    pub gpu_ns: Option<u64>,
    /// Bytes of its arguments, and of the objects among them.
    pub bytes_in: Option<u64>,
    /// Bytes of what it returned.
    pub bytes_out: Option<u64>,
    /// Most linear memory that it had.
    pub memory_bytes: Option<u64>,
    /// Why it failed or was stopped.
    pub error: Option<ErrorRow>,
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorRow {
    /// What happened, as one of the codes.
    pub code: String,
    /// And in words.
    pub message: String,
    /// Names of the tasks that led to it, from the job's first one on.
    pub chain: Vec<String>,
}

impl ErrorRow {
    pub fn from_error(error: &TaskError) -> ErrorRow {
        let TaskError { fault, chain } = error;
        ErrorRow { code: fault.code.as_str().to_owned(), message: fault.message.clone(), chain: chain.clone() }
    }
}

/// Values from the least to the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "a percentile is named for itself")]
pub struct DurationStats {
    pub min: u64,
    pub mean: u64,
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub max: u64,
}

/// All tasks of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NameSummary {
    /// Their name.
    pub name: String,
    /// How many wait for objects or a worker.
    pub pending: u64,
    /// How many a worker has.
    pub running: u64,
    /// How many have ended well.
    pub succeeded: u64,
    /// How many have failed.
    pub failed: u64,
    /// How many were cancelled, or left when their job ended.
    pub stopped: u64,
    /// Attempts of those that have ended.
    pub attempts: u64,
    /// From begin to end of an attempt, in nanoseconds; percentiles to an eighth.
    pub took_ns: Option<DurationStats>,
    /// Nanoseconds that all of them computed together.
    pub computed_ns: u64,
    /// Nanoseconds that GPUs worked for all of them together, as far as these waited for them.
    pub gpu_ns: u64,
    /// Bytes of their arguments, and of the objects among them.
    pub bytes_in: u64,
    /// Bytes of what they returned.
    pub bytes_out: u64,
    /// Most linear memory that one of them had.
    pub memory_bytes_max: u64,
}

impl NameSummary {
    /// How many are in this state, or in any.
    pub fn count(&self, state: Option<RunState>) -> u64 {
        match state {
            Some(RunState::Pending) => self.pending,
            Some(RunState::Running) => self.running,
            Some(RunState::Succeeded) => self.succeeded,
            Some(RunState::Failed) => self.failed,
            Some(RunState::Stopped) => self.stopped,
            None => self.pending + self.running + self.succeeded + self.failed + self.stopped,
        }
    }

    /// Of a name that no task has.
    pub fn new(name: &str) -> NameSummary {
        NameSummary {
            name: name.to_owned(),
            pending: 0,
            running: 0,
            succeeded: 0,
            failed: 0,
            stopped: 0,
            attempts: 0,
            took_ns: None,
            computed_ns: 0,
            gpu_ns: 0,
            bytes_in: 0,
            bytes_out: 0,
            memory_bytes_max: 0,
        }
    }
}

/// The tasks of a job, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Names in the order in which tasks of them ended first.
    pub names: Vec<NameSummary>,
    /// How far its tasks say that they are.
    #[serde(default)]
    pub progress: Vec<ProgressRow>,
}

/// How far tasks say that they are with something: all that call it by the same name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgressRow {
    /// What they call it.
    pub name: String,
    /// How much is done.
    pub done: u64,
    /// Of how much, if all of them know.
    pub total: Option<u64>,
    /// From when that was said first to when it was said last.
    pub seconds: f64,
}

impl ProgressRow {
    /// So much is done in a second; none while nobody can say.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.done as f64 / self.seconds)
    }
}

impl fmt::Display for ProgressRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.done)?;
        if let Some(total) = self.total {
            write!(f, " of {total}")?;
        }
        match self.rate() {
            Some(rate) => write!(f, " in {:.1} s, {rate:.0} a second", self.seconds),
            None => Ok(()),
        }
    }
}

impl JobSummary {
    /// A sum over all names.
    pub fn sum(&self, value: impl Fn(&NameSummary) -> u64) -> u64 {
        self.names.iter().map(value).sum()
    }
}

/// An actor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActorRow {
    /// As of tasks.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// `pending`, `alive`, `restarting` or `dead`.
    pub state: String,
    /// The worker that it lives in.
    pub worker: Option<u32>,
    /// How often it was begun again.
    pub restarts: u32,
    /// Calls of it that have not ended.
    pub calls: u64,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// As of tasks.
    pub id: String,
    /// The task that returns it, or returned it; none of what was put.
    pub task: Option<String>,
    /// `pending`, `ready` or `failed`.
    pub state: String,
    /// Where its value is: `node`, where the object is, `memory`, in the store's, or `disk`.
    pub place: Option<String>,
    /// Bytes of its value.
    pub bytes: u64,
    /// Tasks that need it, and values that contain it.
    pub pins: u32,
    /// Workers whose tasks hold it.
    pub workers: Vec<u32>,
    /// Objects that its value contains.
    pub contains: u32,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Its number.
    pub id: u32,
    /// `driver`, which runs a job's first task, or `tasks`.
    pub role: String,
    /// Its process.
    pub process: u32,
    /// The task that it runs at this moment: its id, and its name.
    pub task: Option<(String, String)>,
    /// Tasks that it was given, those not counted that wait for objects.
    pub given: u64,
    /// Tasks in it that wait for objects.
    pub waiting: u64,
    /// Memory of the process that is its own or its share of what is shared, in bytes.
    pub memory_bytes: u64,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupRow {
    /// As of tasks.
    pub id: String,
    /// What people call it.
    pub name: Option<String>,
    /// `PACK`, `SPREAD`, `STRICT_PACK` or `STRICT_SPREAD`.
    pub strategy: String,
    /// `pending`, `created`, `rescheduling` or `infeasible`.
    pub state: String,
    /// What is set aside, or to be.
    pub bundles: Vec<BundleRow>,
}

/// A bundle of a placement group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BundleRow {
    /// Where it is.
    pub node: Option<u32>,
    /// What it has; nothing of that is left before it is placed.
    pub resources: Vec<ResourceRow>,
    /// Tasks and actors in it.
    pub occupants: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its number.
    pub id: u32,
    /// What it has.
    pub resources: Vec<ResourceRow>,
}

/// So much of something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceRow {
    /// `cpus`, `gpus`, `memory` (in bytes), or a name of one's own.
    pub name: String,
    /// How much there is.
    pub total: f64,
    /// How much of it nobody has. Of processors less than none where tasks went on that had given theirs away.
    pub free: f64,
}

/// What is held, and by whom.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryView {
    /// The node and its workers.
    pub processes: Vec<ProcessRow>,
    /// Objects that there are.
    pub objects: u64,
    /// Bytes of those whose value is small, and lies where the object does.
    pub node_bytes: u64,
    /// Bytes of those whose value takes memory of the store, which is bounded.
    pub memory_bytes: u64,
    /// Bytes of those whose value is on disk alone.
    pub disk_bytes: u64,
    /// By whom they are held; what several hold counts for each of them.
    pub holders: Vec<HolderRow>,
    /// Whether there were too many objects to look at: what is said is of a part of them.
    pub is_partial: bool,
}

/// A process, and what it takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// `node`, or `worker 3`.
    pub name: String,
    /// Its number.
    pub process: u32,
    /// Memory that is its own, or its share of what is shared, in bytes.
    pub memory_bytes: u64,
}

/// Who holds objects, and how much.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HolderRow {
    /// `worker 3`: tasks there. `tasks and values`: tasks that need them, and values that contain them.
    pub name: String,
    /// How many.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
}
