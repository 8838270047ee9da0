//! Leases of this node's processors, for calls of jobs that are not programs. To the scheduler, a lease is a task without
//! a parent, and the engine itself is the worker that has all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustc_hash::FxHashMap;
use sandbar_core::{Attempt, JobId, NodeId, TaskId, WorkerId};
use sandbar_sched::{Event, Outcome, RESOURCE_UNIT, ResourceSet, Submission, SubmissionKind, WorkerKind};
use sandbar_worker::CallJob;

use super::context::Context;
use super::values::StoredValue;
use crate::lease_request::{LeaseId, LeaseRequest};
use crate::peer::Callback;

/// The leases, and the jobs that may request them.
pub(super) struct Leases {
    /// The worker that has them.
    worker: WorkerId,
    jobs: BTreeMap<JobId, CallJob>,
    ids: BTreeMap<LeaseId, TaskId>,
    all: FxHashMap<TaskId, LeaseOfJob>,
    /// Whether other work waits for the processors of leases.
    is_contended: Arc<AtomicBool>,
}

struct LeaseOfJob {
    job: JobId,
    /// Called when it is granted; then `None`.
    granted: Option<Callback<()>>,
}

impl Leases {
    pub(super) fn new(cx: &mut Context, is_contended: Arc<AtomicBool>) -> Leases {
        let (worker, node) = (cx.ids.own_worker(), cx.node());
        cx.step(Event::WorkerReady { worker, node, kind: WorkerKind::Leases });
        let (jobs, ids, all) = Default::default();
        Leases { worker, jobs, ids, all, is_contended }
    }

    /// Returns whether no job may request leases.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns whether this worker has the leases.
    pub(super) fn is_worker(&self, worker: WorkerId) -> bool {
        self.worker == worker
    }

    /// Starts a job.
    pub(super) fn start_job(&mut self, cx: &mut Context, id: JobId, job: CallJob) {
        log::debug!("job {id} of tenant {} starts: {}", job.tenant, job.name);
        let timed_since = job.origin.is_none().then_some(cx.time.nanos);
        cx.start_job(id, job.tenant, job.run.clone(), timed_since);
        cx.usage.count_calls(id, job.usage.clone());
        self.jobs.insert(id, job);
    }

    /// Ends a job. Leases that it has are released when they are returned.
    pub(super) fn end_job(&mut self, cx: &mut Context, id: JobId) {
        self.jobs.remove(&id);
        let (all, ids) = (&mut self.all, &mut self.ids);
        all.retain(|_, lease| lease.job != id || lease.granted.is_none());
        ids.retain(|_, task| all.contains_key(task));
        cx.step(Event::JobEnded { job: id });
    }

    /// Requests a lease: a processor of this node, or all that it has if that is less.
    pub(super) fn request(&mut self, cx: &mut Context, LeaseRequest { id, job, granted }: LeaseRequest) {
        let (Some(owner), Some(task)) = (self.jobs.get(&job), cx.ids.take(1).map(TaskId)) else { return };
        self.ids.insert(id, task);
        self.all.insert(task, LeaseOfJob { job, granted: Some(granted) });
        let cpus = cx.options.resources.cpus.min(RESOURCE_UNIT);
        let lease = Submission {
            demand: ResourceSet { cpus, ..ResourceSet::default() },
            kind: SubmissionKind::Lease,
            ..Submission::bare(task, job, owner.name.into(), ())
        };
        cx.step(Event::LeaseRequested { lease });
    }

    /// The scheduler has granted a lease.
    pub(super) fn granted(&mut self, task: TaskId) {
        if let Some(granted) = self.all.get_mut(&task).and_then(|lease| lease.granted.take()) {
            granted(());
        }
    }

