//! Confined processes as the kernel sees them: which system calls of all numbers they can make, and which walls stand.
//!
//! Each process applies its profile as `host-worker` and `host-gpu` do, then makes the calls that a guest would make that
//! runs native code in it.

#![expect(clippy::print_stdout, reason = "the calls that were made are for people")]

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};

use sandbar_process::{AllowedCall, FileAccess, OtherCalls, ProcessKind, Profile, confine};

/// Environment variable of a process of this test that starts the confined ones: it has one busy thread.
const STARTER: &str = "SANDBAR_TEST_STARTER";

/// Numbers above those of all system calls that exist.
const NUMBERS: std::ops::RangeInclusive<i64> = 0..=600;
const X32_BIT: i64 = 0x4000_0000;
/// `uretprobe` and `uprobe`, which newer kernels let through filters: code of a kernel's probe makes them. They kill any other
/// caller with SIGILL, or fail.
const PROBES: [i64; 2] = [335, 336];
/// Time of a call that does not return by itself, in microseconds, at first.
const CALL_TIME_US: i64 = 200_000;
/// Calls that name a process by their first argument.
const OF_PROCESSES: [i64; 3] = [libc::SYS_tgkill, libc::SYS_prlimit64, libc::SYS_sched_setaffinity];
/// Argument that stands for the id of the confined process.
const OWN: u64 = u64::MAX - 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The kernel killed the process with SIGSYS.
    Killed,
    /// The filter refused the call.
    Refused,
    /// The call was made: it returned, blocked, or ended the process.
    Made,
}

/// Memory shared with a confined process.
struct Shared {
    stage: AtomicU32,
    /// Result of the call, or its negative error number.
    result: AtomicI64,
}

fn shared() -> &'static Shared {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory of zeros, which is a valid value, and is never unmapped.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), protection, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        &*memory.cast::<Shared>()
    }
}

fn profile(kind: ProcessKind) -> Profile<'static> {
    match kind {
        ProcessKind::Worker => Profile::worker(1 << 20),
        ProcessKind::ProgramWorker => Profile::program_worker(1 << 20, 1 << 20),
        ProcessKind::Compiler => Profile::compiler(u64::MAX, u64::MAX),
        ProcessKind::Gpu => Profile::gpu(FileAccess::Drivers(&[])),
    }
}

/// Starts a child that is confined, and then runs `act`. Returns its process id. The kernel ends it after a time, in
/// microseconds.
fn fork(profile: &Profile<'_>, time_us: i64, act: impl FnOnce()) -> i32 {
    let time = libc::timeval { tv_sec: time_us / 1_000_000, tv_usec: time_us % 1_000_000 };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: time };
    // SAFETY: the other thread of this process waits, and holds no lock.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the kernel reads the time.
            unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
            let confined = confine::start(profile.kind).and_then(|()| confine::confine(profile, || Ok(())));
            if confined.is_ok() {
                act();
            }
            // SAFETY: the child ends without running destructors of this process.
            unsafe { libc::_exit(if confined.is_ok() { 0 } else { 9 }) }
        }
        child => {
            assert!(child > 0, "{}", std::io::Error::last_os_error());
            child
        }
    }
}

fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}

/// Makes a call in a confined process.
fn attempt(profile: &Profile<'_>, shared: &Shared, number: i64, arguments: [u64; 6]) -> Outcome {
    let mut call_time_us = CALL_TIME_US;
    loop {
        shared.stage.store(0, SeqCst);
        shared.result.store(0, SeqCst);
        let child = fork(profile, call_time_us, || {
            let own = u64::from(std::process::id());
            let [a, b, c, d, e, f] = arguments.map(|value| if value == OWN { own } else { value });
            shared.stage.store(1, SeqCst);
            // SAFETY: no argument is the address of memory in use; what the call does ends with this process.
            let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            shared.result.store(if result == -1 { -i64::from(error) } else { result }, SeqCst);
            shared.stage.store(2, SeqCst);
        });
        let status = wait(child);
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        match (shared.stage.load(SeqCst), signal) {
            (1, Some(libc::SIGSYS)) => return Outcome::Killed,
            (1, Some(libc::SIGILL)) if PROBES.contains(&number) => return Outcome::Killed,
            (2, _) if PROBES.contains(&number) && shared.result.load(SeqCst) < 0 => return Outcome::Killed,
            (2, _) => {
                let refusal = if number == libc::SYS_clone3 { libc::ENOSYS } else { libc::EPERM };
                let is_refused = shared.result.load(SeqCst) == -i64::from(refusal);
                return if is_refused { Outcome::Refused } else { Outcome::Made };
            }
            (1, _) => return Outcome::Made,
            // The machine is busy: the call was not reached in time.
            (0, Some(libc::SIGALRM)) if call_time_us < 1000 * CALL_TIME_US => call_time_us *= 4,
            other => panic!("{:?}: call {number}: {other:?}, status {status}", profile.kind),
        }
    }
}

