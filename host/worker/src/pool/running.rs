//! The running workers of a pool.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbar_core::TenantId;

/// The running workers, and the peak memory of ended ones.
#[derive(Debug, Default)]
pub(super) struct RunningWorkers {
    all: Mutex<HashMap<usize, RunningWorker>>,
    ended_bytes_max: AtomicU64,
}

#[derive(Debug)]
struct RunningWorker {
    process: u32,
    tenant: TenantId,
}

impl RunningWorkers {
    pub(super) fn started(&self, worker: usize, process: u32, tenant: TenantId) {
        self.lock().insert(worker, RunningWorker { process, tenant });
    }

    /// Records the peak memory of a worker. Must be called before its process is reaped.
    pub(super) fn ending(&self, worker: usize) {
        let ended = self.lock().remove(&worker);
        self.ended_bytes_max.fetch_max(ended.map_or(0, |ended| peak_memory_bytes(ended.process)), Ordering::Relaxed);
    }

    /// Returns the sum of the peak memory in bytes of the running workers, and the largest of an ended one.
    pub(super) fn peak_memory_bytes(&self) -> u64 {
        let alive: u64 = self.lock().values().map(|worker| peak_memory_bytes(worker.process)).sum();
        alive + self.ended_bytes_max.load(Ordering::Relaxed)
    }

    /// Returns the tenant of each worker that serves one now.
    pub(super) fn tenants(&self) -> Vec<TenantId> {
        self.lock().values().map(|worker| worker.tenant).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, RunningWorker>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the peak resident memory of a process in bytes; zero when it has ended.
pub fn peak_memory_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
