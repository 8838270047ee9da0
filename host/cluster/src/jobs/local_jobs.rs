//! Jobs of the cluster that this node runs or ran, and notification of followers that use this node.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_jobs::{JobRecorder, JobStore, JobUpdates, ProgressBars};
use sandbar_meta::{Change, Revision};
use sandbar_wire::Name;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use super::index::{Changed, JobIndex};
use super::job::JobRef;

/// Jobs of the cluster that this node runs or ran.
pub(crate) struct LocalJobs {
    /// Folder with a folder of records and logs for each tenant.
    folder: PathBuf,
    running: Mutex<HashMap<JobRef, RunningJob>>,
    /// Jobs that have ended on this node, with the revisions of their outcomes, which the index does not include yet.
    ended: Mutex<HashMap<JobRef, Revision>>,
    followed: Mutex<HashMap<JobRef, watch::Sender<()>>>,
    /// Jobs of the whole cluster.
    index: Mutex<JobIndex>,
    /// Position of the index.
    indexed: watch::Sender<Revision>,
    /// For each tenant the turn of its job files, which run one at a time on a node.
    turns: Mutex<HashMap<Name, Arc<Semaphore>>>,
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
    pub(crate) fn new(folder: PathBuf) -> LocalJobs {
        LocalJobs {
            folder,
            running: Mutex::default(),
            ended: Mutex::default(),
            followed: Mutex::default(),
            index: Mutex::new(JobIndex::new(&[], Revision(0))),
            indexed: watch::Sender::new(Revision(0)),
            turns: Mutex::default(),
        }
    }

    /// Returns the records and logs of a tenant.
    pub(crate) fn store(&self, tenant: &Name) -> JobStore {
        JobStore::open(self.folder.join(tenant.as_str()))
    }

    /// Removes the records and logs of tenants that `exists` does not know. Returns whether there were any.
    pub(crate) fn remove_others(&self, exists: impl Fn(&Name) -> bool) -> bool {
        remove_folders(&self.folder, exists)
    }

    /// Returns the turn of a tenant's job files.
    pub(crate) fn turn(&self, tenant: &Name) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
    }

    /// Returns this node's copy of the cluster's jobs. It is empty until the node has read them.
    pub(crate) fn index(&self) -> MutexGuard<'_, JobIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_index(&self, index: JobIndex) {
        let position = index.position();
        *self.index() = index;
        self.ended().retain(|_, outcome| *outcome >= position);
        self.indexed.send_replace(position);
    }

    /// Applies changes up to a position.
    pub(crate) fn update_index(&self, changes: Vec<Change>, position: Revision) -> Changed {
        let changed = self.index().apply(changes, position);
        self.ended().retain(|_, outcome| *outcome >= position);
        self.indexed.send_replace(position);
        changed
    }

    /// Waits until the index includes more changes than before `position`.
    pub(crate) async fn indexed_beyond(&self, position: Revision) {
        // This has the sender: it is not closed.
        let _ = self.indexed.subscribe().wait_for(|now| *now > position).await;
    }

    /// Returns whether a job runs on this node, or has ended here after the last change that the index includes.
    pub(crate) fn is_running_or_ended(&self, job: &JobRef) -> bool {
        self.running().contains_key(job) || self.ended().contains_key(job)
    }

    /// Aborts the running jobs for which `is_own` does not hold.
    pub(crate) fn abort_unless(&self, is_own: impl Fn(&JobRef) -> bool) {
        let running: Vec<JobRef> = self.running().keys().cloned().collect();
        running.iter().filter(|job| !is_own(job)).for_each(|job| self.abort(job));
    }

    /// Inserts a running job, whose task `spawn` starts, unless it runs already.
    pub(crate) fn start(&self, id: &JobRef, run: u32, spawn: impl FnOnce() -> AbortHandle) {
        // The lock is held meanwhile: the task finds the job.
        self.running().entry(id.clone()).or_insert_with(|| RunningJob { run, task: spawn(), feed: None });
    }

    /// Offers the updates and progress of a run to its followers.
    pub(crate) fn set_feed(&self, id: &JobRef, run: u32, recorder: &JobRecorder) {
        if let Some(job) = self.running().get_mut(id).filter(|job| job.run == run) {
            job.feed = Some(JobFeed { updates: recorder.updates(), progress: recorder.progress() });
        }
        self.notify(id);
    }

    /// Returns the feed of a run of a job, if this node is running it.
    pub(crate) fn feed(&self, id: &JobRef, run: u32) -> Option<JobFeed> {
        self.running().get(id).filter(|job| job.run == run)?.feed.clone()
    }

    /// Removes a run that has finished, and whose outcome has this revision.
    pub(crate) fn finish(&self, id: &JobRef, run: u32, outcome: Revision) {
        let position = *self.indexed.borrow();
        let mut running = self.running();
        if outcome >= position {
            self.ended().insert(id.clone(), outcome);
        }
        if running.get(id).is_some_and(|job| job.run == run) {
            running.remove(id);
        }
        drop(running);
        self.notify(id);
    }

    /// Aborts a job of which this node is no longer the owner.
    pub(crate) fn abort(&self, id: &JobRef) {
        let job = self.running().remove(id);
        if let Some(job) = job {
            log::warn!("job {} belongs to another node now, or was deleted: it is aborted here", id.id.short());
            job.task.abort();
            self.notify(id);
        }
    }

    /// Returns a receiver of later changes of a job or its owner, as far as this node learns of them.
    pub(crate) fn subscribe(&self, id: &JobRef) -> watch::Receiver<()> {
        let mut followed = self.followed();
        followed.retain(|_, changes| changes.receiver_count() > 0);
        followed.entry(id.clone()).or_default().subscribe()
    }

    /// Notifies the followers of a job that the job or its owner has changed.
    pub(crate) fn notify(&self, id: &JobRef) {
        if let Some(changes) = self.followed().get(id) {
            changes.send_replace(());
        }
    }

    /// Notifies the followers of all jobs.
    pub(crate) fn notify_all(&self) {
        self.followed().values().for_each(|changes| changes.send_replace(()));
    }

    fn running(&self) -> MutexGuard<'_, HashMap<JobRef, RunningJob>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, HashMap<JobRef, Revision>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<JobRef, watch::Sender<()>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the folders in `folder` with names of tenants that `exists` does not know. Returns whether there were any.
