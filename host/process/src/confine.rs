//! Confines processes with seccomp and Landlock, as a second barrier behind WebAssembly. A guest that breaks out of
//! WebAssembly, or a component that takes over its compiler, finds a process that can only compute and answer, and that
//! is killed for any other system call.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// System calls of a worker: for memory, its socket, time, and signals of its own traps.
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
    libc::SYS_ppoll,
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

/// `PAGEMAP_SCAN` of linux/fs.h, which reports written pages of this process.
const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// System calls of a worker that are restricted to some values of one argument: index of the argument, values. The
/// allocator names mapped memory, and disables huge pages except for large values. `F_SETOWN` is not allowed: it would
/// send signals to another process.
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

/// Maximum number of open files of a process that gets files only for its current call.
pub const WORKER_FILES_MAX: u64 = 256;

/// Ignores termination signals. When they are sent to all processes of a service or a session, the node decides what
/// happens to its work, and this process ends with the node.
///
/// # Errors
/// Those of the kernel.
pub fn ignore_termination_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP] {
        // SAFETY: no handler is called.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Environment variable with the process id of the node that started a process.
pub const NODE_VARIABLE: &str = "SANDBAR_NODE_PROCESS";

/// Ends this process when the node's thread that started it ends; immediately if the node has already ended. The
/// process's socket may stay open longer: other processes that the node is starting hold it for a moment.
///
/// # Errors
/// Those of the kernel.
pub fn exit_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let node = std::env::var(NODE_VARIABLE).ok().and_then(|node| node.parse().ok());
    if node.is_some_and(|node: u32| node != std::os::unix::process::parent_id()) {
        std::process::exit(0);
    }
    Ok(())
}

/// Disables core dumps, and limits the number of open files.
///
/// # Errors
/// Those of the kernel.
pub fn limit_resources(files: u64) -> io::Result<()> {
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, files)
}

/// Sets the soft and the hard limit of a resource to `max`, or to the current hard limit if that is lower: a process
/// cannot raise a hard limit.
///
/// # Errors
/// Those of the kernel.
pub fn limit(resource: Resource, max: u64) -> io::Result<()> {
    let max = Some(getrlimit(resource).maximum.map_or(max, |hard| hard.min(max)));
    Ok(setrlimit(resource, Rlimit { current: max, maximum: max })?)
}

/// Redirects standard error to `/dev/null`: it may be a terminal or a file of the user.
///
/// # Errors
/// Those of the kernel.
pub fn redirect_stderr_to_null() -> io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    // SAFETY: no value owns the descriptor of standard error; later writes to its number go to the new file.
    match unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Allows only the system calls of a worker, for all threads of this process; any other call kills it.
///
/// # Errors
/// Those of the kernel.
pub fn restrict_worker_syscalls() -> io::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // A thread may signal threads of its own process, as it does to abort.
    let own = [u64::from(std::process::id())];
    for (call, argument, values) in ALLOWED_WITH.iter().copied().chain([(libc::SYS_tgkill, 0, &own[..])]) {
        let rule = |value: &u64| {
            let equal = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)?;
            SeccompRule::new(vec![equal])
        };
        rules.insert(call, values.iter().map(rule).collect::<Result<_, _>>().map_err(io::Error::other)?);
    }
    apply(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

/// Files that GPU drivers read: the drivers, their settings, and descriptions of devices.
const READ_BY_DRIVERS: &[&str] =
    &["/usr", "/lib", "/lib64", "/etc", "/opt", "/sys", "/proc", "/run/nvidia-persistenced", "/dev/shm"];
/// Devices of GPU drivers, and pseudo-devices.
const DEVICES: &[&str] = &[
    "/dev/dri",
    "/dev/kfd",
    "/dev/nvidia0",
    "/dev/nvidia1",
    "/dev/nvidia2",
    "/dev/nvidia3",
    "/dev/nvidia4",
    "/dev/nvidia5",
    "/dev/nvidia6",
    "/dev/nvidia7",
    "/dev/nvidiactl",
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-caps",
    "/dev/dxg",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
];

/// System calls that a GPU process does not need: for the network, other programs and processes, and changes to the
/// machine. They fail.
const REFUSED_TO_DRIVERS: &[libc::c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_connect,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kill,
    libc::SYS_listen,
    libc::SYS_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_tkill,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Restricts the files that this process may open: reading files of drivers and files under `own`, and using devices.
/// Must be called before other threads start. Returns whether the restriction is in force; a kernel without Landlock
/// (before 5.13) enforces nothing.
///
/// # Errors
/// Those of the kernel.
pub fn restrict_driver_files(own: &[&Path]) -> io::Result<bool> {
    use landlock::{
        ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
        path_beneath_rules,
    };
    let (read, all) = (AccessFs::from_read(ABI::V5) & !AccessFs::Execute, AccessFs::from_all(ABI::V5));
    let readable = READ_BY_DRIVERS.iter().map(Path::new).chain(own.iter().copied());
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev;
    let restricted = Ruleset::default()
        .handle_access(all & !AccessFs::Execute)
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.add_rules(path_beneath_rules(readable, read)))
        .and_then(|rules| rules.add_rules(path_beneath_rules(DEVICES, devices)))
        .and_then(|rules| rules.restrict_self());
    let status = restricted.map_err(io::Error::other)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Denies all threads of this process the network, other programs and other processes.
///
/// # Errors
/// Those of the kernel.
pub fn restrict_driver_syscalls() -> io::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED_TO_DRIVERS.iter().map(|call| (*call, Vec::new())).collect();
    let argument = |number, length, operator, value| {
        SeccompCondition::new(number, length, operator, value).and_then(|condition| SeccompRule::new(vec![condition]))
    };
    // New threads of this process, and signals to them, are allowed.
    let thread = libc::CLONE_THREAD as u64;
    let other = argument(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), 0).map_err(io::Error::other)?;
    rules.insert(libc::SYS_clone, vec![other]);
    let own = u64::from(std::process::id());
    let other = argument(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own).map_err(io::Error::other)?;
    rules.insert(libc::SYS_tgkill, vec![other]);
    apply(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?;
    // The filter cannot read the structure to which the argument of `clone3` points. After `ENOSYS`, callers use
    // `clone`.
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))
}

