//! Starts processes in their own process groups.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// Serializes starts: the disposition of SIGTSTP belongs to the whole process.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts a process with `spawn`, which puts it into its own process group, and makes the start safe against Ctrl-Z.
///
/// The child receives signals of this process's group until it has left the group, and acts on them later. A stop
/// signal would stop it in a group that nothing continues, before it runs its program, and this process would wait for
/// it forever. Both therefore ignore SIGTSTP during the start, and the child keeps ignoring it. A Ctrl-Z typed in that
/// moment is lost.
///
/// # Errors
/// Those of `spawn`.
pub fn in_own_group<C>(spawn: impl FnOnce() -> io::Result<C>) -> io::Result<C> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the zeroed fields of the action mean no flags and no signals; no handler is called; the kernel fills in
    // `before`.
    let is_set = unsafe {
        let mut ignore: libc::sigaction = std::mem::zeroed();
        ignore.sa_sigaction = libc::SIG_IGN;
        libc::sigaction(libc::SIGTSTP, &raw const ignore, before.as_mut_ptr()) == 0
    };
    let spawned = spawn();
    if is_set {
        // SAFETY: the kernel filled in `before`, because the first call succeeded.
        unsafe { libc::sigaction(libc::SIGTSTP, before.as_ptr(), std::ptr::null_mut()) };
    }
    spawned
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// Returns whether a process ignores SIGTSTP, from its `/proc` status.
    fn ignores_stops(status: &str) -> bool {
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
        let ignored = u64::from_str_radix(ignored.trim(), 16).expect("hexadecimal");
        ignored >> (libc::SIGTSTP - 1) & 1 == 1
    }

    #[test]
    fn children_ignore_ctrl_z_and_their_parent_does_not() {
        let own = || std::fs::read_to_string("/proc/self/status").expect("this process");
        let before = ignores_stops(&own());
        let mut command = Command::new("cat");
        command.arg("/proc/self/status").process_group(0);
        let output = in_own_group(|| command.output()).expect("a process");
        assert!(ignores_stops(&String::from_utf8_lossy(&output.stdout)));
        assert_eq!(ignores_stops(&own()), before);
        in_own_group(|| Err::<(), _>(io::ErrorKind::NotFound.into())).expect_err("it is passed on");
        assert_eq!(ignores_stops(&own()), before);
    }
}
