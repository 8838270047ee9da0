//! The second wall: what a worker or a compiling process may ask of the kernel, once
//! it has set itself up. A guest that breaks out of WebAssembly, or a component that
//! takes over its compiler, finds a process that can compute and answer, and is
//! killed for anything else.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;

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
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getcpu,
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
    libc::SYS_write,
];

/// `PAGEMAP_SCAN` of linux/fs.h: which pages of this process were written.
const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// System calls of a worker with some values of one argument: the number of the argument, and the values.
/// The allocator names memory that it maps; what large values are written to comes in huge pages. A descriptor's owner would be signalled when there is something to read.
const ALLOWED_WITH: &[(libc::c_long, u8, &[u64])] = &[
    (
        libc::SYS_fcntl,
        1,
        &[
            libc::F_DUPFD_CLOEXEC as u64,
            libc::F_GETFD as u64,
            libc::F_SETFD as u64,
            libc::F_GETFL as u64,
            libc::F_ADD_SEALS as u64,
            libc::F_GET_SEALS as u64,
        ],
    ),
    (libc::SYS_getrusage, 0, &[libc::RUSAGE_THREAD as u64]),
    (libc::SYS_ioctl, 1, &[PAGEMAP_SCAN]),
    (libc::SYS_prctl, 0, &[libc::PR_SET_VMA as u64, libc::PR_GET_THP_DISABLE as u64, libc::PR_SET_THP_DISABLE as u64]),
];

/// Files that a process opens which is handed one for a call at hand, at most.
pub(crate) const FEW_FILES: u64 = 256;

/// Ends with the node; writes no files and no core; opens no more files than so many.
pub(crate) fn limit_resources(files: u64) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let at_most = |n| Rlimit { current: Some(n), maximum: Some(n) };
    setrlimit(Resource::Core, at_most(0))?;
    setrlimit(Resource::Nofile, at_most(files))?;
    Ok(())
}

/// From here on what is written to standard error goes nowhere: it may be a terminal, or somebody's file.
pub(crate) fn silence() -> io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    // SAFETY: standard error is nobody's own descriptor; who writes to it by its number writes to the other file.
    match unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// From here on any other system call, of any of its threads, kills this process.
pub(crate) fn seccomp() -> io::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // A thread may signal those of its own process, as it does to abort.
    let own = [u64::from(std::process::id())];
    for (call, argument, values) in ALLOWED_WITH.iter().copied().chain([(libc::SYS_tgkill, 0, &own[..])]) {
        let rule = |value: &u64| {
            let equal = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)?;
            SeccompRule::new(vec![equal])
        };
        rules.insert(call, values.iter().map(rule).collect::<Result<_, _>>().map_err(io::Error::other)?);
    }
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter =
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set in a process that confines itself: which of [`ACTIONS`] it then does.
    const ACTION: &str = "SANDBAR_CONFINED_ACTION";

    /// What a confined process may do (true), and what it is killed for.
    #[rustfmt::skip]
    const ACTIONS: &[(&str, bool, fn())] = &[
        ("compute",           true,  || ()),
        ("take memory",       true,  || drop(std::hint::black_box(vec![1u8; 64 << 20]))),
        ("name memory",       true,  || syscall(libc::SYS_prctl, &[i64::from(libc::PR_SET_VMA), 0, 0, 0, 0])),
        ("want huge pages",   true,  || syscall(libc::SYS_prctl, &[i64::from(libc::PR_SET_THP_DISABLE), 0, 0, 0, 0])),
        ("ask for its core",  true,  || syscall(libc::SYS_getcpu, &[0, 0, 0])),
        ("open a file",       false, || drop(std::fs::read("/etc/passwd"))),
        ("open a socket",     false, || drop(std::net::TcpListener::bind("127.0.0.1:0"))),
        ("start a process",   false, || drop(Command::new("/bin/true").status())),
        ("start a thread",    false, || drop(std::thread::Builder::new().spawn(|| ()))),
        ("signal itself",     true,  || syscall(libc::SYS_tgkill, &[i64::from(std::process::id()), own_thread(), 0])),
        ("signal a thread of another", false, || syscall(libc::SYS_tgkill, &[1, 1, 0])),
        ("have another signalled", false, || syscall(libc::SYS_fcntl, &[0, i64::from(libc::F_SETOWN), 1])),
        ("look at a file's length", false, || drop(std::fs::metadata("/etc/passwd"))),
        ("signal a process", false, || syscall(libc::SYS_kill, &[1, 0])),
        ("trace a process",  false, || syscall(libc::SYS_ptrace, &[16, 1, 0, 0])),
        ("outlive its parent", false, || syscall(libc::SYS_prctl, &[i64::from(libc::PR_SET_PDEATHSIG), 0, 0, 0, 0])),
        ("type into a terminal", false, || syscall(libc::SYS_ioctl, &[0, libc::TIOCSTI as i64, 0])),
    ];

    fn own_thread() -> i64 {
        rustix::thread::gettid().as_raw_nonzero().get().into()
    }

    fn syscall(number: libc::c_long, arguments: &[i64]) {
        let argument = |at: usize| arguments.get(at).copied().unwrap_or_default();
        // SAFETY: none of the calls above is given an address that the kernel would write to.
        unsafe { libc::syscall(number, argument(0), argument(1), argument(2), argument(3), argument(4)) };
    }

    #[test]
    fn a_confined_process_computes_and_no_more() {
        if let Ok(name) = std::env::var(ACTION) {
            let (_, _, act) = ACTIONS.iter().find(|(n, ..)| *n == name).expect("an action");
            seccomp().expect("a filter");
            act();
            std::process::exit(0);
        }
        for (name, allowed, _) in ACTIONS {
            let ended = Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "confine::tests::a_confined_process_computes_and_no_more"])
                .env(ACTION, name)
                .stdout(Stdio::null())
                .status()
                .expect("a process");
            assert_eq!(ended.signal(), (!allowed).then_some(libc::SIGSYS), "{name}: {ended}");
            assert!(!allowed || ended.success(), "{name}: {ended}");
        }
    }
}
