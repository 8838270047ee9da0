//! Records the paths that a process and its descendants open, change and execute.
//!
//! Uses seccomp's user notification: each such system call blocks until the watcher has recorded it, so that none is
//! missed, and then continues. Paths are absolute, as the kernel resolves them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sandbar_testnet::{CommandOutput, Running};

/// One use of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Kind of use.
    pub kind: AccessKind,
    /// Absolute path.
    pub path: PathBuf,
}

/// Kind of use of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessKind {
    /// Opened for reading or writing.
    Open,
    /// Created, removed or renamed.
    Change,
    /// Executed.
    Run,
}

/// Runs a command of the host to its end. Returns its output, and each access of it and its descendants once, whether
/// or not the path existed.
///
/// # Panics
/// Panics if the filter can't be installed, or if the command does not end.
pub fn watch(mut command: Command) -> (CommandOutput, Vec<Access>) {
    let (reader, writer) = io::pipe().expect("a pipe can be made");
    // SAFETY: the code between `fork` and `exec` makes system calls only.
    unsafe { command.pre_exec(move || install_filter(writer.as_raw_fd())) };
    let watcher: JoinHandle<Vec<Access>> = std::thread::spawn(move || record(reader));
    let ended = Running::new(command).wait();
    let mut all = watcher.join().expect("the watcher does not panic");
    all.sort();
    all.dedup();
    (ended, all)
}

/// System calls that take a path: number, kind of access, argument index of the folder's descriptor (if the call has
/// one), argument index of the path.
const CALLS: [(libc::c_long, AccessKind, Option<usize>, usize); 17] = [
    (libc::SYS_open, AccessKind::Open, None, 0),
    (libc::SYS_openat, AccessKind::Open, Some(0), 1),
    (libc::SYS_openat2, AccessKind::Open, Some(0), 1),
    (libc::SYS_creat, AccessKind::Open, None, 0),
    (libc::SYS_execve, AccessKind::Run, None, 0),
    (libc::SYS_execveat, AccessKind::Run, Some(0), 1),
    (libc::SYS_mkdir, AccessKind::Change, None, 0),
    (libc::SYS_mkdirat, AccessKind::Change, Some(0), 1),
    (libc::SYS_mknod, AccessKind::Change, None, 0),
    (libc::SYS_mknodat, AccessKind::Change, Some(0), 1),
    (libc::SYS_unlink, AccessKind::Change, None, 0),
    (libc::SYS_unlinkat, AccessKind::Change, Some(0), 1),
    (libc::SYS_rename, AccessKind::Change, None, 1),
    (libc::SYS_renameat, AccessKind::Change, Some(2), 3),
    (libc::SYS_renameat2, AccessKind::Change, Some(2), 3),
    (libc::SYS_symlinkat, AccessKind::Change, Some(1), 2),
    (libc::SYS_linkat, AccessKind::Change, Some(2), 3),
];

/// Runs in the child: installs a filter that notifies the watcher of [`CALLS`], then writes process id and listener
/// descriptor to `to`.
fn install_filter(to: libc::c_int) -> io::Result<()> {
    const LOAD_NUMBER: libc::sock_filter = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let mut program = [LOAD_NUMBER; CALLS.len() + 3];
    for (i, (number, ..)) in CALLS.iter().enumerate() {
        let ahead = (CALLS.len() - i) as u8;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program[1 + i] = libc::sock_filter { code, jt: ahead, jf: 0, k: *number as u32 };
    }
    program[1 + CALLS.len()] = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    program[2 + CALLS.len()] = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the arguments are numbers and a filter that lives until the call returns.
    let listener = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `write` reads eight bytes of an array on this stack frame.
    let written = unsafe {
        let message = [libc::getpid(), listener as libc::c_int];
        libc::write(to, message.as_ptr().cast(), size_of::<[libc::c_int; 2]>())
    };
    if written == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Records each notification until the last process has ended.
fn record(mut from: PipeReader) -> Vec<Access> {
    let mut message = [0; 8];
    from.read_exact(&mut message).expect("the child sends its process id and the listener descriptor");
    let number = |at: usize| i32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
    let child = Pid::from_raw(number(0)).expect("a process has an id");
    let child = pidfd_open(child, PidfdFlags::empty()).expect("the child has not ended");
    let listener =
        pidfd_getfd(child, number(4), PidfdGetfdFlags::empty()).expect("the child's descriptor can be duplicated");
    let mut all = Vec::new();
    while let Some(notification) = next_notification(&listener) {
        let used = access(&notification);
        // If the process was killed meanwhile, its memory can't be read and its call is not executed.
        if is_pending(&listener, notification.id) {
            all.extend(used);
            continue_call(&listener, notification.id);
        }
    }
    all
}

/// Returns the next pending notification, or `None` when no process uses the filter any more.
fn next_notification(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one initialized structure, and the count is 1.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 {
            continue;
        }
        if poll.revents & libc::POLLIN == 0 {
            return None;
        }
        // SAFETY: the structure holds integers only, for which all zeros is valid.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure has the type that this request fills.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) } == 0 {
            return Some(notification);
        }
        // The process that made the call was killed: wait for the next one.
    }
}

/// Returns whether the call still waits for a response.
fn is_pending(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: the request reads eight bytes, the size of `id`.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Lets the call continue.
fn continue_call(listener: &OwnedFd, id: u64) {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut response = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the structure has the type that this request reads. The request fails if the process was killed.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
}

fn access(notification: &libc::seccomp_notif) -> Option<Access> {
    let number = libc::c_long::from(notification.data.nr);
    let (_, kind, folder, path) = CALLS.iter().find(|(call, ..)| *call == number)?;
    let requested_path =
        read_path(notification.pid, notification.data.args[*path]).unwrap_or_else(|| PathBuf::from("(unreadable)"));
    let base = match folder.map(|folder| notification.data.args[folder] as libc::c_int) {
        None | Some(libc::AT_FDCWD) => format!("/proc/{}/cwd", notification.pid),
        Some(descriptor) => format!("/proc/{}/fd/{descriptor}", notification.pid),
    };
    let base = if requested_path.is_absolute() { PathBuf::new() } else { std::fs::read_link(base).unwrap_or_default() };
    Some(Access { kind: *kind, path: normalize(&base.join(requested_path)) })
}

/// Reads the NUL-terminated path at an address of another process.
fn read_path(process: u32, address: u64) -> Option<PathBuf> {
    const PAGE_BYTES: u64 = 4096;
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let (mut bytes, mut at) = (Vec::new(), address);
    // Read page by page: the page after the text may be unmapped.
    while bytes.len() < libc::PATH_MAX as usize {
        let mut page = vec![0; (PAGE_BYTES - at % PAGE_BYTES) as usize];
        memory.read_exact_at(&mut page, at).ok()?;
        if let Some(end) = page.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&page[..end]);
            return Some(OsString::from_vec(bytes).into());
        }
        at += page.len() as u64;
        bytes.extend(page);
    }
    None
}

/// Returns the path without `.` and `..`. If its folder exists, also resolves symbolic links in the folder.
fn normalize(path: &Path) -> PathBuf {
    if let (Some(folder), Some(name)) = (path.parent(), path.file_name())
        && let Ok(folder) = folder.canonicalize()
    {
        return folder.join(name);
    }
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}
