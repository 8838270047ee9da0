//! System calls of confined processes: lists of what each kind may call, and the filters that enforce them.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

/// An allowed system call.
#[derive(Debug, Clone, Copy)]
pub struct AllowedCall {
    /// Name of its constant: `SYS_mmap`.
    constant: &'static str,
    number: libc::c_long,
    arguments: Arguments,
}

/// Restriction of an allowed system call: index of an argument, and values. The filter compares the lower 32 bits.
#[derive(Debug, Clone, Copy)]
enum Arguments {
    Any,
    OneOf(u8, &'static [u64]),
    NoneOf(u8, &'static [u64]),
    /// All of these bits are set.
    HasBits(u8, u64),
    /// The id of this process.
    OwnProcess(u8),
    /// The id of this process, or zero, which means the caller.
    OwnProcessOrZero(u8),
}

/// What happens to a process that makes another system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherCalls {
    /// The kernel kills the process.
    Kill,
    /// The call fails with `EPERM`. Numbers of other architectures and of x32 kill the process.
    Fail,
}

macro_rules! any {
    ($($constant:ident),* $(,)?) => {
        &[$(AllowedCall { constant: stringify!($constant), number: libc::$constant, arguments: Arguments::Any }),*]
    };
}

macro_rules! restricted {
    ($($constant:ident: $arguments:expr),* $(,)?) => {
        &[$(AllowedCall { constant: stringify!($constant), number: libc::$constant, arguments: $arguments }),*]
    };
}

/// `PAGEMAP_SCAN` of linux/fs.h, which reports written pages of this process.
const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// System calls of a worker and of the compiler: for memory, open files, time, and signals of its own traps.
///
/// The allocator names mapped memory, and disables huge pages except for large values. `F_SETOWN` is not allowed: it would
/// send signals to another process. A thread may signal threads of its own process, as it does to abort.
pub(crate) const COMPUTING: &[&[AllowedCall]] = &[
    any![
        SYS_brk,
        SYS_clock_gettime,
        SYS_clock_nanosleep,
        SYS_close,
        SYS_epoll_ctl,
        SYS_epoll_pwait,
        SYS_epoll_wait,
        SYS_exit,
        SYS_exit_group,
        SYS_fstat,
        SYS_ftruncate,
        SYS_futex,
        SYS_getcpu,
        SYS_getpid,
        SYS_getrandom,
        SYS_gettid,
        SYS_lseek,
        SYS_madvise,
        SYS_memfd_create,
        SYS_mmap,
        SYS_mprotect,
        SYS_mremap,
        SYS_munmap,
        SYS_nanosleep,
        SYS_poll,
        SYS_ppoll,
        SYS_pread64,
        SYS_recvmsg,
        SYS_restart_syscall,
        SYS_rt_sigaction,
        SYS_rt_sigprocmask,
        SYS_rt_sigreturn,
        SYS_sched_yield,
        SYS_sendmsg,
        SYS_sigaltstack,
        SYS_write,
    ],
    restricted![
        SYS_fcntl: Arguments::OneOf(1, &[
            libc::F_DUPFD_CLOEXEC as u64,
            libc::F_GETFD as u64,
            libc::F_SETFD as u64,
            libc::F_GETFL as u64,
            libc::F_ADD_SEALS as u64,
            libc::F_GET_SEALS as u64,
        ]),
        SYS_getrusage: Arguments::OneOf(0, &[libc::RUSAGE_THREAD as u64]),
        SYS_ioctl: Arguments::OneOf(1, &[PAGEMAP_SCAN]),
        SYS_prctl: Arguments::OneOf(0, &[
            libc::PR_SET_VMA as u64,
            libc::PR_GET_THP_DISABLE as u64,
            libc::PR_SET_THP_DISABLE as u64,
        ]),
        SYS_tgkill: Arguments::OwnProcess(0),
    ],
];

/// System calls of a process that drives a GPU, beside those of its memory and files: threads, and what drivers ask the
/// kernel about the machine. It may not open sockets, start or signal processes, or change another process.
pub(crate) const DRIVING: &[&[AllowedCall]] = &[
    // Memory.
    any![
        SYS_brk,
        SYS_get_mempolicy,
        SYS_madvise,
        SYS_mbind,
        SYS_membarrier,
        SYS_memfd_create,
        SYS_mincore,
        SYS_mlock,
        SYS_mlock2,
        SYS_mmap,
        SYS_mprotect,
        SYS_mremap,
        SYS_msync,
        SYS_munlock,
        SYS_munmap,
        SYS_set_mempolicy,
    ],
    // Files, which Landlock restricts, and devices.
    any![
        SYS_access,
        SYS_close,
        SYS_close_range,
        SYS_dup,
        SYS_dup2,
        SYS_dup3,
        SYS_faccessat,
        SYS_faccessat2,
        SYS_fadvise64,
        SYS_fallocate,
        SYS_flock,
        SYS_fstat,
        SYS_fstatfs,
        SYS_ftruncate,
        SYS_getcwd,
        SYS_getdents,
        SYS_getdents64,
        SYS_lseek,
        SYS_lstat,
        SYS_newfstatat,
        SYS_open,
        SYS_openat,
        SYS_openat2,
        SYS_pread64,
        SYS_preadv,
        SYS_pwrite64,
        SYS_pwritev,
        SYS_read,
        SYS_readlink,
        SYS_readlinkat,
        SYS_readv,
        SYS_stat,
        SYS_statfs,
        SYS_statx,
        SYS_write,
        SYS_writev,
    ],
    // Threads, signals of this process, waiting, and messages on open sockets.
    any![
        SYS_arch_prctl,
        SYS_clock_getres,
        SYS_clock_gettime,
        SYS_clock_nanosleep,
        SYS_epoll_create,
        SYS_epoll_create1,
        SYS_epoll_ctl,
        SYS_epoll_pwait,
        SYS_epoll_pwait2,
        SYS_epoll_wait,
        SYS_eventfd,
        SYS_eventfd2,
        SYS_exit,
        SYS_exit_group,
        SYS_futex,
        SYS_futex_waitv,
        SYS_gettimeofday,
        SYS_nanosleep,
        SYS_pause,
        SYS_pipe,
        SYS_pipe2,
        SYS_poll,
        SYS_ppoll,
        SYS_pselect6,
        SYS_recvmsg,
        SYS_restart_syscall,
        SYS_rseq,
        SYS_rt_sigaction,
        SYS_rt_sigpending,
        SYS_rt_sigprocmask,
        SYS_rt_sigreturn,
        SYS_rt_sigsuspend,
        SYS_rt_sigtimedwait,
        SYS_sched_yield,
        SYS_select,
        SYS_sendmsg,
        SYS_set_robust_list,
        SYS_set_tid_address,
        SYS_shutdown,
        SYS_sigaltstack,
        SYS_time,
        SYS_timerfd_create,
        SYS_timerfd_gettime,
        SYS_timerfd_settime,
        SYS_times,
    ],
    // Questions about the machine and this process.
    any![
        SYS_getcpu,
        SYS_getegid,
        SYS_geteuid,
        SYS_getgid,
        SYS_getgroups,
        SYS_getpid,
        SYS_getppid,
        SYS_getrandom,
        SYS_getresgid,
        SYS_getresuid,
        SYS_getrlimit,
        SYS_getrusage,
        SYS_gettid,
        SYS_getuid,
        SYS_sched_get_priority_max,
        SYS_sched_get_priority_min,
        SYS_sched_getaffinity,
        SYS_sched_getparam,
        SYS_sched_getscheduler,
        SYS_sysinfo,
        SYS_uname,
    ],
    restricted![
        SYS_clone: Arguments::HasBits(0, libc::CLONE_THREAD as u64),
        SYS_fcntl: Arguments::OneOf(1, &[
            libc::F_DUPFD as u64,
            libc::F_DUPFD_CLOEXEC as u64,
            libc::F_GETFD as u64,
            libc::F_SETFD as u64,
            libc::F_GETFL as u64,
            libc::F_SETFL as u64,
            libc::F_ADD_SEALS as u64,
            libc::F_GET_SEALS as u64,
        ]),
        SYS_ioctl: Arguments::NoneOf(1, &[libc::TIOCSTI, libc::TIOCLINUX]),
        SYS_prctl: Arguments::OneOf(0, &[
            libc::PR_SET_NAME as u64,
            libc::PR_GET_NAME as u64,
            libc::PR_SET_VMA as u64,
            libc::PR_GET_THP_DISABLE as u64,
            libc::PR_SET_THP_DISABLE as u64,
            libc::PR_SET_TIMERSLACK as u64,
        ]),
        SYS_prlimit64: Arguments::OwnProcessOrZero(0),
        SYS_sched_setaffinity: Arguments::OwnProcessOrZero(0),
        SYS_tgkill: Arguments::OwnProcess(0),
    ],
];

/// Bit of system call numbers of x32, which the architecture check of filters lets through.
const X32_BIT: u32 = 0x4000_0000;

impl AllowedCall {
    /// Returns its number.
    pub fn number(&self) -> i64 {
        self.number
    }

