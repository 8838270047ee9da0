//! Jobs of the cluster that this node runs or ran, and notification of followers that use this node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_jobs::{JobName, JobRecorder, JobStore, JobUpdates, ProgressBars};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Jobs of the cluster that this node runs or ran.
pub(crate) struct LocalJobs {
    /// Records and logs.
    pub(crate) store: JobStore,
    running: Mutex<HashMap<JobName, RunningJob>>,
    followed: Mutex<HashMap<JobName, watch::Sender<()>>>,
}

struct RunningJob {
    /// Number of the run.
    run: u32,
    task: AbortHandle,
    /// `None` until the job has a record and a log.
    feed: Option<JobFeed>,
}

/// What a running job reports in this process.
#[derive(Clone)]
pub(crate) struct JobFeed {
    /// Notifies of log lines and progress.
    pub(crate) updates: JobUpdates,
    pub(crate) progress: Arc<ProgressBars>,
}

impl LocalJobs {
    pub(crate) fn new(store: JobStore) -> LocalJobs {
        LocalJobs { store, running: Mutex::default(), followed: Mutex::default() }
    }

    /// Inserts a running job, whose task `spawn` starts, unless it runs already.
    pub(crate) fn start(&self, id: &JobName, run: u32, spawn: impl FnOnce() -> AbortHandle) {
        // The lock is held meanwhile: the task finds the job.
        self.running().entry(id.clone()).or_insert_with(|| RunningJob { run, task: spawn(), feed: None });
    }

    /// Offers the updates and progress of a run to its followers.
    pub(crate) fn set_feed(&self, id: &JobName, run: u32, recorder: &JobRecorder) {
        if let Some(job) = self.running().get_mut(id).filter(|job| job.run == run) {
            job.feed = Some(JobFeed { updates: recorder.updates(), progress: recorder.progress() });
        }
        self.notify(id);
    }

    /// Returns the feed of a run of a job, if this node is running it.
    pub(crate) fn feed(&self, id: &JobName, run: u32) -> Option<JobFeed> {
        self.running().get(id).filter(|job| job.run == run)?.feed.clone()
    }

    /// Removes a run that has finished.
    pub(crate) fn finish(&self, id: &JobName, run: u32) {
        let mut running = self.running();
        if running.get(id).is_some_and(|job| job.run == run) {
            running.remove(id);
        }
        drop(running);
        self.notify(id);
    }

    /// Aborts a job of which this node is no longer the owner.
    pub(crate) fn abort(&self, id: &JobName) {
        let job = self.running().remove(id);
        if let Some(job) = job {
            log::warn!("job {} now belongs to another node: it is aborted here", id.short());
            job.task.abort();
            self.notify(id);
        }
    }

    /// Returns a receiver of later changes of a job or its owner, as far as this node learns of them.
    pub(crate) fn subscribe(&self, id: &JobName) -> watch::Receiver<()> {
        let mut followed = self.followed();
        followed.retain(|_, changes| changes.receiver_count() > 0);
        followed.entry(id.clone()).or_default().subscribe()
    }

    /// Notifies the followers of a job that the job or its owner has changed.
    pub(crate) fn notify(&self, id: &JobName) {
        if let Some(changes) = self.followed().get(id) {
            changes.send_replace(());
        }
    }

    /// Notifies the followers of all jobs.
    pub(crate) fn notify_all(&self) {
        self.followed().values().for_each(|changes| changes.send_replace(()));
    }

    fn running(&self) -> MutexGuard<'_, HashMap<JobName, RunningJob>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<JobName, watch::Sender<()>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::TenantId;

    use super::*;

    #[tokio::test]
    async fn followers_learn_of_the_start_and_end_of_a_job() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = LocalJobs::new(JobStore::open(folder.path().join("jobs")));
        let (id, other) = (JobName::generate(), "20260131-235959-123-4f3a9c".parse().unwrap());
        let [mut changes, others] = [&id, &other].map(|id| jobs.subscribe(id));
        let spawn = || tokio::spawn(std::future::pending::<()>()).abort_handle();
        jobs.start(&id, 2, spawn);
        jobs.start(&id, 2, || unreachable!("the job runs already"));
        assert!(jobs.feed(&id, 2).is_none() && !changes.has_changed().unwrap());
        let recorder = jobs.store.create_named(&id, "program", &[], TenantId::DEFAULT).unwrap();
        jobs.set_feed(&id, 2, &recorder);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        // The feed outlives the job.
        let feed = jobs.feed(&id, 2).unwrap();
        assert!(jobs.feed(&id, 1).is_none());
        let updates = feed.updates.subscribe();
        recorder.progress().report(sandbar_core::TaskId(1), "rows", 1, None);
        assert!(updates.has_changed().unwrap() && !changes.has_changed().unwrap());
        jobs.finish(&id, 1);
        assert!(jobs.feed(&id, 2).is_some(), "another run has finished");
        jobs.finish(&id, 2);
        assert!(jobs.feed(&id, 2).is_none() && changes.has_changed().unwrap());
        assert_eq!(feed.progress.rows()[0].done, 1);
        changes.mark_unchanged();
        jobs.abort(&id);
        assert!(!changes.has_changed().unwrap(), "the job does not run");
        assert!(!others.has_changed().unwrap());
        jobs.notify_all();
        assert!(changes.has_changed().unwrap() && others.has_changed().unwrap());
        drop((changes, others));
        drop(jobs.subscribe(&other));
        assert_eq!(jobs.followed().len(), 1);
    }
}
