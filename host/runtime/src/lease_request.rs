//! Requests for leases, as threads send them to the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use sandbar_core::JobId;

use crate::peer::Callback;

/// Identity of a lease in one runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseId(pub(crate) u64);

/// What threads and the engine share for leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseState {
    pub(crate) next: AtomicU64,
    /// Whether other work waits for the processors of leases.
    pub(crate) is_contended: Arc<AtomicBool>,
}

/// A request for a lease.
pub(crate) struct LeaseRequest {
    pub(crate) id: LeaseId,
    pub(crate) job: JobId,
    /// Called once it is granted. It must then be returned.
    pub(crate) granted: Callback<()>,
}
