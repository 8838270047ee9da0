//! What tests of real processes run: the host, and networks for nodes of it.
//!
//! A [`Lab`] is a folder to run the host in, and [`Ended`] what came of it. This room names no other, so that what is tried
//! with it needs no engine to be built but those in the host.
//!
//! A [`Net`] has a namespace for each node. Nodes are joined by a switch of the kernel, at its full speed, or by a
//! [`Relay`], which delays, loses, doubles, damages and reorders what they send to each other, as a [`Way`] says. The
//! relay is at the other end of each node's only link, a TUN device: a node has an address of its own, and knows of
//! nothing. Namespaces have no names: they are gone with the test process and what it started, however that ends.
//!
//! Goals: what a network does to processes that know nothing of it. Non-goals: results that are the same each time, which
//! are a simulation's; here only what befalls the packets of a way is drawn from a seed.

mod lab;
mod namespace;
mod nat;
mod net;
mod packet;
mod places;
mod relay;
mod tun;
mod way;

use std::fmt;
use std::io::Write;

pub use lab::{Ended, Lab, Running, children, is_alive, processor_time};
pub use net::{Net, Rate};
pub use places::{cache, component, example, host, workspace};
pub use relay::{Counts, Relay};
pub use way::Way;

/// Says a line where it is seen whether or not the test fails.
pub fn say(line: fmt::Arguments<'_>) {
    // Where nobody reads it, nothing is lost.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
