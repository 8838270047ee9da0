//! Properties of this machine for `host doctor`, and the GPUs that jobs may use.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Code, Fault};
use sandbar_worker::{GpuLimits, GpuMachine};

pub use sandbar_functions::{INSTALL_TARGET, Toolchain, toolchain};
pub use sandbar_machine::*;
pub use sandbar_runtime::PROGRAM_ADDRESS_BYTES;
pub use sandbar_sandbox::{may_swap, reports_written_pages};
pub use sandbar_store::DiskSpace;
pub use sandbar_worker::{
    ConfinementSupport, LANDLOCK_ABI, MissingWall, OtherCalls, ProcessKind, Wall, Walls, confinement_support,
};

/// Returns the GPUs of this machine, or `None` if it has no device file of a GPU. Creates nothing.
///
/// # Errors
/// Fails if `host-gpu` is missing, or the cache folder belongs to another user.
pub fn gpus(options: GpuOptions) -> Result<Option<Arc<GpuMachine>>, Fault> {
    let GpuOptions { is_software, memory_bytes_max, time_max } = options;
    if !is_software && !DEVICES.iter().any(|device| Path::new(device).exists()) {
        return Ok(None);
    }
    let program = worker()?.with_file_name("host-gpu");
    if !program.is_file() {
        let message = format!("{} is missing: install `host-gpu` beside this program", program.display());
        return Err(Fault::new(Code::Host, message));
    }
    let limits = GpuLimits { program, is_software, memory_bytes_max, time_max };
    Ok(Some(GpuMachine::new(limits, &find_cache_folder()?)))
}

/// Returns which walls stand around each kind of processes that handle what tenants have made.
///
/// # Errors
/// Fails if `host-worker` is missing, or can't report.
pub async fn walls() -> Result<Vec<Walls>, Fault> {
    let program = worker()?;
    let failed = |e| Fault::new(Code::Host, format!("{}: can't find out which walls stand: {e}", program.display()));
    sandbar_worker::query_walls(&program).await.map_err(failed)
}

/// Device files of GPUs. Without any of them, drivers find no GPU.
const DEVICES: &[&str] = &["/dev/dri", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"];

/// GPU use of a node.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// Whether software drivers count as GPUs; no other drivers do then.
    pub is_software: bool,
    /// Maximum bytes of a job's tensors on one GPU.
    pub memory_bytes_max: u64,
    /// Maximum duration of one piece of work.
    pub time_max: Duration,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions { is_software: false, memory_bytes_max: u64::MAX, time_max: Duration::from_secs(10) }
    }
}
