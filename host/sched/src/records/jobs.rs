//! Job records.

use sandbar_core::{JobId, TenantId};

use crate::event::JobLimits;
use crate::records::classes::JobClasses;
use crate::records::keys::{ObjectKey, TaskKey, WorkerKey};
use crate::records::lineage::JobLineage;

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
