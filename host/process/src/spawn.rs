//! Starting processes in groups of their own.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// What SIGTSTP does is the whole process's: one thread at a time changes it.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts a process by `spawn`, which puts it into a process group of its own, so that Ctrl-Z meanwhile does no harm.
///
/// The child gets signals of this process's group until it has left that, and acts on them after: it would be stopped in a
/// group that nobody continues, before it runs its program, and this process would wait for that for ever. So both ignore
/// Ctrl-Z for the moment that it takes, and the child from then on. Who types it in that moment has to do so again.
///
/// # Errors
/// Those of `spawn`.
pub fn in_own_group<C>(spawn: impl FnOnce() -> io::Result<C>) -> io::Result<C> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the zeroed rest of the action are no flags and no signals; no handler is called; the kernel fills in the other.
    let is_set = unsafe {
        let mut ignore: libc::sigaction = std::mem::zeroed();
        ignore.sa_sigaction = libc::SIG_IGN;
        libc::sigaction(libc::SIGTSTP, &raw const ignore, before.as_mut_ptr()) == 0
    };
    let spawned = spawn();
    if is_set {
        // SAFETY: the kernel has filled it in, since that went well.
        unsafe { libc::sigaction(libc::SIGTSTP, before.as_ptr(), std::ptr::null_mut()) };
    }
    spawned
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// Whether SIGTSTP is ignored, as a process says of itself.
    fn ignores_stops(status: &str) -> bool {
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
        let ignored = u64::from_str_radix(ignored.trim(), 16).expect("hexadecimal");
        ignored >> (libc::SIGTSTP - 1) & 1 == 1
    }

    #[test]
    fn who_is_started_ignores_ctrl_z_and_who_starts_does_not() {
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