    /// A lease is returned.
    pub(super) fn returned(&mut self, cx: &mut Context, id: LeaseId) {
        let Some(task) = self.ids.remove(&id) else { return };
        self.all.remove(&task);
        let outcome = Outcome::Succeeded(vec![(StoredValue::Inline(Box::default()), Vec::new())]);
        let (attempt, worker) = (Attempt(0), self.worker);
        cx.step(Event::AttemptFinished { task, attempt, worker, outcome, nanos: 0 });
    }

    /// Returns the resources of granted leases of jobs of other nodes, by node.
    pub(super) fn usage_by_origin(&self, cx: &Context) -> Vec<(NodeId, ResourceSet)> {
        let granted = self.all.iter().filter(|(_, lease)| lease.granted.is_none());
        let usage = granted.filter_map(|(task, lease)| {
            let origin = self.jobs.get(&lease.job)?.origin?;
            Some((origin, cx.scheduler.task(*task)?.demand.clone()))
        });
        usage.collect()
    }

    /// Publishes to the holders of leases whether other work waits.
    pub(super) fn report_contention(&self, cx: &Context) {
        if !self.jobs.is_empty() {
            self.is_contended.store(cx.scheduler.has_queued(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use sandbar_core::TenantId;

    use super::super::simulation::idle_engine;
    use super::*;
    use crate::engine::Engine;

    fn request(engine: &mut Engine, id: u64, job: u32, granted: &Arc<Mutex<Vec<u64>>>) {
        let granted = granted.clone();
        let granted = Box::new(move |()| granted.lock().unwrap().push(id));
        engine.request_lease(LeaseRequest { id: LeaseId(id), job: JobId(job), granted });
    }

    #[test]
    fn leases_are_granted_in_turn_as_long_as_there_are_processors() {
        let mut engine = idle_engine(4);
        let job = |tenant, origin| {
            let (run, usage) = Default::default();
            CallJob { name: "train", tenant: TenantId(tenant), origin, run, usage }
        };
        engine.start_call_job(JobId(11), job(7, None)).unwrap();
        engine.start_call_job(JobId(12), job(8, Some(NodeId(5)))).unwrap();
        let tenants: Vec<_> = engine.cx.scheduler.jobs().collect();
        assert!(tenants.contains(&(JobId(11), TenantId(7))) && tenants.contains(&(JobId(12), TenantId(8))));
        let granted = Arc::new(Mutex::new(Vec::new()));
        let is_contended = engine.leases.is_contended.clone();
        (0..3).for_each(|id| request(&mut engine, id, 11, &granted));
        assert!(!is_contended.load(Relaxed));
        (3..6).for_each(|id| request(&mut engine, id, 12, &granted));
        assert_eq!(*granted.lock().unwrap(), [0, 1, 2, 3]);
        assert!(is_contended.load(Relaxed));
        let of_other = engine.leases.usage_by_origin(&engine.cx);
        assert_eq!(of_other, [(NodeId(5), ResourceSet { cpus: RESOURCE_UNIT, ..ResourceSet::default() })]);
        engine.return_lease(LeaseId(1));
        // An unknown one, and one that was returned.
        [77, 1].into_iter().for_each(|id| engine.return_lease(LeaseId(id)));
        assert_eq!(*granted.lock().unwrap(), [0, 1, 2, 3, 4]);
        // Drops the job's requests with it. Held leases are released on their return.
        engine.end_call_job(JobId(12));
        assert!(!is_contended.load(Relaxed));
        (6..8).for_each(|id| request(&mut engine, id, 11, &granted));
        assert_eq!(*granted.lock().unwrap(), [0, 1, 2, 3, 4]);
        [3, 4].into_iter().for_each(|id| engine.return_lease(LeaseId(id)));
        assert_eq!(*granted.lock().unwrap(), [0, 1, 2, 3, 4, 6, 7]);
        [0, 2, 6, 7].into_iter().for_each(|id| engine.return_lease(LeaseId(id)));
        engine.end_call_job(JobId(11));
        assert!(engine.leases.is_empty() && engine.leases.all.is_empty() && engine.leases.ids.is_empty());
        assert!(engine.cx.scheduler.is_empty());
    }
}
