//! Nodes whose network is slow, lossy, corrupting or partitioned. Without network namespaces the nodes use loopback,
//! which has no faults; the expected results are the same.

mod latency;
mod locality;
mod nodes;
mod partition;
mod slow;
mod tenants;
mod transfer;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serializes the tests: they measure time, and the machine has few processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
