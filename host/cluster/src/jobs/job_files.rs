//! Runs of job files and predictions that tenants submit.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Blame, Code, Fault, JobRun, TaskId};
use sandbar_jobs::{
    JobCounts, JobFailure, JobLog, JobProgress, JobQuery, JobRecorder, JobResponse, LogEntry, LogOutput, LogSender,
    Phase, ProgressBars, RunState,
};
use sandbar_train::{
    JobOutcome, JobRunner, JobRunnerOptions, JobSources, NamedComponent, NamedFile, PredictSpec, PredictSummary,
    TrainError,
};
use serde_json::Value;

use super::job::{ClusterJob, JobComponent, JobFileWork, PredictionWork};
use crate::components;
use crate::error::host_fault;
use crate::files::{self, FileUse, NamedStoredFile, StoredFile};
use crate::state::{ClusterState, NodeRuntime};
use crate::tenants::TenantSettings;
use crate::uploads::{IncompletePath, UploadError};

/// Name of the output in a run's folder.
const OUTPUT: &str = "output";
/// Interval at which progress is reported and the size of the output is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum failed groups in a job's result.
const FAILURES_MAX: usize = 100;
/// Number of other nodes that get a copy of an output.
const OUTPUT_COPIES: usize = 1;
/// Divisor of the node's memory for grouped rows: the memory for one tenant's job.
const MEMORY_SHARE: u64 = 4;

/// The outcome of a run.
pub(super) struct FinishedRun {
    pub(super) state: RunState,
    /// Summary of the run.
    pub(super) result: Value,
    pub(super) output: Option<StoredFile>,
    pub(super) error: Option<JobFailure>,
}

impl FinishedRun {
    fn failed(fault: &Fault) -> FinishedRun {
        let error = Some(JobFailure::from_fault(fault, &[]));
        FinishedRun { state: RunState::Failed, result: Value::Null, output: None, error }
    }

    fn stopped() -> FinishedRun {
        let error = Some(JobFailure::from_message("stopped by `host jobs stop`"));
        FinishedRun { state: RunState::Stopped, result: Value::Null, output: None, error }
    }
}

/// The work of a job that reads files and writes one.
#[derive(Clone, Copy)]
pub(super) enum FileWork<'a> {
    JobFile(&'a JobFileWork),
    Prediction(&'a PredictionWork),
}

impl<'a> FileWork<'a> {
    /// Returns the files that it needs: its input, and then the models of a prediction.
    fn files(self) -> Vec<&'a NamedStoredFile> {
        match self {
            FileWork::JobFile(work) => work.inputs.iter().collect(),
            FileWork::Prediction(work) => work.files().collect(),
        }
    }

    fn components(self) -> &'a [JobComponent] {
        match self {
            FileWork::JobFile(work) => &work.components,
            FileWork::Prediction(work) => &work.components,
        }
    }

    /// Returns the path of its output, for messages.
    fn output(self) -> &'a str {
        match self {
            FileWork::JobFile(work) => &work.job.output.path,
            FileWork::Prediction(work) => &work.output,
        }
    }
}

/// Runs a job file or a prediction, and records the run.
pub(super) async fn run(cluster: &ClusterState, job: &ClusterJob, work: FileWork<'_>) -> FinishedRun {
    let (mut recorder, log) = match record(cluster, job) {
        Ok(recorded) => recorded,
        Err(fault) => return FinishedRun::failed(&fault),
    };
    cluster.jobs.set_feed(&job.reference(), job.runs, &recorder);
    let finished = run_recorded(cluster, job, work, &recorder, log.sender()).await;
    recorder.set_progress(recorder.progress().rows());
    let (result, error) = (finished.result.clone(), finished.error.clone());
    recorder.finish(finished.state, result, error, JobCounts::default(), log.close());
    finished
}

/// Creates the record and the log of a run.
fn record(cluster: &ClusterState, job: &ClusterJob) -> Result<(JobRecorder, JobLog), Fault> {
    let store = cluster.jobs.store(&job.tenant);
    let mut recorder = store.create_named(&job.id, &job.program, &[], job.tenant_id()).map_err(host_fault)?;
    let output = LogOutput::Callback(Box::new(|_| {}));
    let log = JobLog::start(recorder.take_log(), output, job.tenant_id()).map_err(host_fault)?;
    Ok((recorder, log))
}

