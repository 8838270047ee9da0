//! Processors, kernel settings and limits of this process.

use std::fs;
use std::path::Path;

use rustix::fs::statfs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

/// `statfs` type of in-memory file systems.
const TMPFS: u64 = 0x0102_1994;

/// Returns the number of processors that this process may use, limited by its affinity and its control group's quota.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the number of online processors of the machine.
pub fn online_cores() -> Option<usize> {
    count_of_ranges(&read("/sys/devices/system/cpu/online")?)
}

/// Counts the numbers in ranges like `0-3,8`.
fn count_of_ranges(text: &str) -> Option<usize> {
    text.split(',').try_fold(0usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Returns the kernel's release, e.g. `6.8.0-45-generic`.
pub fn kernel_version() -> Option<String> {
    read("/proc/sys/kernel/osrelease")
}

/// Returns the kernel's setting of transparent huge pages: `always`, `madvise` (on request) or `never`.
pub fn huge_pages() -> Option<String> {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    Some(text.split('[').nth(1)?.split(']').next()?.to_owned())
}

/// Returns `vm.overcommit_memory`: 0 heuristic, 1 always, 2 strict.
pub fn overcommit() -> Option<u32> {
    read("/proc/sys/vm/overcommit_memory")?.parse().ok()
}

/// Default buffer sizes of UDP sockets, which the sockets of clusters keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UdpBuffers {
    /// `net.core.rmem_default`.
    pub receive_bytes: u64,
    /// `net.core.wmem_default`.
    pub send_bytes: u64,
}

/// Returns the buffer sizes, if the kernel reports them.
pub fn udp_buffers() -> Option<UdpBuffers> {
    let bytes = |name: &str| read(&format!("/proc/sys/net/core/{name}"))?.parse().ok();
    Some(UdpBuffers { receive_bytes: bytes("rmem_default")?, send_bytes: bytes("wmem_default")? })
}

/// Returns whether a folder is on an in-memory file system.
pub fn is_in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|file_system| file_system.f_type as u64 == TMPFS)
}

/// Raises this process's limit of open files to its hard limit: each worker's socket, each open file and each large object
/// takes one. Returns the limit, or `None` if there is none.
pub fn raise_file_limit() -> Option<u64> {
    let files = getrlimit(Resource::Nofile);
    // A process may always set its soft limit to its hard limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    getrlimit(Resource::Nofile).current
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted() {
        for (text, expected) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-3,8\n", Some(5)),
            ("0,2,4-5", Some(4)),
            ("", None),
            ("3-1", None),
            ("x", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(count_of_ranges(text), expected, "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_a_kernel_and_processors() {
        assert!(kernel_version().is_some_and(|kernel| kernel.starts_with(|c: char| c.is_ascii_digit())));
        assert!(online_cores().is_none_or(|online| online >= cores()));
    }
}
