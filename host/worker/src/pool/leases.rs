//! Leases: the right to keep one worker of a pool busy. The node's scheduler grants them, so that calls of jobs share
//! the node's processors with all other work.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sandbar_core::{Fault, JobRun, NodeId, TenantId, UsageAmounts};

/// Schedules the calls of jobs.
pub trait CallScheduler: Send + Sync + fmt::Debug {
    /// Starts a job, which ends when the returned value is dropped.
    ///
    /// # Errors
    /// Fails if the scheduler can't start, or the tenant of a job of this node has used up a budget.
    fn start(&self, job: CallJob) -> Result<Box<dyn Leases>, Fault>;
}

/// A job with calls.
#[derive(Debug, Clone)]
pub struct CallJob {
    /// Purpose of its calls, for display.
    pub name: &'static str,
    /// The tenant that submitted it.
    pub tenant: TenantId,
    /// The node that it runs for, if that is another one.
    pub origin: Option<NodeId>,
    /// Its identity in accounts.
    pub run: JobRun,
    /// What it uses.
    pub usage: CallUsage,
}

/// Counts what the calls of a job use. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct CallUsage(Arc<Mutex<UsageAmounts>>);

impl CallUsage {
    /// Adds to what was used.
    pub fn add(&self, change: impl FnOnce(&mut UsageAmounts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns what was used since the last call.
    pub fn take(&self) -> UsageAmounts {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether something else may still add to it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The leases of a job.
pub trait Leases: Send + Sync + fmt::Debug {
    /// Requests a lease. Calls `granted` with it once there is room, and never if the scheduler has shut down.
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
