//! Options of the job runner.

use std::path::PathBuf;
use std::sync::Arc;

use sandbar_worker::GpuMachine;

use crate::units::RemoteTrainers;

/// Options of a [`JobRunner`](crate::JobRunner).
#[derive(Debug, Clone)]
pub struct JobRunnerOptions {
    /// Folder for rows that exceed the memory.
    pub spill: PathBuf,
    /// Memory for grouped rows before they spill, in bytes.
    pub memory_bytes_max: u64,
    /// GPUs that jobs may use.
    pub gpus: Option<Arc<GpuMachine>>,
    /// Other nodes that train units.
    pub remote: Option<Arc<dyn RemoteTrainers>>,
}