/// Returns what the profile says of a call.
fn is_allowed(calls: &[&AllowedCall], number: i64, arguments: [u64; 6]) -> bool {
    calls.iter().any(|call| {
        let value = call.restricted_argument().map_or(0, |argument| arguments[usize::from(argument)]);
        // Another number stands for the process's own id.
        let own = OWN as u32;
        call.number() == number && call.allows(value, own)
    })
}

/// Tries every number, of x32 too, and values of restricted arguments. Prints what can be done.
fn try_all(kind: ProcessKind) {
    let (profile, shared) = (profile(kind), shared());
    let calls: Vec<&AllowedCall> = profile.allowed_calls().collect();
    let mut attempts: Vec<(i64, [u64; 6])> = Vec::new();
    NUMBERS.for_each(|number| attempts.extend([(number, [0; 6]), (number | X32_BIT, [0; 6])]));
    attempts.extend(calls.iter().map(|call| (call.number(), [u64::MAX; 6])));
    attempts.extend(OF_PROCESSES.map(|number| (number, [OWN, 0, 0, 0, 0, 0])));
    let hostile = [libc::TIOCSTI, libc::TIOCLINUX, u64::from(u32::MAX), std::process::id().into()];
    for call in &calls {
        let Some(argument) = call.restricted_argument() else { continue };
        for value in (1..=64).chain(hostile).chain([libc::CLONE_THREAD as u64, 0xc060_6610]) {
            let mut arguments = [0; 6];
            arguments[usize::from(argument)] = value;
            attempts.push((call.number(), arguments));
        }
    }
    let mut made = BTreeSet::new();
    for (number, arguments) in attempts {
        let outcome = attempt(&profile, shared, number, arguments);
        let is_x32 = number & X32_BIT != 0;
        let is_as_listed = match outcome {
            Outcome::Killed if PROBES.contains(&number) => true,
            Outcome::Made => is_allowed(&calls, number, arguments),
            // The kernel refuses allowed calls too.
            Outcome::Refused => profile.other_calls == OtherCalls::Fail && !is_x32,
            Outcome::Killed => {
                (profile.other_calls == OtherCalls::Kill || is_x32) && !is_allowed(&calls, number, arguments)
            }
        };
        assert!(is_as_listed, "{kind:?}: call {number} with {arguments:x?} is {outcome:?}");
        if outcome == Outcome::Made {
            made.insert(number);
        }
    }
    let name = |number: &i64| calls.iter().find(|call| call.number() == *number).map(|call| call.name());
    let names: Vec<String> = made.iter().filter_map(name).collect();
    println!("{}: {} of {} listed calls were made: {}", kind.name(), names.len(), calls.len(), names.join(" "));
    // The kernel itself refuses some of a driver's calls.
    assert!(names.len() * 10 >= calls.len() * 9, "{names:?}");
}

/// Runs `act` of a test in a process of its own, which has one busy thread.
fn in_own_process(test: &str, act: impl FnOnce()) {
    if std::env::var_os(STARTER).is_some() {
        act();
        return;
    }
    let ended = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(STARTER, "")
        .stdin(Stdio::null())
        .output()
        .expect("a process");
    print!("{}", String::from_utf8_lossy(&ended.stdout));
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_worker_can_make_the_listed_calls_only() {
    in_own_process("a_worker_can_make_the_listed_calls_only", || try_all(ProcessKind::Worker));
}

#[test]
fn a_worker_of_programs_can_make_the_listed_calls_only() {
    in_own_process("a_worker_of_programs_can_make_the_listed_calls_only", || try_all(ProcessKind::ProgramWorker));
}

#[test]
fn a_compiler_can_make_the_listed_calls_only() {
    in_own_process("a_compiler_can_make_the_listed_calls_only", || try_all(ProcessKind::Compiler));
}

#[test]
fn a_gpu_process_can_make_the_listed_calls_only() {
    in_own_process("a_gpu_process_can_make_the_listed_calls_only", || try_all(ProcessKind::Gpu));
}

/// Bytes that a confined process asks for, beyond its limits.
const LARGE_BYTES: usize = 1 << 44;

fn map_private(bytes: usize) -> bool {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, which nothing uses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags | libc::MAP_NORESERVE, -1, 0) };
    memory != libc::MAP_FAILED
}