async fn run_recorded(
    cluster: &ClusterState,
    job: &ClusterJob,
    work: FileWork<'_>,
    recorder: &JobRecorder,
    log: LogSender,
) -> FinishedRun {
    let progress = Arc::<JobProgress>::default();
    let mut report = ProgressReport { progress: progress.clone(), bars: recorder.progress(), log, reported: [None; 4] };
    recorder.mark_running();
    let ran = tokio::select! {
        ran = run_job(cluster, job, work, &progress) => ran,
        () = recorder.serve(|query| std::future::ready(respond(&query))) => return FinishedRun::stopped(),
        never = report.repeat() => never,
    };
    report.send();
    match ran {
        Ok((result, output)) => FinishedRun { state: RunState::Succeeded, result, output: Some(output), error: None },
        Err(fault) => FinishedRun::failed(&fault),
    }
}

/// Responds to a query: a job file and a prediction have no tasks, actors and objects.
fn respond(_query: &JobQuery) -> JobResponse {
    JobResponse::Refused("the job runs a job file or predicts: it has no tasks".to_owned())
}

/// Reports the progress and the log lines of a run.
struct ProgressReport {
    progress: Arc<JobProgress>,
    bars: Arc<ProgressBars>,
    log: LogSender,
    /// The last reported parts of each phase.
    reported: [Option<(u64, u64)>; 4],
}

