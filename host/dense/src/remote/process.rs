//! The process that has a GPU, as its node holds it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbar_process::{socket, spawn};
use sandbar_store::SharedMemory;

use super::{AREA_BYTES, FromServer, Lost, ToServer, now_nanos, words};
use crate::{Costs, Described};

/// The argument with which `host-gpu` serves; its socket is standard input.
pub const SERVE_ARGUMENT: &str = "serve";
/// The argument with which it describes the GPUs that there are, as JSON on standard output.
pub const LIST_ARGUMENT: &str = "list";
/// With which it uses a driver that computes on the processor, and no other.
pub const SOFTWARE_ARGUMENT: &str = "--software";

/// Kernels are made by the processor, which others may be using: that may take so long in any case.
const MAKING_TIME_MIN: Duration = Duration::from_secs(10);
/// A driver that has not made a device by then never will.
const START_TIME_MAX: Duration = Duration::from_secs(60);

/// How such a process is made.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// Which GPU, of those that there are.
    pub place: usize,
    /// Whether of those that compute on the processor.
    pub is_software: bool,
    /// Bytes that tensors may take.
    pub memory_bytes_max: u64,
    /// What it takes for what it does, if that is known.
    pub costs: Option<Costs>,
    /// What the processor takes, if that is known.
    pub processor: Option<Costs>,
}

/// A process that has a GPU. Dropping it kills it.
#[derive(Debug)]
pub struct GpuProcess {
    child: Child,
    socket: OwnedFd,
    described: Described,
    /// The shared memory of each connection.
    areas: Vec<SharedMemory>,
    frame: Vec<u8>,
}

/// How the work of a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// Within its time.
    Well,
    /// It was over its time, and the process was ended.
    Ended,
    /// The process has ended by itself, or its driver has.
    Gone,
}

impl GpuProcess {
    /// Starts `program` with these arguments before the usual ones, and waits until it is ready.
    ///
    /// # Errors
    /// When it can't be started, or has no such GPU.
    pub fn start(program: &mut Command, options: &GpuOptions) -> io::Result<GpuProcess> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        program.arg(SERVE_ARGUMENT);
        if options.is_software {
            program.arg(SOFTWARE_ARGUMENT);
        }
        program.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let child = spawn::in_own_group(|| program.spawn());
        // It alone has its end: that is how its own end is seen.
        program.stdin(Stdio::null());
        let child = child?;
        // From here on it is ended whatever goes wrong.
        let mut process = Starting(Some(child));
        let (mut frame, mut received) = (Vec::new(), Vec::new());
        let GpuOptions { place, memory_bytes_max, costs, processor, .. } = *options;
        let hello = ToServer::Hello { place, memory_bytes_max, costs, processor };
        socket::send(&ours, socket::frame(&hello, &mut frame)?, &[])?;
        let ended = |process: &mut Starting| io::Error::other(format!("the GPU's process ended: {}", process.end()));
        if !wait(&ours, START_TIME_MAX)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the GPU's driver makes no device"));
        }
        match socket::receive(&ours, &mut received)? {
            Some((FromServer::Ready(described), _)) => match process.0.take() {
                Some(child) => Ok(GpuProcess { child, socket: ours, described: *described, areas: Vec::new(), frame }),
                None => Err(ended(&mut process)),
            },
            Some((FromServer::Failed(why), _)) => Err(io::Error::other(why)),
            None => Err(ended(&mut process)),
        }
    }

    /// What its GPU is.
    pub fn described(&self) -> &Described {
        &self.described
    }

    /// A connection to it, for a [`Remote`](super::Remote): its socket, and shared memory.
    ///
    /// # Errors
    /// When the process is gone, or there is no memory.
    pub fn connect(&mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Whoever gets it may not be allowed to set that.
        rustix::io::ioctl_fionbio(&ours, true)?;
        let area = SharedMemory::new(AREA_BYTES)?;
        let file = area.as_fd().try_clone_to_owned()?;
        socket::send(
            &self.socket,
            socket::frame(&ToServer::Connect, &mut self.frame)?,
            &[theirs.as_fd(), file.as_fd()],
        )?;
        self.areas.push(area);
        Ok((ours, file))
    }

    /// Whether a guest uses it, or what it has done for one is not over.
    pub fn is_used(&self) -> bool {
        let words = [words::USERS, words::SINCE, words::MAKING_SINCE];
        self.areas.iter().any(|area| words.into_iter().any(|word| area.atomic(word).load(Acquire) != 0))
    }

    /// Connections that it had when it was looked at, and those made since.
    pub fn connections(&self) -> usize {
        self.areas.len()
    }

    /// Ends it if what it has to do for one of its connections takes longer than `time_max`.
    pub fn look(&mut self, time_max: Duration) -> Looked {
        // What who is gone has left to do counts as well.
        let is_used = |area: &SharedMemory| {
            area.atomic(words::CLOSED).load(Acquire) == 0 || area.atomic(words::SINCE).load(Acquire) != 0
        };
        self.areas.retain(is_used);
        let now = now_nanos();
        let limits = [(words::SINCE, time_max), (words::MAKING_SINCE, time_max.max(MAKING_TIME_MIN))];
        let is_over = |area: &SharedMemory| {
            limits.into_iter().any(|(word, most)| {
                let since = area.atomic(word).load(Acquire);
                since != 0 && u128::from(now.saturating_sub(since)) > most.as_nanos()
            })
        };
        if !self.areas.iter().any(is_over) {
            return if socket::is_closed(&self.socket) { Looked::Gone } else { Looked::Well };
        }
        for area in &self.areas {
            let why = if is_over(area) { Lost::OwnWork } else { Lost::OthersWork };
            area.atomic(words::LOST).store(why as u64, Release);
        }
        self.end();
        Looked::Ended
    }

    /// Ends it.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for GpuProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process that is ended unless it is taken.
struct Starting(Option<Child>);

impl Starting {
    fn end(&mut self) -> String {
        let Some(mut child) = self.0.take() else { return "it was taken".to_owned() };
        let _ = child.kill();
        child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for something to read. Says whether there is.
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
