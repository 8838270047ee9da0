//! Jobs of the cluster that this node runs or ran.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbar_jobs::{JobName, JobStore};
use tokio::task::AbortHandle;

/// Jobs of the cluster that this node runs or ran.
pub(crate) struct LocalJobs {
    /// Records and logs.
    pub(crate) store: JobStore,
    running: Mutex<HashMap<JobName, AbortHandle>>,
}

impl LocalJobs {
    pub(crate) fn new(store: JobStore) -> LocalJobs {
        LocalJobs { store, running: Mutex::default() }
    }

    /// Jobs that run on this node.
    pub(crate) fn running(&self) -> MutexGuard<'_, HashMap<JobName, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts a job of which this node is no longer the owner.
    pub(crate) fn abort(&self, id: &JobName) {
        if let Some(task) = self.running().remove(id) {
            log::warn!("job {} now belongs to another node: it is aborted here", id.short());
            task.abort();
        }
    }
}
