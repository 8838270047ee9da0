//! What is kept of a job while it runs and after it: its log, the records of its tasks, what became of it.

use std::sync::{Arc, OnceLock};

use sandbar_core::JobId;
use sandbar_jobs::{
    JobCounts, JobFailure, JobFolderLimits, JobLog, JobName, JobProgress, JobQuery, JobRecorder, JobResponse,
    JobSummary, Listing, LogOutput, LogSender, ProgressBars, RunState,
};
use serde_json::Value;

use crate::engine::FinishedJob;
use crate::error::ProgramError;
use crate::runner::ProgramSummary;
use crate::thread::RuntimeHandle;

/// Keeps what there is to keep of a job, whatever ends it.
pub(super) struct Keeping {
    keeper: JobRecorder,
    log: Option<JobLog>,
    /// Who is to be asked, once there is somebody.
    asked: OnceLock<(RuntimeHandle, JobId)>,
    left: Arc<OnceLock<FinishedJob>>,
    bars: Arc<ProgressBars>,
    /// Who is told what could not be kept.
    warned: Option<Arc<JobProgress>>,
}

impl Keeping {
    /// Lines of its log are `shown`, and how far its tasks are to whoever sees these folded.
    pub(super) fn start(mut keeper: JobRecorder, shown: LogOutput) -> std::io::Result<Keeping> {
        let bars = keeper.progress();
        let mut warned = None;
        if let LogOutput::Deduplicated(progress) = &shown {
            progress.set_program_bars(bars.clone());
            warned = Some(progress.clone());
        }
        let log = JobLog::start(keeper.take_log(), shown)?;
        Ok(Keeping { keeper, log: Some(log), asked: OnceLock::new(), left: Arc::default(), bars, warned })
    }

    pub(super) fn name(&self) -> Option<&JobName> {
        self.keeper.name()
    }

    pub(super) fn log(&self) -> Option<LogSender> {
        self.log.as_ref().map(JobLog::sender)
    }

    /// Where the hub puts what is left of the job.
    pub(super) fn left(&self) -> Arc<OnceLock<FinishedJob>> {
        self.left.clone()
    }

    /// Where the hub puts how far its tasks are.
    pub(super) fn bars(&self) -> Arc<ProgressBars> {
        self.bars.clone()
    }

    /// The hub runs the job from now on.
    pub(super) fn begun(&self, handle: RuntimeHandle, job: JobId) {
        self.keeper.mark_running();
        // There is one job.
        let _ = self.asked.set((handle, job));
    }

    /// Answers questions until the job is to end.
    pub(super) async fn serve(&self) {
        self.keeper.serve(|question| self.answer(question)).await;
    }

    async fn answer(&self, question: JobQuery) -> JobResponse {
        let Some((handle, job)) = self.asked.get() else {
            return JobResponse::Refused("the job has not begun: its program is being built or compiled".to_owned());
        };
        let mut answer = handle.inspect(*job, question).await;
        match &mut answer {
            JobResponse::Workers(workers) => {
                workers.rows.iter_mut().for_each(|row| row.memory_bytes = memory_bytes(row.process));
            }
            JobResponse::Memory(view) => {
                view.processes.iter_mut().for_each(|row| row.memory_bytes = memory_bytes(row.process));
            }
            JobResponse::Summary(summary) => summary.progress = self.bars.rows(),
            _ => {}
        }
        answer
    }

    /// What its tasks came to, once it has ended.
    pub(super) fn counts(&self) -> JobCounts {
        let Some(FinishedJob { records, counters }) = self.left.get() else { return JobCounts::default() };
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

    /// The job has ended.
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
        self.keeper.set_progress(self.bars.rows());
        let counts = self.counts();
        let mut warning = None;
        if let Some(FinishedJob { records, .. }) = self.left.get() {
            let summary = JobSummary { names: records.summaries(), progress: self.bars.rows() };
            let rows = records.rows(JobFolderLimits::DEFAULT.rows_max as usize, |_, _| true);
            let total = counts.succeeded + counts.failed + counts.stopped;
            warning = self.keeper.write_tasks(&Listing::new(total, rows), &summary);
        }
        warning = self.keeper.finish(state, result, error, counts, log).or(warning);
        if let Some((warning, progress)) = warning.zip(self.warned.as_ref()) {
            progress.warn(warning);
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.close(RunState::Stopped, Value::Null, Some(JobFailure::from_message("interrupted")));
    }
}

/// Memory of a process that is its own, and its share of what it shares, in bytes; zero when it is gone.
fn memory_bytes(process: u32) -> u64 {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
    let kib = |text: &str, field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    // Who may not look at its pages sees how many are resident.
    let share = kib(&read("smaps_rollup"), "Pss:");
    share.or_else(|| kib(&read("status"), "VmRSS:")).unwrap_or(0) * 1024
}
