//! Rows and summaries about a job, as nodes send them, job folders store them and commands print them.
//!
//! Field names are the keys of the JSON output and of files on disk.

use std::fmt;

use sandbar_core::TaskError;
use serde::{Deserialize, Serialize};

use crate::run_state::RunState;

/// Rows, with the total number from which they were taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing<T> {
    /// Number of rows without a limit, as far as they were counted.
    pub total: u64,
    /// Number of entries that were searched for these rows, if not all were searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
    /// The first rows, or the recorded ones.
    pub rows: Vec<T>,
}

impl<T> Listing<T> {
    /// Creates a listing for which all entries were searched.
    pub fn new(total: u64, rows: Vec<T>) -> Listing<T> {
        Listing { total, looked_at: None, rows }
    }
}

impl<T> Default for Listing<T> {
    fn default() -> Listing<T> {
        Listing::new(0, Vec::new())
    }
}

/// A task. Points in time are nanoseconds since the start of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Id of the task: the worker that created the id, and the number there, as in `3-17`.
    pub id: String,
    /// Name of the task.
    pub name: String,
    /// State of the task.
    pub state: RunState,
    /// What an unfinished task waits for: `objects`, `a worker` or `a time`.
    pub waits_for: Option<String>,
    /// Id of the task that submitted it, if known.
    pub parent: Option<String>,
    /// Number of attempts, including the one that runs or comes next.
    pub attempts: u32,
    /// Worker that runs the task, or that finished its last attempt.
    pub worker: Option<u32>,
    /// Submission of the task.
    pub submitted_ns: Option<u64>,
    /// Start of the last attempt.
    pub begun_ns: Option<u64>,
    /// End of the last attempt.
    pub ended_ns: Option<u64>,
    /// Computing time of the last attempt, without the time in which it waited for other tasks.
    pub computed_ns: Option<u64>,
    /// GPU time that the last attempt waited for.
    pub gpu_ns: Option<u64>,
    /// Bytes of the arguments, including the objects among them.
    pub bytes_in: Option<u64>,
    /// Bytes of the returned values.
    pub bytes_out: Option<u64>,
    /// Peak linear memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Why the task failed or was stopped.
    pub error: Option<ErrorRow>,
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorRow {
    /// Error code.
    pub code: String,
    /// Error message.
    pub message: String,
    /// Names of the failed task and its ancestors, from the job's first task down.
    pub chain: Vec<String>,
}

impl ErrorRow {
    /// Creates the row of a task's error.
    pub fn from_error(error: &TaskError) -> ErrorRow {
        let TaskError { fault, chain } = error;
        ErrorRow { code: fault.code.as_str().to_owned(), message: fault.message.clone(), chain: chain.clone() }
    }
}

/// Minimum, mean, percentiles and maximum of durations, in nanoseconds. Percentiles are exact to one eighth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names of statistics explain themselves")]
pub struct DurationStats {
    pub min: u64,
    pub mean: u64,
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub max: u64,
}

/// Sums over all tasks of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NameSummary {
    /// Name of the tasks.
    pub name: String,
    /// Tasks that wait for objects or a worker.
    pub pending: u64,
    /// Tasks that a worker runs or has queued, including those that wait in it for objects.
    pub running: u64,
    /// Tasks that succeeded.
    pub succeeded: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that were cancelled, or unfinished when the job ended.
    pub stopped: u64,
    /// Attempts of finished tasks.
    pub attempts: u64,
    /// Durations of last attempts from start to end, or `None` if none finished in a worker.
    pub took_ns: Option<DurationStats>,
    /// Total computing time in nanoseconds.
    pub computed_ns: u64,
    /// Total GPU time that the tasks waited for, in nanoseconds.
    pub gpu_ns: u64,
    /// Total bytes of the arguments, including the objects among them.
    pub bytes_in: u64,
    /// Total bytes of the returned values.
    pub bytes_out: u64,
    /// Largest peak linear memory of a task, in bytes.
    pub memory_bytes_max: u64,
}

impl NameSummary {
    /// Returns the number of tasks in a state, or in any state.
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

    /// Creates the summary of a name without tasks.
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

/// Summary of a job's tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Sums by name, in the order of each name's first finished task.
    pub names: Vec<NameSummary>,
    /// Progress that the tasks report.
    #[serde(default)]
    pub progress: Vec<ProgressRow>,
}

