//! Jobs that this node runs: their start and result, records of their tasks, log and progress.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, JobId, JobRun, ObjectId, TaskError, TaskId, TenantId, WorkerId};
use sandbar_jobs::{AttemptRecord, LogEntry, LogSender, ProgressBars, RecordLimits, RunState, TaskRecord, TaskRecords};
use sandbar_sched::TaskState;
use tokio::sync::oneshot;

use super::context::{Context, LocalJob};
use super::effects::JobEffect;
use super::refs::ProgressAmount;
use super::values::StoredValue;
use crate::calls::Program;
use crate::client::ClientLink;
use crate::files::JobFiles;
use crate::peer::CachedResult;

/// Maximum bytes of a job's result.
const RESULT_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of records of tasks that had not finished when their job ended.
const UNFINISHED_MAX: usize = 1000;
/// Level of warnings in a job's log.
const WARN: u8 = 2;

/// A job to run.
pub(crate) struct NewJob {
    /// The tenant that submitted it.
    pub(crate) tenant: TenantId,
    /// Identity in accounts.
    pub(crate) run: JobRun,
    pub(crate) program: Arc<Program>,
    pub(crate) root_task: RootTask,
    pub(crate) seed: u64,
    /// Name in the cluster and results of an earlier run, if another node may take the job over.
    pub(crate) lasting: Option<(Arc<str>, Vec<CachedResult>)>,
    /// Files that its tasks may open.
    pub(crate) files: Arc<JobFiles>,
    pub(crate) outputs: JobOutputs,
}

/// Receivers of a job's output.
pub(crate) struct JobOutputs {
    /// Receives the progress that its tasks report.
    pub(crate) progress: Arc<ProgressBars>,
    /// Receives the lines that its tasks log.
    pub(crate) log: LogSender,
    /// Receives the records of its tasks when it ends, before its result, or when the node shuts down.
    pub(crate) finished: Arc<OnceLock<FinishedJob>>,
}

/// The root task of a job.
pub(crate) enum RootTask {
    /// A function of the job's program, by index. The arguments are a list of [`sandbar_core::Argument`], in postcard.
    Function { function: u32, arguments: Box<[u8]> },
    /// A client, whose task has this name.
    Client { name: String, link: ClientLink },
}

/// Result of a job.
#[derive(Debug)]
pub(crate) struct JobResult {
    /// Value of its root task.
    pub(crate) result: Result<Vec<u8>, Arc<TaskError>>,
    pub(crate) counters: JobCounters,
}

/// Records of a job that has ended.
#[derive(Debug)]
pub(crate) struct FinishedJob {
    pub(crate) records: TaskRecords,
    pub(crate) counters: JobCounters,
}

/// Counters of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JobCounters {
    pub(crate) submitted: u64,
    /// Tasks with a result of an earlier run, on a node that was lost.
    pub(crate) resumed: u64,
    /// Attempts that ended with an error.
    pub(crate) failed: u64,
    /// Attempts that were lost with workers and nodes.
    pub(crate) lost_attempts: u64,
    /// Workers that were lost while they had started tasks.
    pub(crate) lost_workers: u64,
    /// Nodes that were lost while they had tasks.
    pub(crate) lost_nodes: u64,
    /// Bytes of objects of all jobs that the node spilled, and restored, while the job ran.
    pub(crate) spilled_bytes: u64,
    pub(crate) restored_bytes: u64,
}

struct Job {
    done: Option<oneshot::Sender<JobResult>>,
    outputs: JobOutputs,
    records: TaskRecords,
    files: Arc<JobFiles>,
    counters: JobCounters,
    /// Spilled and restored bytes of the value store when the job started.
    moved_before: [u64; 2],
}

/// The jobs, by id.
#[derive(Default)]
pub(super) struct Jobs {
    all: FxHashMap<JobId, Job>,
    /// Values of root tasks of jobs that end.
    results: FxHashMap<ObjectId, StoredValue>,
    /// Jobs that end once the effects of the current step are handled, with their outcomes.
    ending: Vec<(JobId, Result<(), Arc<TaskError>>)>,
    /// The attempt that finished last.
    last_attempt: Option<AttemptRecord>,
    /// Maximum time of a run of a tenant's programs.
    time_max: BTreeMap<TenantId, Duration>,
}

