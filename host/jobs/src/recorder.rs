//! The side of a job's folder that its node has.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use crate::inspect::{Control, JobQuery, JobResponse};
use crate::limits::JobFolderLimits;
use crate::name::JobName;
use crate::record::{JobCounts, JobFailure, JobRecord, LogCounts, RunState, now_ms};
use crate::store::{JobStore, STOPPING, keep_tasks};
use crate::views::{JobSummary, Listing, ProgressRow, TaskRow};

/// How often the folder of a job that runs shows that its node lives.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

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
        let _ = File::create(self.folder.join(STOPPING));
    }
}

/// Keeps the folder of a job that runs in this process. Of one that is dropped before it has ended the record says that it
/// was stopped.
#[derive(Debug)]
pub struct JobRecorder {
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    shelf: JobStore,
    name: JobName,
    folder: PathBuf,
    record: Mutex<JobRecord>,
    /// Held while the node lives. It is touched now and then.
    lock: OwnedFd,
    log: Option<File>,
    control: Control,
}

impl JobRecorder {
    /// Of a job that is kept nowhere.
    pub fn nowhere() -> JobRecorder {
        JobRecorder { kept: None }
    }

    pub(crate) fn of(
        shelf: JobStore,
        folder: PathBuf,
        record: JobRecord,
        lock: OwnedFd,
        log: File,
        control: Control,
    ) -> JobRecorder {
        let (name, record) = (record.id.clone(), Mutex::new(record));
        JobRecorder { kept: Some(Kept { shelf, name, folder, record, lock, log: Some(log), control }) }
    }

    /// What the job is called, if it is kept.
    pub fn name(&self) -> Option<&JobName> {
        self.kept.as_ref().map(|kept| &kept.name)
    }

    /// Notes that the job is interrupted, whatever becomes of this process then.
    pub fn stop_mark(&self) -> Option<StopMark> {
        self.kept.as_ref().map(|kept| StopMark { folder: kept.folder.clone() })
    }

    /// The file for its log, the first time.
    pub fn take_log(&mut self) -> Option<File> {
        self.kept.as_mut()?.log.take()
    }

    /// Its first task can begin.
    pub fn begun(&self) {
        if let Some(kept) = &self.kept {
            kept.write(|record| (record.state, record.begun_ms) = (RunState::Running, Some(now_ms())));
        }
    }

    /// Answers questions until the job is to end.
    pub async fn serve<A: Future<Output = JobResponse>>(&self, answer: impl Fn(JobQuery) -> A) {
        match &self.kept {
            Some(kept) => tokio::select! {
                () = kept.control.serve(answer) => {}
                () = kept.show_life() => {}
            },
            None => std::future::pending().await,
        }
    }

    /// Keeps what is left of its tasks. Gives a warning where that can't be.
    pub fn keep_tasks(&self, tasks: &Listing<TaskRow>, summary: &JobSummary) -> Option<String> {
        let kept = self.kept.as_ref()?;
        let error = keep_tasks(&kept.folder, tasks, summary).err()?;
        Some(format!("warning: what the job's tasks did is not kept in {}: {error}", kept.folder.display()))
    }

    /// How far its tasks said that they were, in the end.
    pub fn keep_progress(&self, progress: Vec<ProgressRow>) {
        if let Some(kept) = &self.kept {
            kept.record().progress = progress;
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
        let kept = self.kept.take()?;
        let mut record = kept.record().clone();
        (record.state, record.result, record.error) = (state, result, error);
        (record.counts, record.log, record.ended_ms) = (counts, log, Some(now_ms()));
        let warning = record.write_last(&kept.folder).err().map(|error| {
            // A record of a job that runs, without its node, would be one of a job that failed.
            let _ = fs::remove_dir_all(&kept.folder);
            format!("warning: what became of the job is not kept in {}: {error}", kept.folder.display())
        });
        drop(kept.lock);
        kept.shelf.prune(&JobFolderLimits::USUAL);
        warning
    }

    /// Lets go of the folder as a process does that is killed.
    #[cfg(test)]
    pub(crate) fn vanish(mut self) {
        drop(self.kept.take());
    }
}

impl Kept {
    /// Has the folder show that the node lives: of one that is killed nothing else says for how long it did.
    async fn show_life(&self) {
        let mut tick = tokio::time::interval(SIGN_OF_LIFE);
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
        if let Err(e) = record.write(&self.folder) {
            log::warn!("the record of job {} is not kept: {}: {e}", self.name.short(), self.folder.display());
        }
    }

    fn record(&self) -> MutexGuard<'_, JobRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for JobRecorder {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            let (counts, log) = (kept.record().counts, kept.record().log);
            let error = JobFailure::in_words("its command was ended");
            self.finish(RunState::Stopped, serde_json::Value::Null, Some(error), counts, log);
        }
    }
}
