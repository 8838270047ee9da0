//! Leases of the node's workers for calls of jobs that are not programs: see [`sandbar_worker::Leases`].

use std::sync::atomic::Ordering::Relaxed;

use sandbar_core::{Fault, JobId};
use sandbar_worker::{CallJob, CallScheduler, Lease, Leases};

use crate::lease_request::{LeaseId, LeaseRequest};
use crate::thread::{Request, RuntimeHandle};

/// The leases of a job. The job ends when this is dropped.
#[derive(Debug)]
struct JobLeases {
    job: JobId,
    handle: RuntimeHandle,
}

impl Leases for JobLeases {
    fn request(&self, granted: Box<dyn FnOnce(Lease) + Send>) {
        let id = LeaseId(self.handle.leases.next.fetch_add(1, Relaxed));
        let handle = self.handle.clone();
        let granted = Box::new(move |()| granted(Lease::new(ReturnLease { id, handle })));
        self.handle.send(Request::Lease(LeaseRequest { id, job: self.job, granted }));
    }

    fn is_contended(&self) -> bool {
        self.handle.leases.is_contended.load(Relaxed)
    }
}

impl Drop for JobLeases {
    fn drop(&mut self) {
        self.handle.send(Request::EndCallJob(self.job));
    }
}

/// Returns a lease when it is dropped.
struct ReturnLease {
    id: LeaseId,
    handle: RuntimeHandle,
}

impl Drop for ReturnLease {
    fn drop(&mut self) {
        self.handle.send(Request::ReturnLease(self.id));
    }
}

impl CallScheduler for RuntimeHandle {
    fn start(&self, job: CallJob) -> Result<Box<dyn Leases>, Fault> {
        let id = self.next_job();
        self.send(Request::StartCallJob(id, job));
        Ok(Box::new(JobLeases { job: id, handle: self.clone() }))
    }
}
