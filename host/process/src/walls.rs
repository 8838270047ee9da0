//! The kernel's support for the walls of [`crate::confine`].

use serde::Serialize;

/// The version of Landlock's interface that has all rights which [`crate::confine`] takes away (Linux 6.10).
pub const LANDLOCK_ABI: u32 = 5;

/// The kernel's means to confine a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Walls {
    /// Whether a process can be killed for a system call that it may not make. Without that no worker starts.
    pub seccomp: bool,
    /// The version of Landlock's interface, which bounds the files that a process may open; none before Linux 5.13, and
    /// where it is switched off.
    pub landlock_abi: Option<u32>,
}

/// Asks the kernel. Changes nothing of this process.
pub fn walls() -> Walls {
    let kill = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads the four bytes of `kill`, and writes nothing.
    let killed = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const kill) };
    let (no_rules, version) = (std::ptr::null::<u8>(), 1u32);
    // SAFETY: with this flag the kernel takes no rules, makes nothing, and gives a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_rules, 0usize, version) };
    Walls { seccomp: killed == 0, landlock_abi: u32::try_from(abi).ok().filter(|abi| *abi > 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_it_has() {
        // Those of `confine` kill processes here.
        assert!(walls().seccomp);
        let names = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
        if names.split(',').any(|name| name.trim() == "landlock") {
            assert!(walls().landlock_abi.is_some(), "{names}");
        }
    }
}
