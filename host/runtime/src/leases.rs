//! Leases of the node's workers for calls of jobs that are not programs: see [`sandbar_worker::Leases`].

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::sync_channel;

use sandbar_core::{Code, Fault, JobId};
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
        let (sender, reply) = sync_channel(1);
        self.send(Request::StartCallJob(id, job, sender));
        // The thread of the runtime waits for nothing.
        let shut_down = || Fault::new(Code::Host, "the node shuts down");
        reply.recv().map_err(|_| shut_down())??;
        Ok(Box::new(JobLeases { job: id, handle: self.clone() }))
    }
}
