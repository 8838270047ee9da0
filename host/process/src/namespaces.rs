//! Namespaces of confined processes: a user namespace without rights, and an empty root folder.

use std::ffi::CStr;
use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Folder over which the empty root is mounted, in the process's own mount namespace.
const ROOT: &CStr = c"/proc";

/// Moves this process into user and mount namespaces of its own, whose root folder is empty and read-only. Must be called
/// while the process has one thread.
///
/// # Errors
/// Those of the kernel, with what it refused. The namespaces entered before stay.
pub(crate) fn enter() -> io::Result<()> {
    // SAFETY: no other thread shares what is unshared.
    check("unshare", unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RDONLY;
    let options = c"size=4096,nr_inodes=1".as_ptr().cast();
    // SAFETY: the kernel reads the strings, which end with zero. This process has no open folder outside the new root, and
    // drops the right to leave it.
    unsafe {
        check("mount", libc::mount(c"none".as_ptr(), ROOT.as_ptr(), c"tmpfs".as_ptr(), flags, options))?;
        check("chdir", libc::chdir(ROOT.as_ptr()))?;
        check("chroot", libc::chroot(c".".as_ptr()))?;
        check("chdir", libc::chdir(c"/".as_ptr()))
    }
}

/// Drops all capabilities of the calling thread, which it has as root or in a user namespace of its own.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

fn check(call: &str, result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("{call}: {error}")))
}