impl Jobs {
    pub(super) fn contains(&self, job: JobId) -> bool {
        self.all.contains_key(&job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    pub(super) fn files(&self, job: JobId) -> Option<Arc<JobFiles>> {
        self.all.get(&job).map(|job| job.files.clone())
    }

    pub(super) fn records(&self, job: JobId) -> Option<&TaskRecords> {
        self.all.get(&job).map(|job| &job.records)
    }

    /// Adds a job.
    pub(super) fn add(
        &mut self,
        cx: &mut Context,
        id: JobId,
        local: LocalJob,
        files: Arc<JobFiles>,
        outputs: JobOutputs,
        done: oneshot::Sender<JobResult>,
    ) {
        let records = TaskRecords::new(RecordLimits::default(), cx.time.nanos);
        let (done, counters, moved_before) = (Some(done), JobCounters::default(), moved_bytes(cx));
        cx.jobs.insert(id, local);
        self.all.insert(id, Job { done, outputs, records, files, counters, moved_before });
    }

    /// Handles a report of another part of the engine.
    pub(super) fn handle(&mut self, effect: JobEffect) {
        match effect {
            JobEffect::AttemptFailed(job) => self.count(job, |counters| counters.failed += 1),
            JobEffect::Resumed(job) => self.count(job, |counters| counters.resumed += 1),
            JobEffect::NodeLost(attempts, why) => {
                self.attempts_lost(attempts, &why, |counters| counters.lost_nodes += 1);
            }
            JobEffect::Warn(job, line) => {
                if let Some(job) = self.all.get(&job) {
                    job.outputs.log.send(LogEntry { task: None, level: WARN, line: &line });
                }
            }
        }
    }

    /// Counts attempts that were lost with a worker.
    pub(super) fn worker_lost(&mut self, cx: &Context, started: &[TaskId], why: &str) {
        self.attempts_lost(cx.count_by_job(started), why, |counters| counters.lost_workers += 1);
    }

    fn attempts_lost(&mut self, attempts: BTreeMap<JobId, u64>, why: &str, count: impl Fn(&mut JobCounters)) {
        for (job, attempts) in attempts {
            let Some(job) = self.all.get_mut(&job) else { continue };
            count(&mut job.counters);
            job.counters.lost_attempts += attempts;
            let line = format!("{why}; attempts of tasks lost with it: {attempts}");
            job.outputs.log.send(LogEntry { task: None, level: WARN, line: &line });
        }
    }

    fn count(&mut self, job: JobId, count: impl FnOnce(&mut JobCounters)) {
        if let Some(job) = self.all.get_mut(&job) {
            count(&mut job.counters);
        }
    }

    /// Logs a line of a task. Returns whether this node runs the job.
    pub(super) fn log(&self, job: JobId, entry: LogEntry<'_>) -> bool {
        let job = self.all.get(&job);
        if let Some(job) = job {
            job.outputs.log.send(entry);
        }
        job.is_some()
    }

    /// Records a task's progress. Returns whether this node runs the job.
    pub(super) fn progress(&self, job: JobId, task: TaskId, name: &str, progress: ProgressAmount) -> bool {
        let job = self.all.get(&job);
        if let Some(job) = job {
            job.outputs.progress.report(task, name, progress.done, progress.total);
        }
        job.is_some()
    }

    /// Limits the time of each run of a tenant's programs.
    pub(super) fn limit_time(&mut self, tenant: TenantId, max: Duration) {
        self.time_max.insert(tenant, max);
    }

    /// Ends jobs that have run for too long.
    pub(super) fn end_overdue(&mut self, cx: &Context) {
        for (id, job) in &self.all {
            let tenant = cx.scheduler.tenant_of(*id).unwrap_or_default();
            let Some(max) = self.time_max.get(&tenant) else { continue };
            let time = Duration::from_nanos(cx.time.nanos.saturating_sub(job.records.job_started_ns()));
            if time > *max {
                let message = format!(
                    "its job has run for {} seconds, the limit of its tenant is {} (job-seconds-max): divide the job, or ask \
                     the operator",
                    time.as_secs(),
                    max.as_secs()
                );
                let error = TaskError { fault: Fault::new(Code::TenantLimit, message), chain: Vec::new() };
                self.ending.push((*id, Err(Arc::new(error))));
            }
        }
    }

    /// Counts an attempt of a task in the sums of its job, if this node runs that. Remembers it for the record of the task,
    /// which the scheduler's next step may finish.
    pub(super) fn attempt_finished(&mut self, of: Option<(JobId, Arc<str>)>, attempt: AttemptRecord) {
        self.last_attempt = Some(attempt);
        if let Some((job, name)) = of
            && let Some(job) = self.all.get_mut(&job)
        {
            job.records.add_attempt(&name, &attempt);
        }
    }

    /// Forgets the last attempt, once its effects are handled.
    pub(super) fn forget_attempt(&mut self) {
        self.last_attempt = None;
    }

    /// Records a task that has finished, for the first time or again.
    pub(super) fn task_finished(
        &mut self,
        cx: &Context,
        task: TaskId,
        job: JobId,
        error: Option<Arc<TaskError>>,
        rerun: bool,
    ) {
        let Some(job) = self.all.get_mut(&job) else { return };
        job.outputs.progress.finish_task(task);
        let Some(view) = cx.scheduler.task(task) else { return };
        let state = match view.state {
            TaskState::Succeeded => RunState::Succeeded,
            TaskState::Failed => RunState::Failed,
            _ => RunState::Stopped,
        };
        let last_attempt = self.last_attempt.filter(|attempt| attempt.task == task);
        let is_lost = error.as_ref().is_some_and(|error| error.fault.code == Code::WorkerLost);
        let attempts = view.attempt.0 + u32::from(last_attempt.is_some() || view.attempt.0 > 0 || is_lost);
        let record = TaskRecord { id: task, parent: view.parent, state, attempts, last_attempt, error };
        if rerun { job.records.replace(view.name, record) } else { job.records.add(view.name, record) }
    }

    /// Keeps a dropped value for the job's submitter if it is the result of a root task. Returns other values. Checks the
    /// range of the id as well, because workers choose the ids of their objects.
    pub(super) fn keep_result(&mut self, cx: &Context, object: ObjectId, value: StoredValue) -> Option<StoredValue> {
        let is_result = cx.ids.is_own(object.0) && cx.jobs.values().any(|job| job.first.returns(0) == object);
        if !is_result {
            return Some(value);
        }
        self.results.insert(object, value);
        None
    }

    /// Ends a job once the effects of the current step are handled.
    pub(super) fn end_later(&mut self, job: JobId, result: Result<(), Arc<TaskError>>) {
        self.ending.push((job, result));
    }

    /// Ends all jobs with an error.
    pub(super) fn end_all(&mut self, fault: Fault) {
        let error = Arc::new(TaskError { fault, chain: Vec::new() });
        self.ending.extend(self.all.keys().map(|job| (*job, Err(error.clone()))));
    }

    /// Reports the result of a job that ends. Returns its id and the worker of its root task.
    pub(super) fn end_next(&mut self, cx: &mut Context) -> Option<(JobId, WorkerId)> {
        loop {
            let (id, result) = self.ending.pop()?;
            let (Some(mut job), Some(local)) = (self.all.remove(&id), cx.jobs.remove(&id)) else { continue };
            let value = self.take_result(cx, local.first.returns(0));
            let result = result.and(value);
            let done = job.done.take();
            let counters = close(cx, id, job, local.submitted);
            if let Some(done) = done {
                // The submitter may have dropped the receiver.
                let _ = done.send(JobResult { result, counters });
            }
            return Some((id, local.driver));
        }
    }

    fn take_result(&mut self, cx: &mut Context, object: ObjectId) -> Result<Vec<u8>, Arc<TaskError>> {
        match self.results.remove(&object) {
            Some(StoredValue::Inline(bytes)) => Ok(bytes.into_vec()),
            Some(StoredValue::Local(key, _)) => {
                let bytes = cx.values.bytes(key, RESULT_BYTES_MAX);
                cx.values.drop_value(key);
                let fault = |e| Fault::new(Code::Host, format!("the job's result can't be read: {e}"));
                bytes.map_err(|e| Arc::new(TaskError { fault: fault(e), chain: Vec::new() }))
            }
            // Root tasks run on this node.
            Some(StoredValue::Remote(_)) | None => Ok(Vec::new()),
        }
    }

    /// Writes the records of jobs that have not ended when the node shuts down.
    pub(super) fn close_all(&mut self, cx: &Context) {
        for (id, job) in self.all.drain() {
            close(cx, id, job, cx.jobs.get(&id).map_or(0, |local| local.submitted));
        }
    }
}

/// Publishes the records of a job, with those of its unfinished tasks. Returns its counters.
fn close(cx: &Context, id: JobId, job: Job, submitted: u64) -> JobCounters {
    let Job { mut records, outputs, counters, moved_before, .. } = job;
    let [spilled, restored] = moved_bytes(cx);
    let (spilled_bytes, restored_bytes) = (spilled - moved_before[0], restored - moved_before[1]);
    let counters = JobCounters { submitted, spilled_bytes, restored_bytes, ..counters };
    let mut live: HashMap<&Arc<str>, u64> = HashMap::new();
    for class in cx.scheduler.classes().filter(|class| class.job == id) {
        *live.entry(class.name).or_default() += class.live;
    }
    for view in cx.assigned_tasks(id).take(UNFINISHED_MAX) {
        if let Some(live) = live.get_mut(view.name).filter(|live| **live > 0) {
            *live -= 1;
            let (state, attempts) = (RunState::Stopped, view.attempt.0 + 1);
            let record =
                TaskRecord { id: view.id, parent: view.parent, state, attempts, last_attempt: None, error: None };
            records.add(view.name, record);
        }
    }
    live.into_iter().for_each(|(name, count)| records.add_stopped(name, count));
    // Set once: each job has its own.
    let _ = outputs.finished.set(FinishedJob { records, counters });
    counters
}

/// Returns the bytes that the value store has spilled, and restored.
fn moved_bytes(cx: &Context) -> [u64; 2] {
    let usage = cx.values.usage();
    [usage.spilled_bytes, usage.restored_bytes]
}
