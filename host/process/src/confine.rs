//! Confines processes, as a second barrier behind WebAssembly. A guest that breaks out of WebAssembly, a component that takes
//! over its compiler, or a kernel that takes over a GPU driver, finds a process that can only do its task.
//!
//! A process calls [`start`] first and [`confine`] once it is set up, before it handles anything that a tenant has made.

use std::io;
use std::os::fd::AsRawFd;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior};
use rustix::process::{set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;

use crate::calls;
use crate::files::{self, FileAccess};
use crate::namespaces;
use crate::profile::{ProcessKind, Profile};
use crate::support::confinement_support;
use crate::walls::{MissingWall, Wall};

/// Environment variable with the process id of the node that started a process.
pub const NODE_VARIABLE: &str = "SANDBAR_NODE_PROCESS";

/// Score with which the kernel ends a process before others when memory is short: the highest.
const OUT_OF_MEMORY_SCORE: &str = "1000";
const OUT_OF_MEMORY_FILE: &str = "/proc/self/oom_score_adj";

/// Why no wall stands in a program that was built to measure what the walls cost.
const WITHOUT_WALLS: &str = "the program was built without walls";

/// The walls of a confined process that depend on its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confined {
    /// Version of Landlock's interface; `None` if it is missing.
    pub landlock_abi: Option<u32>,
    /// Whether the process has namespaces of its own.
    pub has_namespaces: bool,
    /// Limit of its private memory in bytes, if it has one.
    pub memory_bytes_max: Option<u64>,
    /// Walls of its profile that the kernel refused.
    pub missing: Vec<MissingWall>,
}

/// Prepares a process at its start: it ends with its node, leaves signals of its session to the node, dumps no core, and is
/// the first that the kernel ends when memory is short.
///
/// # Errors
/// Those of the kernel.
pub fn start(kind: ProcessKind) -> io::Result<()> {
    ignore_termination_signals()?;
    if kind.ends_with_starting_thread() {
        exit_with_parent()?;
    }
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, kind.open_files_max())?;
    // Without `/proc`, the node is as likely as this process to end.
    let _ = std::fs::write(OUT_OF_MEMORY_FILE, OUT_OF_MEMORY_SCORE);
    Ok(())
}

/// Confines this process as its profile says. `set_up` runs when all walls stand but those of system calls and processes: it
/// may start threads. Workers have one thread when they call this.
///
/// Walls that a kernel may lack are left out and reported. The wall of system calls must stand.
///
/// # Errors
/// Those of the kernel and of `set_up`.
pub fn confine<T>(profile: &Profile<'_>, set_up: impl FnOnce() -> io::Result<T>) -> io::Result<(Confined, T)> {
    if cfg!(feature = "without-walls") {
        let missing =
            [Wall::SystemCalls, Wall::Files, Wall::Namespaces].map(|wall| MissingWall::new(wall, &WITHOUT_WALLS));
        let (landlock_abi, has_namespaces, memory_bytes_max, missing) = (None, false, None, missing.into());
        return Ok((Confined { landlock_abi, has_namespaces, memory_bytes_max, missing }, set_up()?));
    }
    set_no_new_privs(true)?;
    if profile.silences_stderr {
        redirect_stderr_to_null()?;
    }
    let memory_bytes_max = profile.memory_bytes_max.map(limit_private_memory).transpose()?;
    let limits = [
        (Resource::Fsize, profile.file_bytes_max),
        (Resource::As, profile.address_bytes_max),
        (Resource::Cpu, profile.cpu_seconds_max),
    ];
    for (resource, max) in limits {
        max.map_or(Ok(()), |max| limit(resource, max))?;
    }
    let mut missing = Vec::new();
    // Before the namespaces: the empty root has no `/proc`.
    let landlock_abi = confinement_support().landlock_abi;
    let entered = if profile.has_namespaces { namespaces::enter() } else { Ok(()) };
    missing.extend(entered.as_ref().err().map(|e| MissingWall::new(Wall::Namespaces, e)));
    namespaces::drop_capabilities()?;
    let is_landlocked = files::restrict(profile.files).unwrap_or_else(|e| {
        missing.push(MissingWall::new(Wall::Files, &e));
        false
    });
    if !is_landlocked && missing.iter().all(|missing| missing.wall != Wall::Files) {
        missing.push(MissingWall::new(Wall::Files, &"the kernel has no Landlock"));
    }
    let value = set_up()?;
    if !profile.starts_threads {
        limit(Resource::Nproc, 0)?;
    }
    if !matches!(profile.files, FileAccess::Drivers(_)) {
        limit(Resource::Memlock, 0)?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    calls::restrict(profile.calls, profile.other_calls)?;
    let landlock_abi = landlock_abi.filter(|_| is_landlocked);
    let has_namespaces = profile.has_namespaces && entered.is_ok();
    Ok((Confined { landlock_abi, has_namespaces, memory_bytes_max, missing }, value))
}

/// Ignores termination signals. When they are sent to all processes of a service or a session, the node decides what
/// happens to its work, and this process ends with the node.
fn ignore_termination_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP] {
        // SAFETY: no handler is called.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Ends this process when the node's thread that started it ends; immediately if the node has already ended. The
/// process's socket may stay open longer: other processes that the node is starting hold it for a moment.
fn exit_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let node = std::env::var(NODE_VARIABLE).ok().and_then(|node| node.parse().ok());
    if node.is_some_and(|node: u32| node != std::os::unix::process::parent_id()) {
        std::process::exit(0);
    }
    Ok(())
}

