//! Folders and memory of this machine.

use std::path::PathBuf;

/// Share of the machine's memory that grouped rows may take before they spill.
const MEMORY_SHARE: f64 = 0.4;
const MEMORY_FALLBACK_BYTES: u64 = 1 << 30;

/// The program of workers and of the compiler: it is installed beside this one.
pub(crate) fn worker() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| format!("where this program is can't be found out: {e}"))?;
    let worker = this.with_file_name("host-worker");
    if worker.is_file() {
        Ok(worker)
    } else {
        Err(format!("{} is missing: install `host-worker` beside `host`", worker.display()))
    }
}

/// The user's folder for what can be made again.
pub(crate) fn cache_folder() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = from("XDG_CACHE_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir);
    base.join("sandbar")
}

/// Bytes that grouped rows may take: a share of what this process may use (its
/// cgroup's limit, or the machine's memory).
pub(crate) fn memory_for_rows() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let cgroup = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    let machine = read("/proc/meminfo").and_then(|text| {
        let line =
            text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?.trim().trim_end_matches(" kB").parse::<u64>().ok();
        line.map(|kib| kib * 1024)
    });
    let all = cgroup.into_iter().chain(machine).min();
    all.map_or(MEMORY_FALLBACK_BYTES, |bytes| (bytes as f64 * MEMORY_SHARE) as u64)
}
