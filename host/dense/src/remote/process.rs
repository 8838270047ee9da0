//! The node's side of a GPU process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbar_process::{socket, spawn};
use sandbar_store::SharedMemory;

use super::{AREA_BYTES, KillReason, ServerRequest, ServerResponse, now_nanos, words};
use crate::{Costs, DeviceProfile};

/// Argument with which `host-gpu` serves; its socket is standard input.
pub const SERVE_ARGUMENT: &str = "serve";
/// Argument with which `host-gpu` describes the GPUs, as JSON on standard output.
pub const LIST_ARGUMENT: &str = "list";
/// Argument for using drivers that compute on the processor, and no others.
pub const SOFTWARE_ARGUMENT: &str = "--software";

/// Minimum limit of compiling a kernel: the processor compiles, and may be busy.
const COMPILE_TIME_MIN: Duration = Duration::from_secs(10);
/// Maximum time until a driver creates a device.
const START_TIME_MAX: Duration = Duration::from_secs(60);

/// Options of a GPU process.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// Index of the GPU.
    pub index: usize,
    /// Whether to use drivers that compute on the processor.
    pub is_software: bool,
    /// Maximum bytes of all tensors.
    pub memory_bytes_max: u64,
    /// Measured costs of the GPU, if known.
    pub costs: Option<Costs>,
    /// Measured costs of the processor, if known.
    pub processor: Option<Costs>,
}

/// A process that owns a GPU. Dropping it kills it.
#[derive(Debug)]
pub struct GpuProcess {
    child: Child,
    socket: OwnedFd,
    profile: DeviceProfile,
    /// Shared memory of each connection.
    areas: Vec<SharedMemory>,
    frame: Vec<u8>,
}

/// State of a GPU process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// All work is within its time limit.
    Healthy,
    /// Work exceeded its time limit, and the process was killed.
    TimedOut,
    /// The process or its driver ended by itself.
    Exited,
}

impl GpuProcess {
    /// Starts `program`, with its arguments before the usual ones, and waits until it is ready.
    ///
    /// # Errors
    /// Fails if it can't be started, or has no such GPU.
    pub fn start(program: &mut Command, options: &GpuOptions) -> io::Result<GpuProcess> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        program.arg(SERVE_ARGUMENT);
        if options.is_software {
            program.arg(SOFTWARE_ARGUMENT);
        }
        program.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let child = spawn::in_own_group(|| program.spawn());
        // The process alone holds its end of the socket, so that its exit closes the connection.
        program.stdin(Stdio::null());
        let child = child?;
        // The guard kills the process on errors.
        let mut process = ChildGuard(Some(child));
        let (mut frame, mut received) = (Vec::new(), Vec::new());
        let GpuOptions { index, memory_bytes_max, costs, processor, .. } = *options;
        let hello = ServerRequest::Hello { index, memory_bytes_max, costs, processor };
        socket::send(&ours, socket::frame(&hello, &mut frame)?, &[])?;
        let ended = |process: &mut ChildGuard| io::Error::other(format!("the GPU process ended: {}", process.kill()));
        if !wait(&ours, START_TIME_MAX)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the GPU's driver created no device in time"));
        }
        match socket::receive(&ours, &mut received)? {
            Some((ServerResponse::Ready(profile), _)) => match process.0.take() {
                Some(child) => Ok(GpuProcess { child, socket: ours, profile: *profile, areas: Vec::new(), frame }),
                None => Err(ended(&mut process)),
            },
            Some((ServerResponse::Failed(why), _)) => Err(io::Error::other(why)),
            None => Err(ended(&mut process)),
        }
    }

    /// Returns the profile of its GPU.
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// Opens a connection for a [`GpuClient`](super::GpuClient): its socket and its shared memory.
    ///
    /// # Errors
    /// Fails if the process ended, or no memory is available.
    pub fn connect(&mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The receiver's seccomp filter may not allow this call.
        rustix::io::ioctl_fionbio(&ours, true)?;
        let area = SharedMemory::new(AREA_BYTES)?;
        let file = area.as_fd().try_clone_to_owned()?;
        socket::send(
            &self.socket,
            socket::frame(&ServerRequest::Connect, &mut self.frame)?,
            &[theirs.as_fd(), file.as_fd()],
        )?;
        self.areas.push(area);
        Ok((ours, file))
    }

    /// Whether a guest uses the process, or work for one is in progress.
    pub fn is_used(&self) -> bool {
        let words = [words::USERS, words::BUSY_SINCE, words::COMPILING_SINCE];
        self.areas.iter().any(|area| words.into_iter().any(|word| area.atomic(word).load(Acquire) != 0))
    }

    /// Returns the number of connections at the last check, plus those made since.
    pub fn connections(&self) -> usize {
        self.areas.len()
    }

    /// Kills the process if work for one of its connections takes longer than `time_max`.
    pub fn check(&mut self, time_max: Duration) -> ProcessState {
        // Unfinished work of closed connections counts as well.
        let is_used = |area: &SharedMemory| {
            area.atomic(words::CLOSED).load(Acquire) == 0 || area.atomic(words::BUSY_SINCE).load(Acquire) != 0
        };
        self.areas.retain(is_used);
        let now = now_nanos();
        let limits = [(words::BUSY_SINCE, time_max), (words::COMPILING_SINCE, time_max.max(COMPILE_TIME_MIN))];
        let is_over = |area: &SharedMemory| {
            limits.into_iter().any(|(word, max)| {
                let since = area.atomic(word).load(Acquire);
                since != 0 && u128::from(now.saturating_sub(since)) > max.as_nanos()
            })
        };
        if !self.areas.iter().any(is_over) {
            return if socket::is_closed(&self.socket) { ProcessState::Exited } else { ProcessState::Healthy };
        }
        for area in &self.areas {
            let why = if is_over(area) { KillReason::OwnWork } else { KillReason::OthersWork };
            area.atomic(words::KILL_REASON).store(why as u64, Release);
        }
        self.kill();
        ProcessState::TimedOut
    }

    /// Kills the process.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for GpuProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Guard that kills the process unless it is taken.
struct ChildGuard(Option<Child>);

impl ChildGuard {
    fn kill(&mut self) -> String {
        let Some(mut child) = self.0.take() else { return "it was taken".to_owned() };
        let _ = child.kill();
        child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the socket is readable. Returns whether it is.
pub(super) fn wait(socket: &OwnedFd, time: Duration) -> io::Result<bool> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
