//! A GPU that several guests share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Cancellation;
use crate::remote::GpuClient;

/// A GPU that several guests share.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// Connection to the GPU process.
    pub remote: Arc<Mutex<GpuClient>>,
    /// Number of the guest that uses it.
    pub(crate) user: u32,
    /// Ends waits of this guest.
    pub(crate) cancellation: Cancellation,
}

impl Gpu {
    /// Wraps a connection without users.
    pub fn new(remote: GpuClient) -> Gpu {
        Gpu { remote: Arc::new(Mutex::new(remote)), user: 0, cancellation: Cancellation::NEVER }
    }

    /// Locks the connection for requests of this guest.
    pub(crate) fn lock(&self) -> MutexGuard<'_, GpuClient> {
        let mut remote = lock(&self.remote);
        remote.set_user(self.user);
        remote.set_cancellation(self.cancellation);
        remote
    }

    /// Whether the connection is lost.
    pub fn is_lost(&self) -> bool {
        let mut remote = lock(&self.remote);
        remote.poll_messages();
        remote.lost().is_some()
    }
}

pub(crate) fn lock(remote: &Mutex<GpuClient>) -> MutexGuard<'_, GpuClient> {
    remote.lock().unwrap_or_else(PoisonError::into_inner)
}