fn write_file(bytes: i64) -> bool {
    // SAFETY: the name ends with zero.
    unsafe {
        let file = libc::memfd_create(c"test".as_ptr(), 0);
        file >= 0 && libc::ftruncate(file, bytes) == 0
    }
}

/// A name, what the process tries, and whether that succeeds; `None` if it ends the process.
type LimitCase = (&'static str, fn() -> bool, Option<bool>);

#[test]
fn limits_of_memory_and_files_hold() {
    in_own_process("limits_of_memory_and_files_hold", || {
        let profile = Profile::program_worker(1 << 20, 16 << 20);
        let cases: [LimitCase; 4] = [
            ("private memory", || map_private(64 << 20), Some(true)),
            ("too much private memory", || map_private(LARGE_BYTES), Some(false)),
            ("a value", || write_file(16 << 20), Some(true)),
            // SIGXFSZ ends the process.
            ("a too large file", || write_file(64 << 20), None),
        ];
        let shared = shared();
        for (name, act, expected) in cases {
            shared.result.store(-1, SeqCst);
            let status = wait(fork(&profile, 60_000_000, || shared.result.store(act().into(), SeqCst)));
            let found = match shared.result.load(SeqCst) {
                -1 => {
                    assert_eq!(libc::WTERMSIG(status), libc::SIGXFSZ, "{name}: {status}");
                    None
                }
                found => Some(found == 1),
            };
            assert_eq!(found, expected, "{name}");
        }
    });
}

/// What `/proc` shows of a confined process.
#[test]
fn confined_processes_have_no_rights() {
    in_own_process("confined_processes_have_no_rights", || {
        for kind in ProcessKind::ALL {
            let (mut ready, writer) = std::io::pipe().expect("a pipe");
            let child = fork(&profile(kind), 60_000_000, || {
                // SAFETY: the kernel reads one byte. The call without files or time waits.
                unsafe {
                    libc::write(writer.as_raw_fd(), b"r".as_ptr().cast(), 1);
                    libc::ppoll(std::ptr::null_mut(), 0, std::ptr::null(), std::ptr::null());
                }
            });
            drop(writer);
            ready.read_exact(&mut [0]).expect("it is confined");
            let read = |name: &str| std::fs::read_to_string(format!("/proc/{child}/{name}")).expect("a file");
            let status = read("status");
            for line in ["NoNewPrivs:	1", "Seccomp:	2", "CapEff:	0000000000000000", "CapPrm:	0000000000000000"] {
                assert!(status.lines().any(|other| other == line), "{kind:?}: {line} of {status}");
            }
            assert_eq!(read("oom_score_adj").trim(), "1000", "{kind:?}");
            let limits = read("limits");
            let hard = |name: &str| {
                let line = limits.lines().find(|line| line.starts_with(name)).expect("a limit");
                line[name.len()..].split_whitespace().nth(1).expect("a hard limit").to_owned()
            };
            assert_eq!(hard("Max core file size"), "0", "{kind:?}");
            let has_threads = kind == ProcessKind::Gpu;
            assert_eq!(hard("Max processes") == "0", !has_threads, "{kind:?}");
            assert_eq!(hard("Max locked memory") == "0", !has_threads, "{kind:?}");
            let own = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).ok();
            let its = |kind: &str| std::fs::read_link(format!("/proc/{child}/ns/{kind}")).ok();
            let is_apart = its("user") != own("user") && its("mnt") != own("mnt");
            if profile(kind).has_namespaces && may_have_namespaces() {
                assert!(is_apart, "{kind:?}");
                let root = Path::new("/proc").join(child.to_string()).join("root");
                assert_eq!(std::fs::read_dir(root).expect("a folder").count(), 0, "{kind:?} sees files");
            }
            // SAFETY: the child has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            wait(child);
        }
    });
}

/// Whether this process, which root or a container may have restricted, may make namespaces.
fn may_have_namespaces() -> bool {
    // SAFETY: the child only makes namespaces, and ends.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)),
            child => wait(child) == 0,
        }
    }
}
