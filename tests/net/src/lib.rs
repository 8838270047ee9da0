//! Networks for tests of real processes: nodes in network namespaces of this machine, and what befalls packets on their way.
//!
//! A [`Net`] has a namespace for each node. Nodes are joined by a switch of the kernel, at its full speed, or by a
//! [`Relay`], which delays, loses, doubles, damages and reorders what they send to each other, as a [`Way`] says. The
//! relay is at the other end of each node's only link, a TUN device: a node has an address of its own, and knows of
//! nothing. Namespaces have no names: they are gone with the test process and what it started, however that ends.
//!
//! Goals: what a network does to processes that know nothing of it. Non-goals: results that are the same each time, which
//! are a simulation's; here only what befalls the packets of a way is drawn from a seed.

mod namespace;
mod nat;
mod net;
mod packet;
mod relay;
mod tun;
mod way;

use std::fmt;
use std::io::Write;

pub use net::{Net, Rate};
pub use relay::{Counts, Relay};
pub use way::Way;

/// Says a line where it is seen whether or not the test fails.
pub fn say(line: fmt::Arguments<'_>) {
    // Where nobody reads it, nothing is lost.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
