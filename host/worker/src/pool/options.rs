//! Options of a pool.

use std::path::PathBuf;
use std::sync::Arc;

use sandbar_core::Limits;

use crate::GpuProcesses;

/// Options of a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Number of worker processes.
    pub workers: usize,
    /// Upper bound of the limits of a call.
    pub limits: Limits,
    /// Path of the program `host-worker`, which runs as a worker when it gets [`crate::WORKER_ARGUMENT`].
    pub program: PathBuf,
    /// GPUs for functions that use dense algebra.
    pub gpus: Option<Arc<GpuProcesses>>,
    /// Whether workers start with the first call instead of with the pool.
    pub on_demand: bool,
}
