//! Job records.

use std::collections::BTreeMap;

use sandbar_core::{JobId, TenantId};

use crate::event::JobLimits;
use crate::records::classes::JobClasses;
use crate::records::id_table::IdTable;
use crate::records::keys::{JobKey, ObjectKey, TaskKey, WorkerKey};
use crate::records::lineage::JobLineage;
use crate::records::slab::{Slab, index_records};

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) limits: JobLimits,
    /// The root task, while its record exists.
    pub(crate) first: Option<TaskKey>,
    /// Whether the root task was submitted.
    pub(crate) has_started: bool,
    /// The most recent task without a parent that still has a record: the root task, proxy tasks, and creators of
    /// detached actors that other jobs created.
    pub(crate) child: Option<TaskKey>,
    /// The worker of the root task.
    pub(crate) driver: Option<WorkerKey>,
    /// Number of unfinished tasks.
    pub(crate) tasks: u64,
    /// Bytes of the calls of unfinished tasks, without those of actor creators.
    pub(crate) call_bytes: u64,
    /// Number of task records.
    pub(crate) records: u64,
    pub(crate) objects: u64,
    /// Head of the linked list of the job's objects.
    pub(crate) objects_first: Option<ObjectKey>,
    pub(crate) classes: JobClasses,
    pub(crate) lineage: JobLineage,
}

/// Jobs by key and by id.
#[derive(Debug)]
pub(crate) struct Jobs {
    records: Slab<JobKey, Job>,
    ids: IdTable<JobId, JobKey>,
    /// Jobs whose root task is ready and whose driver worker exists.
    starting: BTreeMap<JobId, JobKey>,
}

index_records!([] Jobs, JobKey => Job);

impl Job {
    pub(crate) fn new(id: JobId, tenant: TenantId, limits: JobLimits) -> Job {
        Job {
            id,
            tenant,
            limits,
            first: None,
            has_started: false,
            child: None,
            driver: None,
            tasks: 0,
            call_bytes: 0,
            records: 0,
            objects: 0,
            objects_first: None,
            classes: JobClasses::default(),
            lineage: JobLineage::default(),
        }
    }
}

impl Jobs {
    pub(crate) fn new() -> Jobs {
        Jobs { records: Slab::new(), ids: IdTable::default(), starting: BTreeMap::new() }
    }

    #[inline]
    pub(crate) fn find(&self, id: JobId) -> Option<JobKey> {
        self.ids.get(&id).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.records.iter().map(|(_, job)| job)
    }

    pub(crate) fn insert(&mut self, job: Job) {
        let id = job.id;
        let at = self.records.insert(job);
        self.ids.insert(id, at);
    }

    /// Removes the id of a job that ends. Its record stays until [`Jobs::remove`].
    pub(crate) fn remove_id(&mut self, id: JobId) -> Option<JobKey> {
        self.starting.remove(&id);
        self.ids.remove(&id)
    }

    pub(crate) fn remove(&mut self, at: JobKey) -> Option<Job> {
        self.records.remove(at)
    }

    /// Whether no job is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.len() == 0 && self.starting.is_empty()
    }

    /// Records that the root task of a job waits for room in its driver worker.
    pub(crate) fn insert_starting(&mut self, at: JobKey) {
        self.starting.insert(self.records[at].id, at);
    }

    /// Records that the root task of a job does not wait for room any more.
    pub(crate) fn remove_starting(&mut self, at: JobKey) {
        self.starting.remove(&self.records[at].id);
    }

    /// Whether a root task waits for room in its driver worker.
    pub(crate) fn has_starting(&self) -> bool {
        !self.starting.is_empty()
    }

    /// Returns the jobs whose root tasks wait for room, in id order.
    pub(crate) fn starting(&self) -> Vec<JobKey> {
        self.starting.values().copied().collect()
    }
}
