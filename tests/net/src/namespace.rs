//! Network namespaces, which are there for as long as somebody has them or is in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

#[derive(Debug, Clone)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// A new one, in which nothing but loopback is up.
    pub(crate) fn new() -> io::Result<Namespace> {
        // A thread that ends stays where it went.
        let made = on_a_thread(|| {
            // SAFETY: of the calling thread, which shares no file descriptors less than before: a network is all it leaves.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = Namespace(Arc::new(made?));
        namespace.command("ip link set lo up")?;
        Ok(namespace)
    }

    /// Does something within it.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Has a command run within it.
    pub(crate) fn holds(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: one system call, which may be made between `fork` and `exec`.
        unsafe { command.pre_exec(move || namespace.enter()) };
    }

    /// Runs a command of iproute2 within it, whose words have no spaces.
    pub(crate) fn command(&self, line: &str) -> io::Result<()> {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        self.holds(command.args(words));
        let output = command.output().map_err(|e| io::Error::new(e.kind(), format!("`{line}`: {e}")))?;
        let talk = String::from_utf8_lossy(&output.stderr);
        output.status.success().then_some(()).ok_or_else(|| io::Error::other(format!("`{line}`: {}", talk.trim())))
    }

    /// By which other processes find it, for as long as this one has it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err(io::Error::other("it panicked")))
}