    /// Returns its name, with the restricted argument if there is one: `mmap`, `ioctl(argument 1)`.
    pub fn name(&self) -> String {
        let name = self.constant.trim_start_matches("SYS_");
        self.restricted_argument().map_or_else(|| name.to_owned(), |argument| format!("{name}(argument {argument})"))
    }

    /// Returns the index of the argument of which only some values are allowed.
    pub fn restricted_argument(&self) -> Option<u8> {
        match self.arguments {
            Arguments::Any => None,
            Arguments::OneOf(argument, _)
            | Arguments::NoneOf(argument, _)
            | Arguments::HasBits(argument, _)
            | Arguments::OwnProcess(argument)
            | Arguments::OwnProcessOrZero(argument) => Some(argument),
        }
    }

    /// Returns whether the process with the id `own` may make this call with a value of its restricted argument.
    pub fn allows(&self, value: u64, own: u32) -> bool {
        let low = u64::from(value as u32);
        match self.arguments {
            Arguments::Any => true,
            Arguments::OneOf(_, values) => values.contains(&low),
            Arguments::NoneOf(_, values) => !values.contains(&low),
            Arguments::HasBits(_, bits) => low & bits == bits,
            Arguments::OwnProcess(_) => low == own.into(),
            Arguments::OwnProcessOrZero(_) => low == own.into() || low == 0,
        }
    }

