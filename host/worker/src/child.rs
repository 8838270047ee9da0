//! Worker processes as children of the node: their start, environment and end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbar_process::{confine, spawn};

/// A process of the program `host-worker`. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct WorkerChild(Option<Child>);

impl WorkerChild {
    /// Starts the program. Its standard input is a socket, whose other end is returned and does not block.
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> io::Result<(WorkerChild, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            // A worker's heap is small. With transparent huge pages its first page would take 2 MiB, all of which the
            // kernel would clear.
            .env("MIMALLOC_ALLOW_THP", "0")
            .env(confine::NODE_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Its own process group, so that signals from a terminal or shell reach only the node.
            .process_group(0);
        let child = spawn::in_own_group(|| command.spawn())?;
        // Closes the worker's end of the socket in this process. Otherwise this process would not notice that the worker has exited.
        drop(command);
        Ok((WorkerChild(Some(child)), ours))
    }

    /// Returns the process id, or 0 if the process was killed.
    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Kills the process, and describes its exit status.
    pub(crate) fn kill(&mut self) -> String {
        let Some(mut child) = self.0.take() else { return "it ended".into() };
        let _ = child.kill();
        child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }
}

impl Drop for WorkerChild {
    fn drop(&mut self) {
        self.kill();
    }
}
