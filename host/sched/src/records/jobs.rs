//! Job records.

use std::collections::BTreeSet;
use std::ops::Bound;

use sandbar_core::JobId;

use crate::event::JobLimits;
use crate::records::classes::JobClasses;
use crate::records::id_table::IdTable;
use crate::records::keys::{JobKey, ObjectKey, TaskKey, TenantKey, WorkerKey};
use crate::records::ledger::Usage;
use crate::records::lineage::JobLineage;
use crate::records::slab::{Slab, index_records};

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantKey,
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
    pub(crate) usage: Usage,
    /// Number of task records.
    pub(crate) records: u64,
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
    starting: BTreeSet<(TenantKey, JobId)>,
}

index_records!([] Jobs, JobKey => Job);

impl Job {
    pub(crate) fn new(id: JobId, tenant: TenantKey, limits: JobLimits) -> Job {
        Job {
            id,
            tenant,
            limits,
            first: None,
            has_started: false,
            child: None,
            driver: None,
            usage: Usage::default(),
            records: 0,
            objects_first: None,
            classes: JobClasses::default(),
            lineage: JobLineage::default(),
        }
    }
}

impl Jobs {
    pub(crate) fn new() -> Jobs {
        Jobs { records: Slab::new(), ids: IdTable::default(), starting: BTreeSet::new() }
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
        let at = self.ids.remove(&id)?;
        self.remove_starting(at);
        Some(at)
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
        let job = &self.records[at];
        self.starting.insert((job.tenant, job.id));
    }

    /// Records that the root task of a job does not wait for room any more.
    pub(crate) fn remove_starting(&mut self, at: JobKey) {
        let job = &self.records[at];
        self.starting.remove(&(job.tenant, job.id));
    }

    /// Whether a root task waits for room in its driver worker.
    pub(crate) fn has_starting(&self) -> bool {
        !self.starting.is_empty()
    }

    /// Returns the tenants of jobs whose root tasks wait for room.
    pub(crate) fn starting_tenants(&self) -> impl Iterator<Item = TenantKey> {
        self.starting.iter().map(|(tenant, _)| *tenant)
    }

    /// Returns the tenant's next job, in id order, whose root task waits for room.
    pub(crate) fn next_starting(&self, tenant: TenantKey, after: Option<JobId>) -> Option<(JobId, JobKey)> {
        let from = after.map_or(Bound::Included((tenant, JobId(0))), |after| Bound::Excluded((tenant, after)));
        let (of, id) = self.starting.range((from, Bound::Unbounded)).next()?;
        Some((*id, self.find(*id).filter(|_| *of == tenant)?))
    }
}