    /// Returns the filter's rules, of which one must match; none if any arguments are allowed.
    fn rules(&self) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        let is = |argument, operator, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
        let equals = |argument, value| SeccompRule::new(vec![is(argument, SeccompCmpOp::Eq, value)?]);
        let own = u64::from(std::process::id());
        match self.arguments {
            Arguments::Any => Ok(Vec::new()),
            Arguments::OneOf(argument, values) => values.iter().map(|value| equals(argument, *value)).collect(),
            Arguments::NoneOf(argument, values) => {
                let differs = values.iter().map(|value| is(argument, SeccompCmpOp::Ne, *value));
                Ok(vec![SeccompRule::new(differs.collect::<Result<_, _>>()?)?])
            }
            Arguments::HasBits(argument, bits) => {
                Ok(vec![SeccompRule::new(vec![is(argument, SeccompCmpOp::MaskedEq(bits), bits)?])?])
            }
            Arguments::OwnProcess(argument) => Ok(vec![equals(argument, own)?]),
            Arguments::OwnProcessOrZero(argument) => Ok(vec![equals(argument, own)?, equals(argument, 0)?]),
        }
    }
}

/// Allows only these system calls, for all threads of this process and those that they start.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn restrict(calls: &[&[AllowedCall]], others: OtherCalls) -> io::Result<()> {
    let action = match others {
        OtherCalls::Kill => SeccompAction::KillProcess,
        OtherCalls::Fail => {
            apply(&kill_x32())?;
            // The filter cannot read the structure to which the argument of `clone3` points. After `ENOSYS`, callers use
            // `clone`.
            let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
            apply(&program(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?)?;
            SeccompAction::Errno(libc::EPERM as u32)
        }
    };
    let rules = calls.iter().copied().flatten().map(|call| Ok((call.number, call.rules().map_err(io::Error::other)?)));
    let mut rules = rules.collect::<io::Result<BTreeMap<_, _>>>()?;
    if others == OtherCalls::Fail {
        // The strictest of the filters decides: `ENOSYS`.
        rules.insert(libc::SYS_clone3, Vec::new());
    }
    apply(&program(rules, action, SeccompAction::Allow)?)
}

/// Returns a filter: `matches` for the system calls of the rules, `others` for the rest.
fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    matches: SeccompAction,
) -> io::Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    SeccompFilter::new(rules, others, matches, arch).and_then(BpfProgram::try_from).map_err(io::Error::other)
}

/// Returns a filter that kills the process for each system call of x32.
fn kill_x32() -> BpfProgram {
    let instruction = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    vec![
        // The number is the first word of the filter's input.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_BIT),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn apply(program: &BpfProgram) -> io::Result<()> {
    seccompiler::apply_filter_all_threads(program).map_err(io::Error::other)
}