/// Sets the soft and the hard limit of a resource to `max`, or to the current hard limit if that is lower: a process
/// cannot raise a hard limit.
fn limit(resource: Resource, max: u64) -> io::Result<()> {
    let max = Some(getrlimit(resource).maximum.map_or(max, |hard| hard.min(max)));
    Ok(setrlimit(resource, Rlimit { current: max, maximum: max })?)
}

/// Limits the private memory that this process may write to `bytes` more than it has now, reservations included. Returns the
/// limit in bytes.
fn limit_private_memory(bytes: u64) -> io::Result<u64> {
    let sizes = std::fs::read_to_string("/proc/self/statm")?;
    // The sixth size is that of private writable memory, in pages.
    let pages = sizes.split_whitespace().nth(5).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm is malformed"))?;
    let max = pages.saturating_mul(rustix::param::page_size() as u64).saturating_add(bytes);
    limit(Resource::Data, max)?;
    Ok(max)
}

/// Redirects standard error to `/dev/null`: it may be a terminal or a file of the user.
fn redirect_stderr_to_null() -> io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    // SAFETY: no value owns the descriptor of standard error; later writes to its number go to the new file.
    match unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
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
        ("queue a signal",    false, || try_call(libc::SYS_rt_sigqueueinfo, &[parent().into(), 0, 0])),
        ("limit a process",   false, || try_call(libc::SYS_prlimit64, &[parent().into(), 0, 0, 0])),
        ("limit itself",      true,  || try_call(libc::SYS_prlimit64, &[0, 0, 0, 0])),
        ("pin a process",     false, || try_call(libc::SYS_sched_setaffinity, &[parent().into(), 8, 0])),
        ("fork",              false, || try_call(libc::SYS_fork, &[])),
        ("start a process by clone", false, || try_call(libc::SYS_clone, &[libc::SIGCHLD.into(), 0, 0, 0, 0])),
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
            let folders = [own.parent().expect("a folder")];
            let profile = Profile::gpu(FileAccess::Drivers(&folders));
            let (confined, ()) = confine(&profile, || Ok(())).expect("it is confined");
            let has_rules = confined.landlock_abi.is_some();
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
                limit(Resource::Nofile, max).expect("a limit");
                assert_eq!(hard(Resource::Nofile), Some(expected), "{max}");
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
        try_call(number, arguments);
    }

    /// Returns whether the call succeeds. A child that it has started ends.
    fn try_call(number: libc::c_long, arguments: &[i64]) -> bool {
        let argument = |at: usize| arguments.get(at).copied().unwrap_or_default();
        let own = std::process::id();
        // SAFETY: none of the calls above gets an address to which the kernel writes.
        let result = unsafe { libc::syscall(number, argument(0), argument(1), argument(2), argument(3), argument(4)) };
        if std::process::id() != own {
            std::process::exit(1);
        }
        result >= 0
    }

    #[test]
    fn a_confined_process_computes_and_no_more() {
        if let Ok(name) = std::env::var(ACTION) {
            let (_, _, act) = ACTIONS.iter().find(|(n, ..)| *n == name).expect("an action");
            confine(&Profile::worker(1 << 20), || Ok(())).expect("it is confined");
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
