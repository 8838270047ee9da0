//! What a program and all that it starts open, change and run: the kernel says it, whatever they do.
//!
//! Each such system call stops until it was looked at (seccomp's user notification), so that none is missed, and goes on
//! then. Paths are as the kernel sees them: absolute.

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
use sandbar_testnet::{Ended, Running};

/// A path that was used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// How.
    pub way: Way,
    /// Which.
    pub path: PathBuf,
}

/// How a path was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// It was opened, to read or to write.
    Open,
    /// It was made, removed or renamed.
    Change,
    /// It was run.
    Run,
}

/// Runs a command of the host to its end. Gives what it and its children used, each once, whether or not it was there.
///
/// # Panics
/// When the kernel can't be asked, or the command does not end.
pub fn watch(mut command: Command) -> (Ended, Vec<Access>) {
    let (reader, writer) = io::pipe().expect("a pipe can be made");
    // SAFETY: what is called between `fork` and `exec` makes system calls and nothing else.
    unsafe { command.pre_exec(move || be_watched(writer.as_raw_fd())) };
    let watcher: JoinHandle<Vec<Access>> = std::thread::spawn(move || listen(reader));
    let ended = Running::new(command).wait();
    let mut all = watcher.join().expect("the watcher does not panic");
    all.sort();
    all.dedup();
    (ended, all)
}

/// System calls that use a path: the way, and the places of the folder's descriptor, if there is one, and of the path.
const CALLS: [(libc::c_long, Way, Option<usize>, usize); 17] = [
    (libc::SYS_open, Way::Open, None, 0),
    (libc::SYS_openat, Way::Open, Some(0), 1),
    (libc::SYS_openat2, Way::Open, Some(0), 1),
    (libc::SYS_creat, Way::Open, None, 0),
    (libc::SYS_execve, Way::Run, None, 0),
    (libc::SYS_execveat, Way::Run, Some(0), 1),
    (libc::SYS_mkdir, Way::Change, None, 0),
    (libc::SYS_mkdirat, Way::Change, Some(0), 1),
    (libc::SYS_mknod, Way::Change, None, 0),
    (libc::SYS_mknodat, Way::Change, Some(0), 1),
    (libc::SYS_unlink, Way::Change, None, 0),
    (libc::SYS_unlinkat, Way::Change, Some(0), 1),
    (libc::SYS_rename, Way::Change, None, 1),
    (libc::SYS_renameat, Way::Change, Some(2), 3),
    (libc::SYS_renameat2, Way::Change, Some(2), 3),
    (libc::SYS_symlinkat, Way::Change, Some(1), 2),
    (libc::SYS_linkat, Way::Change, Some(2), 3),
];

/// In the child: has the kernel ask about [`CALLS`], and says by which descriptor.
fn be_watched(to: libc::c_int) -> io::Result<()> {
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
    // SAFETY: numbers are passed, and a program that lives until the call ends.
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
    // SAFETY: eight bytes of this frame are written.
    let written = unsafe {
        let said = [libc::getpid(), listener as libc::c_int];
        libc::write(to, said.as_ptr().cast(), size_of::<[libc::c_int; 2]>())
    };
    if written == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Looks at each call until the last process has ended.
fn listen(mut from: PipeReader) -> Vec<Access> {
    let mut said = [0; 8];
    from.read_exact(&mut said).expect("the child says by which descriptor it is watched");
    let number = |at: usize| i32::from_ne_bytes([said[at], said[at + 1], said[at + 2], said[at + 3]]);
    let child = Pid::from_raw(number(0)).expect("a process has an id");
    let child = pidfd_open(child, PidfdFlags::empty()).expect("the child has not ended");
    let listener = pidfd_getfd(child, number(4), PidfdGetfdFlags::empty()).expect("a descriptor of a child can be had");
    let mut all = Vec::new();
    while let Some(asked) = next(&listener) {
        let used = access(&asked);
        // Who was killed meanwhile can't be read, and its call does not take place.
        if waits(&listener, asked.id) {
            all.extend(used);
            answer(&listener, asked.id);
        }
    }
    all
}

/// The next call that waits; none once there are no processes any more.
fn next(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure is passed, which is there.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 {
            continue;
        }
        if poll.revents & libc::POLLIN == 0 {
            return None;
        }
        // SAFETY: plain numbers, of which zero is one.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the one that the request fills.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } == 0 {
            return Some(asked);
        }
        // Who asked has been killed.
    }
}

/// Whether a call still waits for an answer.
fn waits(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: a number of eight bytes is read, which is there.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Has a call go on.
fn answer(listener: &OwnedFd, id: u64) {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the structure is the one that the request takes. Who asked may have been killed.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
}

fn access(asked: &libc::seccomp_notif) -> Option<Access> {
    let number = libc::c_long::from(asked.data.nr);
    let (_, way, folder, path) = CALLS.iter().find(|(call, ..)| *call == number)?;
    let given = text(asked.pid, asked.data.args[*path]).unwrap_or_else(|| PathBuf::from("(unreadable)"));
    let base = match folder.map(|folder| asked.data.args[folder] as libc::c_int) {
        None | Some(libc::AT_FDCWD) => format!("/proc/{}/cwd", asked.pid),
        Some(descriptor) => format!("/proc/{}/fd/{descriptor}", asked.pid),
    };
    let base = if given.is_absolute() { PathBuf::new() } else { std::fs::read_link(base).unwrap_or_default() };
    Some(Access { way: *way, path: plain(&base.join(given)) })
}

/// The text at an address of another process.
fn text(process: u32, address: u64) -> Option<PathBuf> {
    const PAGE_BYTES: u64 = 4096;
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let (mut bytes, mut at) = (Vec::new(), address);
    // What follows a page need not be there.
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

/// A path without `.` and `..`, and with no links among its folders where it is there.
fn plain(path: &Path) -> PathBuf {
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
