//! The recording of a running job: its log, its progress, responses to queries, and its final record.

use std::sync::{Arc, OnceLock};

use sandbar_core::{JobId, JobRun, TenantId};
use sandbar_jobs::{
    JobCounts, JobFailure, JobFolderLimits, JobLog, JobName, JobProgress, JobQuery, JobRecorder, JobResponse,
    JobSummary, Listing, LogOutput, LogSender, ProgressBars, RunState,
};
use serde_json::Value;

use crate::engine::FinishedJob;
use crate::error::ProgramError;
use crate::summary::ProgramSummary;
use crate::thread::RuntimeHandle;

/// Records a job. If it is dropped before [`JobRecording::finish`], it records the job as interrupted.
pub(super) struct JobRecording {
    recorder: JobRecorder,
    /// The log, until the recording is closed.
    log: Option<JobLog>,
    /// The runtime and the job's id there, once the job has started.
    runtime: OnceLock<(RuntimeHandle, JobId)>,
    finished_job: Arc<OnceLock<FinishedJob>>,
    progress: Arc<ProgressBars>,
    /// Receives warnings about records that can't be written.
    warnings: Option<Arc<JobProgress>>,
}

impl JobRecording {
    /// Starts a recording. `output` receives the lines of the log; a deduplicated output also shows the progress of tasks.
    ///
    /// # Errors
    /// Fails if the log's thread can't be started.
    pub(super) fn start(mut recorder: JobRecorder, output: LogOutput) -> std::io::Result<JobRecording> {
        let progress = recorder.progress();
        let mut warnings = None;
        if let LogOutput::Deduplicated(shown) = &output {
            shown.set_program_bars(progress.clone());
            warnings = Some(shown.clone());
        }
        let log = Some(JobLog::start(recorder.take_log(), output, recorder.tenant())?);
        let (runtime, finished_job) = (OnceLock::new(), Arc::default());
        Ok(JobRecording { recorder, log, runtime, finished_job, progress, warnings })
    }

    /// Returns the job's name, or `None` if the job is not recorded.
    pub(super) fn name(&self) -> Option<&JobName> {
        self.recorder.name()
    }

    /// Returns the identity of a run of the job in accounts.
    pub(super) fn run(&self, run: u32) -> JobRun {
        let id = self.name().map(|name| name.as_str().to_owned()).unwrap_or_default();
        JobRun { id, run }
    }

    /// Returns the tenant that submitted the job.
    pub(super) fn tenant(&self) -> TenantId {
        self.recorder.tenant()
    }

    /// Returns a sender of log lines.
    pub(super) fn log_sender(&self) -> Option<LogSender> {
        self.log.as_ref().map(JobLog::sender)
    }

    /// Returns the cell to which the runtime writes records and counters when the job has ended.
    pub(super) fn finished_job(&self) -> Arc<OnceLock<FinishedJob>> {
        self.finished_job.clone()
    }

    /// Returns the progress bars, which the runtime updates.
    pub(super) fn progress(&self) -> Arc<ProgressBars> {
        self.progress.clone()
    }

    /// Marks the job as running in a runtime, which responds to queries from now on.
    pub(super) fn started(&self, handle: RuntimeHandle, job: JobId) {
        self.recorder.mark_running();
        // A recording has one job, so this is the first call.
        let _ = self.runtime.set((handle, job));
    }

    /// Responds to queries until the user stops the job.
    pub(super) async fn serve(&self) {
        self.recorder.serve(|query| self.respond(query)).await;
    }

    async fn respond(&self, query: JobQuery) -> JobResponse {
        let Some((handle, job)) = self.runtime.get() else {
            return JobResponse::Refused("the job has not started: its program is being built or compiled".to_owned());
        };
        let mut response = handle.inspect(*job, query).await;
        match &mut response {
            JobResponse::Workers(workers) => {
                workers.rows.iter_mut().for_each(|row| row.memory_bytes = memory_bytes(row.process));
            }
            JobResponse::Memory(view) => {
                view.processes.iter_mut().for_each(|row| row.memory_bytes = memory_bytes(row.process));
            }
            JobResponse::Summary(summary) => summary.progress = self.progress.rows(),
            _ => {}
        }
        response
    }

    /// Returns the counts of the job's tasks, or zeros before the job has ended.
    pub(super) fn counts(&self) -> JobCounts {
        let Some(FinishedJob { records, counters }) = self.finished_job.get() else { return JobCounts::default() };
        let summary = JobSummary { names: records.summaries(), progress: Vec::new() };
        JobCounts {
            tasks: counters.submitted.saturating_sub(1),
            succeeded: summary.sum(|name| name.succeeded),
            failed: summary.sum(|name| name.failed),
            stopped: summary.sum(|name| name.stopped),
            failed_attempts: counters.failed,
            lost_attempts: counters.lost_attempts,
            lost_workers: counters.lost_workers,
            lost_nodes: counters.lost_nodes,
            takeovers: 0,
            resumed: counters.resumed,
        }
    }

    /// Writes the final record of a job that has ended.
    pub(super) fn finish(mut self, result: &Result<ProgramSummary, ProgramError>) {
        match result {
            Ok(summary) => self.close(RunState::Succeeded, summary.result.clone(), None),
            Err(error @ (ProgramError::Stopped | ProgramError::Dropped)) => {
                self.close(RunState::Stopped, Value::Null, Some(error.failure()));
            }
            Err(error) => self.close(RunState::Failed, Value::Null, Some(error.failure())),
        }
    }

    fn close(&mut self, state: RunState, result: Value, error: Option<JobFailure>) {
        let Some(log) = self.log.take() else { return };
        let log = log.close();
        self.recorder.set_progress(self.progress.rows());
        let counts = self.counts();
        let mut warning = None;
        if let Some(FinishedJob { records, .. }) = self.finished_job.get() {
            let summary = JobSummary { names: records.summaries(), progress: self.progress.rows() };
            let rows = records.rows(JobFolderLimits::DEFAULT.rows_max as usize, |_, _| true);
            let total = counts.succeeded + counts.failed + counts.stopped;
            warning = self.recorder.write_tasks(&Listing::new(total, rows), &summary);
        }
        warning = self.recorder.finish(state, result, error, counts, log).or(warning);
        if let Some((warning, progress)) = warning.zip(self.warnings.as_ref()) {
            progress.warn(warning);
        }
    }
}

impl Drop for JobRecording {
    fn drop(&mut self) {
        self.close(RunState::Stopped, Value::Null, Some(JobFailure::from_message("interrupted")));
    }
}

/// Returns the proportional set size of a process, in bytes: its private memory, and its share of shared memory. Returns zero
/// if the process has exited.
fn memory_bytes(process: u32) -> u64 {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
    let kib = |text: &str, field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    // Without permission to read `smaps_rollup`, falls back to the resident set size.
    let share = kib(&read("smaps_rollup"), "Pss:");
    share.or_else(|| kib(&read("status"), "VmRSS:")).unwrap_or(0) * 1024
}
