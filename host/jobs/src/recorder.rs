//! The side of a job's folder that its node has.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use crate::inspect::{InspectServer, JobQuery, JobResponse};
use crate::job_record::{JobCounts, JobFailure, JobRecord, LogCounts, RunState, now_ms};
use crate::limits::JobFolderLimits;
use crate::name::JobName;
use crate::rows::{JobSummary, Listing, ProgressRow, TaskRow};
use crate::store::{JobStore, STOP_MARK_FILE, write_task_files};

/// How often the folder of a job that runs shows that its node lives.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Notes in the folder of a job that it is interrupted: its record says so, also if its node is killed before it can write
/// one.
#[derive(Debug, Clone)]
pub struct StopMark {
    folder: PathBuf,
}

impl StopMark {
    /// It is interrupted now.
    pub fn set(&self) {
        // As of records.
        let _ = File::create(self.folder.join(STOP_MARK_FILE));
    }
}

/// Keeps the folder of a job that runs in this process. Of one that is dropped before it has ended the record says that it
/// was stopped.
#[derive(Debug)]
pub struct JobRecorder {
    folder: Option<JobFolder>,
}

#[derive(Debug)]
struct JobFolder {
    store: JobStore,
    name: JobName,
    path: PathBuf,
    record: Mutex<JobRecord>,
    /// Held while the node lives. It is touched now and then.
    lock: OwnedFd,
    log: Option<File>,
    server: InspectServer,
}

impl JobRecorder {
    /// Of a job that is kept nowhere.
    pub fn disabled() -> JobRecorder {
        JobRecorder { folder: None }
    }

    pub(crate) fn new(
        store: JobStore,
        path: PathBuf,
        record: JobRecord,
        lock: OwnedFd,
        log: File,
        server: InspectServer,
    ) -> JobRecorder {
        let (name, record) = (record.id.clone(), Mutex::new(record));
        JobRecorder { folder: Some(JobFolder { store, name, path, record, lock, log: Some(log), server }) }
    }

    /// What the job is called, if it is kept.
    pub fn name(&self) -> Option<&JobName> {
        self.folder.as_ref().map(|folder| &folder.name)
    }

    /// Notes that the job is interrupted, whatever becomes of this process then.
    pub fn stop_mark(&self) -> Option<StopMark> {
        self.folder.as_ref().map(|folder| StopMark { folder: folder.path.clone() })
    }

    /// The file for its log, the first time.
    pub fn take_log(&mut self) -> Option<File> {
        self.folder.as_mut()?.log.take()
    }

    /// Its first task can begin.
    pub fn mark_running(&self) {
        if let Some(folder) = &self.folder {
            folder.write(|record| (record.state, record.begun_ms) = (RunState::Running, Some(now_ms())));
        }
    }

    /// Answers questions until the job is to end.
    pub async fn serve<A: Future<Output = JobResponse>>(&self, respond: impl Fn(JobQuery) -> A) {
        match &self.folder {
            Some(folder) => tokio::select! {
                () = folder.server.serve(respond) => {}
                () = folder.send_heartbeats() => {}
            },
            None => std::future::pending().await,
        }
    }

    /// Keeps what is left of its tasks. Gives a warning where that can't be.
    pub fn write_tasks(&self, tasks: &Listing<TaskRow>, summary: &JobSummary) -> Option<String> {
        let folder = self.folder.as_ref()?;
        let error = write_task_files(&folder.path, tasks, summary).err()?;
        Some(format!("warning: what the job's tasks did is not kept in {}: {error}", folder.path.display()))
    }

    /// How far its tasks said that they were, in the end.
    pub fn set_progress(&self, progress: Vec<ProgressRow>) {
        if let Some(folder) = &self.folder {
            folder.record().progress = progress;
        }
    }

    /// Keeps that the job has ended. Gives a warning where that can't be.
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
            // A record of a job that runs, without its node, would be one of a job that failed.
            let _ = fs::remove_dir_all(&folder.path);
            format!("warning: what became of the job is not kept in {}: {error}", folder.path.display())
        });
        drop(folder.lock);
        folder.store.prune(&JobFolderLimits::DEFAULT);
        warning
    }

    /// Lets go of the folder as a process does that is killed.
    #[cfg(test)]
    pub(crate) fn simulate_crash(mut self) {
        drop(self.folder.take());
    }
}

impl JobFolder {
    /// Has the folder show that the node lives: of one that is killed nothing else says for how long it did.
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
        // On a full disk whoever looks learns of it once the job has ended.
        if let Err(e) = record.write(&self.path) {
            log::warn!("the record of job {} is not kept: {}: {e}", self.name.short(), self.path.display());
        }
    }

    fn record(&self) -> MutexGuard<'_, JobRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for JobRecorder {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let (counts, log) = (folder.record().counts, folder.record().log);
            let error = JobFailure::from_message("its command was ended");
            self.finish(RunState::Stopped, serde_json::Value::Null, Some(error), counts, log);
        }
    }
}
