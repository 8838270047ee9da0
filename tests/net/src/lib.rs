//! Runs real processes for tests: the host, and networks of nodes.
//!
//! A [`Lab`] is a temporary folder to run the host in; a [`CommandOutput`] holds the exit status and the output of a run.
//! This crate depends on no other crate of the workspace, so that tests build no engine beside the host's.
//!
//! A [`Net`] gives each node a network namespace. Either a kernel bridge joins the nodes at full speed, or a [`Relay`]
//! does: it delays, drops, duplicates, corrupts and reorders packets as each [`LinkFaults`] specifies. The relay reads and
//! writes a TUN device, the only link of each node: a node has its own address and needs no change. The namespaces have
//! no names, so the kernel removes them with the last process of the test, however it ends.
//!
//! Goals: network faults under unmodified processes. Non-goals: repeatable runs, which `tests/simulation` covers; a
//! seed fixes the fate of the packets of each link only.

mod lab;
mod link;
mod namespace;
mod nat;
mod net;
mod packet;
mod paths;
mod relay;
mod tun;

use std::fmt;
use std::io::Write;

pub use lab::{CommandOutput, Lab, Running, children, is_alive, processor_time};
pub use link::LinkFaults;
pub use net::{Net, Rate};
pub use paths::{cache, component, example, host, workspace};
pub use relay::{Relay, RelayCounts};

/// Writes a line to standard error, past the test harness's capture, so that it shows for passing tests too.
pub fn print_line(line: fmt::Arguments<'_>) {
    // Ignore the error: standard error may be closed.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