pub(crate) fn remove_folders(folder: &Path, exists: impl Fn(&Name) -> bool) -> bool {
    let mut has_any = false;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_str().and_then(|name| name.parse::<Name>().ok());
        if name.is_some_and(|name| !exists(&name)) {
            has_any = true;
            if let Err(e) = std::fs::remove_dir_all(entry.path()) {
                log::warn!("{} of a removed tenant can't be removed: {e}", entry.path().display());
            }
        }
    }
    has_any
}

#[cfg(test)]
mod tests {
    use sandbar_core::TenantId;

    use super::*;

    #[tokio::test]
    async fn followers_learn_of_the_start_and_end_of_a_job() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = LocalJobs::new(folder.path().join("jobs"));
        let tenant: Name = "ada".parse().unwrap();
        let [id, other] = ["20260131-235959-123-4f3a9b", "20260131-235959-123-4f3a9c"]
            .map(|id| JobRef { tenant: tenant.clone(), id: id.parse().unwrap() });
        let [mut changes, others] = [&id, &other].map(|id| jobs.subscribe(id));
        let spawn = || tokio::spawn(std::future::pending::<()>()).abort_handle();
        jobs.start(&id, 2, spawn);
        jobs.start(&id, 2, || unreachable!("the job runs already"));
        assert!(jobs.feed(&id, 2).is_none() && !changes.has_changed().unwrap());
        let recorder = jobs.store(&tenant).create_named(&id.id, "program", &[], TenantId::DEFAULT).unwrap();
        jobs.set_feed(&id, 2, &recorder);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        // The feed outlives the job.
        let feed = jobs.feed(&id, 2).unwrap();
        assert!(jobs.feed(&id, 1).is_none());
        let updates = feed.updates.subscribe();
        recorder.progress().report(sandbar_core::TaskId(1), "rows", 1, None);
        assert!(updates.has_changed().unwrap() && !changes.has_changed().unwrap());
        jobs.finish(&id, 1, Revision(3));
        assert!(jobs.feed(&id, 2).is_some(), "another run has finished");
        jobs.finish(&id, 2, Revision(4));
        // Until the index includes the outcome, the job looks like one that this node has to run.
        assert!(jobs.is_running_or_ended(&id));
        jobs.update_index(Vec::new(), Revision(4));
        assert!(jobs.is_running_or_ended(&id));
        jobs.update_index(Vec::new(), Revision(5));
        assert!(!jobs.is_running_or_ended(&id));
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

    #[test]
    fn folders_of_removed_tenants_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = LocalJobs::new(folder.path().to_owned());
        for name in ["ada", "bob", "Not-a-name"] {
            std::fs::create_dir_all(folder.path().join(name).join("job")).unwrap();
        }
        jobs.remove_others(|name| name.as_str() == "ada");
        let mut left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["Not-a-name", "ada"]);
    }
}
