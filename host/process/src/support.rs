//! The kernel's support for the restrictions of [`crate::confine`].

use serde::Serialize;

/// Version of Landlock's interface that has all rights which [`crate::confine`] removes (Linux 6.10).
pub const LANDLOCK_ABI: u32 = 5;

/// The kernel's support for confining a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ConfinementSupport {
    /// Whether the kernel can kill a process for a forbidden system call. Workers start only if it can.
    pub seccomp: bool,
    /// Version of Landlock's interface, which restricts the files that a process may open; `None` before Linux 5.13 and
    /// where it is disabled.
    pub landlock_abi: Option<u32>,
}

/// Queries the kernel. Does not change this process.
pub fn confinement_support() -> ConfinementSupport {
    let kill = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads the four bytes of `kill`, and writes nothing.
    let killed = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const kill) };
    let (no_rules, version) = (std::ptr::null::<u8>(), 1u32);
    // SAFETY: with this flag the kernel takes no rules, creates nothing, and returns a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_rules, 0usize, version) };
    ConfinementSupport { seccomp: killed == 0, landlock_abi: u32::try_from(abi).ok().filter(|abi| *abi > 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_features_are_detected() {
        // The tests of `confine` rely on seccomp.
        assert!(confinement_support().seccomp);
        let names = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
        if names.split(',').any(|name| name.trim() == "landlock") {
            assert!(confinement_support().landlock_abi.is_some(), "{names}");
        }
    }
}
