//! The second wall: what a worker may ask of the kernel, once it has set itself
//! up. A guest that breaks out of WebAssembly finds a process that can compute
//! and answer, and is killed for anything else.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// System calls of a worker: memory, its socket, time, signals of its own traps.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_poll,
    libc::SYS_pread64,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
];

/// `PAGEMAP_SCAN` of linux/fs.h: which pages of this process were written.
const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// Ends with the node; writes no files and no core; opens few files.
pub(crate) fn limit_resources() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let at_most = |n| Rlimit { current: Some(n), maximum: Some(n) };
    setrlimit(Resource::Core, at_most(0))?;
    setrlimit(Resource::Nofile, at_most(256))?;
    Ok(())
}

/// From here on any other system call kills this process.
pub(crate) fn seccomp() -> io::Result<()> {
    let condition =
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, PAGEMAP_SCAN).map_err(io::Error::other)?;
    let scan_only = SeccompRule::new(vec![condition]).map_err(io::Error::other)?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_ioctl, vec![scan_only]);
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter =
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}