/// Progress that tasks report under one name, summed over the tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgressRow {
    /// Name in the reports.
    pub name: String,
    /// Completed amount.
    pub done: u64,
    /// Total amount, if all reports have one.
    pub total: Option<u64>,
    /// Seconds from the first report to the last.
    pub seconds: f64,
}

impl ProgressRow {
    /// Returns the completed amount per second, or `None` if no time has passed between reports.
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
    /// Returns the sum of a value over all names.
    pub fn sum(&self, value: impl Fn(&NameSummary) -> u64) -> u64 {
        self.names.iter().map(value).sum()
    }
}

/// An actor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActorRow {
    /// Id of the actor, in the form of [`TaskRow::id`].
    pub id: String,
    /// Name of the actor, or of the function that created it.
    pub name: String,
    /// State: `pending`, `alive`, `restarting` or `dead`.
    pub state: String,
    /// Worker that the actor lives in.
    pub worker: Option<u32>,
    /// Number of restarts.
    pub restarts: u32,
    /// Unfinished calls of the actor.
    pub calls: u64,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// Id of the object, in the form of [`TaskRow::id`].
    pub id: String,
    /// Task whose return value it is, or `None` if a task put it.
    pub task: Option<String>,
    /// State: `pending`, `ready` or `failed`.
    pub state: String,
    /// Location of the value: `node` (beside the object's entry), `memory` (of the object store), `disk`, or `away` (on another
    /// node).
    pub place: Option<String>,
    /// Bytes of the value.
    pub bytes: u64,
    /// Number of tasks that need it and values that contain it.
    pub pins: u32,
    /// Workers whose tasks hold references to it.
    pub workers: Vec<u32>,
    /// Number of objects whose references its value contains.
    pub contains: u32,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Number of the worker.
    pub id: u32,
    /// Kind: `driver`, which runs a job's first task, `client`, which submits a job's tasks, `tasks`, `actors` for
    /// actors that request less than one processor each, `actor` for one actor, or `peer`, the proxy of another node.
    pub role: String,
    /// Process id.
    pub process: u32,
    /// Id and name of the task that it runs now.
    pub task: Option<(String, String)>,
    /// Tasks that are assigned to it, without those that wait for objects.
    pub given: u64,
    /// Tasks in it that wait for objects, or for a time.
    pub waiting: u64,
    /// Private memory of the process and its proportional share of shared memory, in bytes.
    pub memory_bytes: u64,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupRow {
    /// Id of the group, in the form of [`TaskRow::id`].
    pub id: String,
    /// Name of the group, if it has one.
    pub name: Option<String>,
    /// Strategy: `PACK`, `SPREAD`, `STRICT_PACK` or `STRICT_SPREAD`.
    pub strategy: String,
    /// State: `pending`, `created`, `rescheduling` or `infeasible`.
    pub state: String,
    /// Bundles of resources that the group reserves.
    pub bundles: Vec<BundleRow>,
}

/// A bundle of a placement group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BundleRow {
    /// Node on which it is placed.
    pub node: Option<u32>,
    /// Its resources. None is free before it is placed.
    pub resources: Vec<ResourceRow>,
    /// Number of tasks and actors in it.
    pub occupants: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Number of the node.
    pub id: u32,
    /// Its resources.
    pub resources: Vec<ResourceRow>,
}

/// Amount of a resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceRow {
    /// `cpus`, `gpus`, `memory` (in bytes), or the name of a custom resource.
    pub name: String,
    /// Total amount.
    pub total: f64,
    /// Free amount. Negative for `cpus` if tasks that had released theirs while waiting have continued.
    pub free: f64,
}

/// Memory of processes, and objects by location and holder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryView {
    /// The node and its workers.
    pub processes: Vec<ProcessRow>,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of small values, which are stored beside their objects' entries.
    pub node_bytes: u64,
    /// Bytes of values in the object store's memory, which is bounded.
    pub memory_bytes: u64,
    /// Bytes of values that are on disk only.
    pub disk_bytes: u64,
    /// Holders of objects. An object with several holders counts for each.
    pub holders: Vec<HolderRow>,
    /// Whether only some of the objects were searched, because there are too many.
    pub is_partial: bool,
}

/// Memory of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// `node`, or a worker as in `worker 3`.
    pub name: String,
    /// Process id.
    pub process: u32,
    /// Private memory and the proportional share of shared memory, in bytes.
    pub memory_bytes: u64,
}

/// Objects of one holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HolderRow {
    /// `worker 3` for the tasks of a worker, or `tasks and values` for tasks that need objects and values that contain them.
    pub name: String,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of the objects' values.
    pub bytes: u64,
}
