//! Nodes whose network is slow, loses, damages, or is cut. Where there are no network namespaces, nodes are on loopback and
//! nothing befalls what they send; what is to come of it holds there as well.

mod locality;
mod nodes;
mod partition;
mod slow;
mod tenants;
mod transfer;
mod ways;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by each test: they are about time, and there are few processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