impl ProgressReport {
    /// Reports what is new, again and again. Never returns.
    async fn repeat<T>(&mut self) -> T {
        loop {
            self.send();
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Reports what is new.
    fn send(&mut self) {
        let (phase, parts) = (self.progress.phase(), self.progress.parts());
        let name = match phase {
            Phase::Preparing => "preparing",
            Phase::Reading => "reading",
            Phase::Training => "training",
            Phase::Writing => "writing",
            Phase::Running => "running",
        };
        let reported = self.reported.get_mut(phase as usize);
        if let Some(last) = reported.filter(|last| **last != Some(parts) && parts.1 > 0) {
            *last = Some(parts);
            self.bars.report(TaskId(phase as u64), name, parts.0, Some(parts.1));
        }
        for line in self.progress.take_log() {
            self.log.send(LogEntry { task: None, level: 1, line: &line });
        }
    }
}

/// Runs the job on this node's workers. Returns its summary and its output.
async fn run_job(
    cluster: &ClusterState,
    job: &ClusterJob,
    work: FileWork<'_>,
    progress: &Arc<JobProgress>,
) -> Result<(Value, StoredFile), Fault> {
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("this node runs no jobs"))?;
    let tenant = &job.tenant;
    // A job at a time: further ones would share the tenant's processors and memory.
    let _turn = cluster.jobs.turn(tenant).acquire_owned().await.map_err(host_fault)?;
    let settings = cluster.tenants.settings(tenant).unwrap_or_default();
    // Until the run has ended, this keeps its files.
    let contents: Vec<StoredFile> = work.files().into_iter().map(|file| file.content).collect();
    let own_files = files::fetch_all(cluster, tenant, &contents).await?;
    for component in work.components() {
        components::ensure_of_tenant(cluster, tenant, component.component).await?;
    }
    let scratch = cluster.tenant_files.scratch(tenant).map_err(host_fault)?;
    std::fs::create_dir(scratch.path()).map_err(host_fault)?;
    let sources = Arc::new(sources(cluster, job, work, &own_files, &scratch));
    let runner = runner(runtime, job, &settings, progress);
    let (tenant_id, run) = (job.tenant_id(), JobRun { id: job.id.as_str().to_owned(), run: job.runs });
    let running = async {
        match work {
            FileWork::JobFile(work) => {
                let outcome = runner.run_with(&work.job, tenant_id, run, sources).await;
                outcome.and_then(|outcome| Ok(train_summary(outcome)?))
            }
            FileWork::Prediction(work) => {
                let models = own_files.last().map_or(Path::new(""), FileUse::path);
                let summary = runner.predict_with(&spec(work), models, tenant_id, run, sources).await;
                summary.and_then(|summary| Ok(predict_summary(summary)?))
            }
        }
    };
    let ran = tokio::select! {
        ran = running => ran,
        bytes = beyond(scratch.path(), settings.file_bytes_max) => {
            return Err(too_large(bytes, settings.file_bytes_max));
        }
    };
    let summary = ran.map_err(|error| fault(error, &scratch, work.output()))?;
    let in_use = cluster.jobs.index().files_in_use(tenant);
    let (files, tenant_name, path) = (cluster.tenant_files.clone(), tenant.clone(), scratch.path().join(OUTPUT));
    let adopted = tokio::task::spawn_blocking(move || files.adopt(&tenant_name, &path, &settings, &in_use));
    let (output, _use) = adopted.await.map_err(host_fault)?.map_err(|error| match error {
        error @ (UploadError::File(..) | UploadError::DiskFull(_)) => node_fault(error),
        error => Fault::new(Code::StoreFull, format!("the output: {error}")),
    })?;
    files::replicate(cluster, tenant, &[output], OUTPUT_COPIES).await;
    Ok((summary, output))
}

/// Returns the prediction, with the names of its files as paths.
fn spec(PredictionWork { models, inputs, output, model, file, components: _ }: &PredictionWork) -> PredictSpec {
    PredictSpec {
        models: (&models.name).into(),
        input: inputs.iter().map(|input| input.name.clone()).collect(),
        output: output.into(),
        model: model.clone(),
        file: file.clone(),
        components: Vec::new(),
    }
}

fn runner(
    runtime: &NodeRuntime,
    job: &ClusterJob,
    settings: &TenantSettings,
    progress: &Arc<JobProgress>,
) -> JobRunner {
    let services = &runtime.services;
    let functions = services.functions.with_progress(progress.clone()).for_tenant(job.tenant_id());
    let node_bytes_max = services.job_options.memory_bytes_max / MEMORY_SHARE;
    let options = JobRunnerOptions {
        memory_bytes_max: settings.memory_bytes_max.min(node_bytes_max),
        // Nodes know the trainers of other nodes by hash alone, whoever sent them.
        remote: None,
        ..services.job_options.clone()
    };
    let scheduler = Arc::new(runtime.handle.clone());
    JobRunner::new(services.pool.clone(), scheduler, functions, progress.clone(), options)
}

/// Returns the files of a run on this node.
fn sources(
    cluster: &ClusterState,
    job: &ClusterJob,
    work: FileWork<'_>,
    files: &[FileUse],
    scratch: &IncompletePath,
) -> JobSources {
    let named = work.files().into_iter().zip(files);
    let named = named.map(|(named, file)| NamedFile { name: named.name.clone(), path: file.path().to_owned() });
    let inputs = match work {
        FileWork::JobFile(work) => work.inputs.len(),
        FileWork::Prediction(work) => work.inputs.len(),
    };
    let component = |component: &JobComponent| NamedComponent {
        name: (&component.name).into(),
        found: (&component.found).into(),
        file: cluster.tenant_components.path(&job.tenant, component.component),
        component: component.component,
    };
    JobSources {
        inputs: named.take(inputs).collect(),
        components: work.components().iter().map(component).collect(),
        output: scratch.path().join(OUTPUT),
    }
}

/// Returns the bytes of the files in a folder once they exceed `bytes_max`.
async fn beyond(folder: &Path, bytes_max: u64) -> u64 {
    loop {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let bytes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        if bytes > bytes_max {
            return bytes;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

fn too_large(bytes: u64, max: u64) -> Fault {
    let message = format!(
        "the output has {bytes} bytes so far, the limit of the tenant for a file is {max}; ask the cluster's operator \
         (`host tenant set NAME --file-bytes-max SIZE`)"
    );
    Fault::new(Code::StoreFull, message)
}

/// Encodes the summary of a run, with its first failures.
fn train_summary(mut outcome: JobOutcome) -> Result<Value, Fault> {
    match &mut outcome {
        JobOutcome::Models(summary) => {
            summary.failures.truncate(FAILURES_MAX);
            // Those of the node are other tenants', too.
            summary.peak_memory_bytes = 0;
        }
        JobOutcome::Rows(summary) => summary.peak_memory_bytes = 0,
    }
    serde_json::to_value(outcome).map_err(host_fault)
}

/// Encodes the summary of a prediction.
fn predict_summary(mut summary: PredictSummary) -> Result<Value, Fault> {
    summary.peak_memory_bytes = 0;
    serde_json::to_value(summary).map_err(host_fault)
}

/// Returns the fault of a failed run. The tenant must not learn where the node stores its output.
fn fault(error: TrainError, scratch: &IncompletePath, output: &str) -> Fault {
    let own_path = scratch.path().join(OUTPUT);
    let shown = |message: String| {
        let message = message.replace(&*own_path.to_string_lossy(), output);
        let message = message.replace(&*scratch.path().to_string_lossy(), output);
        let folder = scratch.path().parent().and_then(|folder| folder.canonicalize().ok());
        folder.map_or(message.clone(), |folder| message.replace(&*folder.to_string_lossy(), ""))
    };
    match error {
        TrainError::Fault(fault) => Fault { message: shown(fault.message), ..fault },
        TrainError::Data(error) if error.code().blame() != Blame::Host => {
            Fault::new(error.code(), shown(error.to_string()))
        }
        TrainError::Invalid(message) | TrainError::NotFound(message) => Fault::new(Code::Refused, shown(message)),
        error @ TrainError::NoModel { .. } => Fault::new(Code::Refused, shown(error.to_string())),
        error => node_fault(error),
    }
}

/// Returns the fault of a node, whose reason is for the node's log.
fn node_fault(reason: impl Display) -> Fault {
    log::warn!("a tenant's job failed: {reason}");
    host_fault("the node failed; its log has the reason, which its operator can read")
}