/// Installs a filter for all threads: `matches` for the system calls of the rules, `others` for the rest.
fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, others: SeccompAction, matches: SeccompAction) -> io::Result<()> {
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, others, matches, arch).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Environment variable with the action from [`ACTIONS`] that a confined process tries.
    const ACTION: &str = "SANDBAR_CONFINED_ACTION";

    /// Actions of a confined process, and whether they are allowed; the others kill it.
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

    /// An action, whether it is allowed, and a function that tries it.
    type Attempt = (&'static str, bool, fn() -> bool);

    /// Actions of a process that drives a device, and whether they are allowed; the others fail.
    #[rustfmt::skip]
    const DRIVEN: &[Attempt] = &[
        ("take memory",       true,  || !std::hint::black_box(vec![1u8; 64 << 20]).is_empty()),
        ("start a thread",    true,  || std::thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())),
        ("read a library",    true,  || std::fs::read("/etc/ld.so.cache").is_ok() || std::fs::read_dir("/usr/lib").is_ok()),
        ("read its own",      true,  || std::fs::read(std::env::current_exe().expect("a path")).is_ok()),
        ("write to nowhere",  true,  || std::fs::write("/dev/null", "x").is_ok()),
        ("read another file", false, || std::fs::read_dir("/root").is_ok() || std::fs::read_dir("/home").is_ok()),
        ("look into a process", false, || std::fs::File::open(format!("/proc/{}/mem", parent())).is_ok()),
        ("write a file",      false, || std::fs::write("/tmp/sandbar-confined", "x").is_ok()),
        ("open a socket",     false, || std::net::TcpListener::bind("127.0.0.1:0").is_ok()),
        ("start a process",   false, || Command::new("/bin/true").status().is_ok()),
        ("signal a process",  false, || parent().try_into().is_ok_and(signal)),
    ];

    fn parent() -> u32 {
        std::os::unix::process::parent_id()
    }

    fn signal(process: i32) -> bool {
        // SAFETY: signal 0 only checks whether a signal could be sent.
        unsafe { libc::kill(process, 0) == 0 }
    }

    /// The node ended before the process was set to end with it.
    #[test]
    fn a_process_ends_with_its_node() {
        let own = std::process::id();
        if std::env::var_os(ACTION).is_some() {
            exit_with_parent().expect("the kernel lets it");
            std::process::exit(7);
        }
        for (node, code) in [(own, 7), (own + 1, 0)] {
            let ended = Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "confine::tests::a_process_ends_with_its_node"])
                .env(ACTION, "")
                .env(NODE_VARIABLE, node.to_string())
                .output()
                .expect("a process");
            assert_eq!(ended.status.code(), Some(code), "{}", String::from_utf8_lossy(&ended.stdout));
        }
    }

    #[test]
    fn a_process_that_drives_a_device_does_that_and_no_more() {
        if std::env::var_os(ACTION).is_some() {
            let own = std::env::current_exe().expect("this test");
            let has_rules = restrict_driver_files(&[own.parent().expect("a folder")]).expect("rules");
            restrict_driver_syscalls().expect("a filter");
            for (name, allowed, act) in DRIVEN.iter().filter(|(name, ..)| has_rules || !name.contains("file")) {
                assert_eq!(act(), *allowed, "{name}");
            }
            std::process::exit(0);
        }
        let ended = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "confine::tests::a_process_that_drives_a_device_does_that_and_no_more", "--nocapture"])
            .env(ACTION, "")
            .output()
            .expect("a process");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    #[test]
    fn limits_are_never_raised() {
        if std::env::var_os(ACTION).is_some() {
            let hard = |resource| getrlimit(resource).maximum;
            for (max, expected) in [(200, 200), (300, 200), (100, 100), (u64::MAX, 100)] {
                limit_resources(max).expect("limits");
                assert_eq!((hard(Resource::Nofile), hard(Resource::Core)), (Some(expected), Some(0)), "{max}");
            }
            limit(Resource::Fsize, 1 << 20).and_then(|()| limit(Resource::Fsize, 1 << 30)).expect("a limit");
            assert_eq!(hard(Resource::Fsize), Some(1 << 20));
            std::process::exit(0);
        }
        let ended = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "confine::tests::limits_are_never_raised", "--nocapture"])
            .env(ACTION, "")
            .output()
            .expect("a process");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    fn own_thread() -> i64 {
        rustix::thread::gettid().as_raw_nonzero().get().into()
    }

    fn syscall(number: libc::c_long, arguments: &[i64]) {
        let argument = |at: usize| arguments.get(at).copied().unwrap_or_default();
        // SAFETY: none of the calls above gets an address to which the kernel writes.
        unsafe { libc::syscall(number, argument(0), argument(1), argument(2), argument(3), argument(4)) };
    }

    #[test]
    fn a_confined_process_computes_and_no_more() {
        if let Ok(name) = std::env::var(ACTION) {
            let (_, _, act) = ACTIONS.iter().find(|(n, ..)| *n == name).expect("an action");
            restrict_worker_syscalls().expect("a filter");
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
