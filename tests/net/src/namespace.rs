//! Network namespaces. The kernel keeps one as long as a descriptor or a process refers to it.

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
    /// Creates a namespace in which only the loopback device is up.
    pub(crate) fn new() -> io::Result<Namespace> {
        // On a thread of its own, since a thread can't return from the namespace it has moved to.
        let created = on_a_thread(|| {
            // SAFETY: the call affects the calling thread only, and changes its network namespace but not its file
            // descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = Namespace(Arc::new(created?));
        namespace.command("ip link set lo up")?;
        Ok(namespace)
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Makes `command` start in the namespace.
    pub(crate) fn attach(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: the closure makes one system call, which is allowed between `fork` and `exec`.
        unsafe { command.pre_exec(move || namespace.enter()) };
    }

    /// Runs an iproute2 command in the namespace. Splits the line at spaces, without quoting.
    pub(crate) fn command(&self, line: &str) -> io::Result<()> {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        self.attach(command.args(words));
        let output = command.output().map_err(|e| io::Error::new(e.kind(), format!("`{line}`: {e}")))?;
        let talk = String::from_utf8_lossy(&output.stderr);
        output.status.success().then_some(()).ok_or_else(|| io::Error::other(format!("`{line}`: {}", talk.trim())))
    }

    /// Returns a path by which other processes open the namespace. Valid as long as `self` exists.
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
