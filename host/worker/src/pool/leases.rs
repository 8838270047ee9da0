//! Leases: the right to keep one worker of a pool busy. Whoever schedules a node grants them, so that the calls of jobs
//! share the node's processors with all other work.

use std::fmt;

use sandbar_core::{Fault, NodeId, TenantId};

/// Schedules the calls of jobs.
pub trait CallScheduler: Send + Sync + fmt::Debug {
    /// Starts a job, which ends when the returned value is dropped.
    ///
    /// # Errors
    /// Fails if the scheduler can't start.
    fn start(&self, job: CallJob) -> Result<Box<dyn Leases>, Fault>;
}

/// A job with calls.
#[derive(Debug, Clone)]
pub struct CallJob {
    /// What its calls do, for people.
    pub name: &'static str,
    /// The tenant that submitted it.
    pub tenant: TenantId,
    /// The node that it is of, if it is of another.
    pub origin: Option<NodeId>,
}

/// The leases of a job.
pub trait Leases: Send + Sync + fmt::Debug {
    /// Requests a lease. `granted` gets it once there is room; never if the scheduler has shut down.
    fn request(&self, granted: Box<dyn FnOnce(Lease) + Send>);

    /// Returns whether other work waits for room, so that leases should be returned soon.
    fn is_contended(&self) -> bool;
}

/// A lease. Dropping it returns it.
pub struct Lease(#[allow(dead_code, reason = "it is kept for its drop")] Box<dyn Send>);

impl Lease {
    /// Creates a lease that `guard` returns when it is dropped.
    pub fn new(guard: impl Send + 'static) -> Lease {
        Lease(Box::new(guard))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}
