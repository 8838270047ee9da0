//! The node's access to the folder of a job that it runs.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use sandbar_core::TenantId;

use crate::inspect::{InspectServer, JobQuery, JobResponse};
use crate::job_record::{JobCounts, JobFailure, JobRecord, LogCounts, now_ms};
use crate::limits::JobFolderLimits;
use crate::log::JobLogFile;
use crate::name::JobName;
use crate::progress_bars::ProgressBars;
use crate::rows::{JobSummary, Listing, ProgressRow, TaskRow};
use crate::run_state::RunState;
use crate::store::{JobStore, STOP_MARK_FILE, write_task_files};
use crate::updates::JobUpdates;

/// Interval at which the node of a running job touches the lock file.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Marks a job as interrupted in its folder, so that it counts as stopped even if its node is killed before it writes the
/// final record.
#[derive(Debug, Clone)]
pub struct StopMark {
    folder: PathBuf,
}

impl StopMark {
    /// Sets the mark.
    pub fn set(&self) {
        // Without the mark, a killed job counts as failed, which is not worth an error of its own.
        let _ = File::create(self.folder.join(STOP_MARK_FILE));
    }
}

/// Writes the folder of a job that runs in this process. If it is dropped before [`JobRecorder::finish`], it records the job
/// as stopped.
#[derive(Debug)]
pub struct JobRecorder {
    /// `None` if nothing is recorded, or the final record is written.
    folder: Option<JobFolder>,
    updates: JobUpdates,
    progress: Arc<ProgressBars>,
    tenant: TenantId,
}

#[derive(Debug)]
struct JobFolder {
    store: JobStore,
    name: JobName,
    path: PathBuf,
    record: Mutex<JobRecord>,
    /// Locked while the node lives. Its modification time is the node's last heartbeat.
    lock: OwnedFd,
    log: Option<File>,
    server: InspectServer,
}

impl JobRecorder {
    /// Returns a recorder of a tenant's job that records nothing.
    pub fn disabled(tenant: TenantId) -> JobRecorder {
        JobRecorder::with_folder(None, tenant)
    }

    fn with_folder(folder: Option<JobFolder>, tenant: TenantId) -> JobRecorder {
        let updates = JobUpdates::default();
        let progress = Arc::new(ProgressBars::new(updates.clone()));
        JobRecorder { folder, updates, progress, tenant }
    }

    pub(crate) fn new(
        store: JobStore,
        path: PathBuf,
        record: JobRecord,
        lock: OwnedFd,
        log: File,
        server: InspectServer,
    ) -> JobRecorder {
        let (name, tenant, record) = (record.id.clone(), record.tenant, Mutex::new(record));
        JobRecorder::with_folder(Some(JobFolder { store, name, path, record, lock, log: Some(log), server }), tenant)
    }

    /// Returns the tenant that submitted the job.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the job's name, or `None` if it is not recorded.
    pub fn name(&self) -> Option<&JobName> {
        self.folder.as_ref().map(|folder| &folder.name)
    }

    /// Returns a handle that marks the job as interrupted, or `None` if the job is not recorded.
    pub fn stop_mark(&self) -> Option<StopMark> {
        self.folder.as_ref().map(|folder| StopMark { folder: folder.path.clone() })
    }

    /// Returns the log file on the first call, if the job is recorded.
    pub fn take_log(&mut self) -> Option<JobLogFile> {
        let file = self.folder.as_mut()?.log.take()?;
        Some(JobLogFile::new(file, self.updates.clone()))
    }

    /// Returns the notifications of changes of the log file and of the progress.
    pub fn updates(&self) -> JobUpdates {
        self.updates.clone()
    }

    /// Returns the progress that the job's tasks report.
    pub fn progress(&self) -> Arc<ProgressBars> {
        self.progress.clone()
    }

    /// Records that the first task can start.
    pub fn mark_running(&self) {
        if let Some(folder) = &self.folder {
            folder.write(|record| (record.state, record.begun_ms) = (RunState::Running, Some(now_ms())));
        }
    }

    /// Responds to queries and sends heartbeats. Returns when a client stops the job, or never if the job is not recorded.
    pub async fn serve<A: Future<Output = JobResponse>>(&self, respond: impl Fn(JobQuery) -> A) {
        match &self.folder {
            Some(folder) => tokio::select! {
                () = folder.server.serve(respond) => {}
                () = folder.send_heartbeats() => {}
            },
            None => std::future::pending().await,
        }
    }

    /// Writes the records of the job's tasks. Returns a warning if they can't be written.
    pub fn write_tasks(&self, tasks: &Listing<TaskRow>, summary: &JobSummary) -> Option<String> {
        let folder = self.folder.as_ref()?;
        let error = write_task_files(&folder.path, tasks, summary).err()?;
        Some(format!("warning: the task records of the job can't be written to {}: {error}", folder.path.display()))
    }

    /// Sets the progress of the final record.
    pub fn set_progress(&self, progress: Vec<ProgressRow>) {
        if let Some(folder) = &self.folder {
            folder.record().progress = progress;
        }
    }

    /// Writes the final record, and prunes the store. Returns a warning if the record can't be written.
    pub fn finish(
        &mut self,
        state: RunState,
        result: serde_json::Value,
        error: Option<JobFailure>,
        counts: JobCounts,
        log: LogCounts,
    ) -> Option<String> {
        let folder = self.folder.take()?;
        let mut record = folder.record().clone();
        (record.state, record.result, record.error) = (state, result, error);
        (record.counts, record.log, record.ended_ms) = (counts, log, Some(now_ms()));
        let warning = record.write_final(&folder.path).err().map(|error| {
            // The record of a running job without a live node would count as that of a failed job.
            let _ = fs::remove_dir_all(&folder.path);
            format!("warning: the record of the job can't be written to {}: {error}", folder.path.display())
        });
        drop(folder.lock);
        folder.store.prune(&JobFolderLimits::DEFAULT);
        warning
    }

    /// Releases the folder without a final record, as a killed process does.
    #[cfg(test)]
    pub(crate) fn simulate_crash(mut self) {
        drop(self.folder.take());
    }
}

impl JobFolder {
    /// Touches the lock file periodically. The time of a killed node's last heartbeat is taken as the end of its job.
    async fn send_heartbeats(&self) {
        let mut tick = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            tick.tick().await;
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let _ = futimens(&self.lock, &Timestamps { last_access: now, last_modification: now });
        }
    }

    fn write(&self, change: impl FnOnce(&mut JobRecord)) {
        let mut record = self.record();
        change(&mut record);
        // The job runs on without its record, and `finish` returns a warning if the final record fails too.
        if let Err(e) = record.write(&self.path) {
            log::warn!("the record of job {} can't be written to {}: {e}", self.name.short(), self.path.display());
        }
    }

    fn record(&self) -> MutexGuard<'_, JobRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for JobRecorder {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let JobRecord { counts, log, .. } = folder.record().clone();
            let error = JobFailure::from_message("its command ended before the job finished");
            self.finish(RunState::Stopped, serde_json::Value::Null, Some(error), counts, log);
        }
    }
}
