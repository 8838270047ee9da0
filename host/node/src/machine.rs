//! Properties of this machine that a node depends on, for `host doctor`. Where a node decides by one, the code is shared.

use std::fs;
use std::path::Path;

use rustix::fs::statfs;
use serde::Serialize;

pub use crate::build::{INSTALL_TARGET, Toolchain, toolchain};
pub use crate::memory::{MemoryBound, address_space_bytes, memory_limit};
pub use crate::program::PROGRAM_ADDRESS_BYTES;
pub use sandbar_sandbox::{may_swap, reports_written_pages};
pub use sandbar_store::DiskSpace;
pub use sandbar_worker::{ConfinementSupport, LANDLOCK_ABI, confinement_support};

/// The magic number of file systems in memory.
const TMPFS: u64 = 0x0102_1994;

/// Processors that this process may use: those of its affinity, and no more than its control group's quota.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processors of the machine that are switched on.
pub fn online_cores() -> Option<usize> {
    count_of_ranges(&read("/sys/devices/system/cpu/online")?)
}

/// How many numbers there are in ranges like `0-3,8`.
fn count_of_ranges(text: &str) -> Option<usize> {
    text.split(',').try_fold(0usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// The version of the kernel, as it says: `6.8.0-45-generic`.
pub fn kernel() -> Option<String> {
    read("/proc/sys/kernel/osrelease")
}

/// The kernel's setting of huge pages: `always`, `madvise` (where a process asks for them) or `never`.
pub fn huge_pages() -> Option<String> {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    Some(text.split('[').nth(1)?.split(']').next()?.to_owned())
}

/// The kernel's accounting of reserved memory (`vm.overcommit_memory`): 0 heuristic, 1 none, 2 strict.
pub fn overcommit() -> Option<u32> {
    read("/proc/sys/vm/overcommit_memory")?.parse().ok()
}

/// Sizes of a UDP socket's buffers. Sockets of clusters keep the kernel's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UdpBuffers {
    /// `net.core.rmem_default`.
    pub receive_bytes: u64,
    /// `net.core.wmem_default`.
    pub send_bytes: u64,
}

/// The sizes of this machine's buffers, if the kernel says them.
pub fn udp_buffers() -> Option<UdpBuffers> {
    let bytes = |name: &str| read(&format!("/proc/sys/net/core/{name}"))?.parse().ok();
    Some(UdpBuffers { receive_bytes: bytes("rmem_default")?, send_bytes: bytes("wmem_default")? })
}

/// Whether the files of a folder lie in memory.
pub fn lies_in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|file_system| file_system.f_type as u64 == TMPFS)
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
    fn this_machine_says_something() {
        assert!(kernel().is_some_and(|kernel| kernel.starts_with(|c: char| c.is_ascii_digit())));
        assert!(online_cores().is_none_or(|online| online >= cores()));
    }
}
