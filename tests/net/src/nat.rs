//! Addresses under which nodes are seen by those that they spoke to first, as behind a router that translates them.
//!
//! Node 3 is 10.77.0.3. When it has moved once, what it began to say to others comes from 10.77.1.3, and what is sent
//! there is its. What others begin to say to 10.77.0.3 reaches it all the same, as through a forwarded port.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::packet::Packet;

/// More pairs of sockets are forgotten, as if all had moved.
const FLOWS_MAX: usize = 4096;

/// Pairs of sockets, first the one that spoke first.
#[derive(Debug, Default)]
pub(crate) struct Flows(HashSet<[SocketAddrV4; 2]>);

impl Flows {
    /// Gives a packet the addresses with which it arrives; false when it is for where its node is no more. `moved` is how
    /// often each node has.
    pub(crate) fn translate(&mut self, packet: &mut Packet, moved: &[u8]) -> bool {
        let before = packet.ends();
        let times = |end: SocketAddrV4| moved.get(usize::from(end.ip().octets()[3]).wrapping_sub(1)).copied();
        let [from, to] = [before[0], at(before[1], 0)];
        let ends = if self.0.contains(&[to, from]) {
            if times(to) != Some(before[1].ip().octets()[2]) {
                return false;
            }
            [from, to]
        } else {
            if self.0.len() >= FLOWS_MAX {
                self.0.clear();
            }
            self.0.insert([from, to]);
            [at(from, times(from).unwrap_or(0)), to]
        };
        if ends != before {
            packet.set_ends(ends);
        }
        true
    }
}

/// The same socket, of a node that has moved so often.
fn at(socket: SocketAddrV4, moved: u8) -> SocketAddrV4 {
    let [a, b, _, node] = socket.ip().octets();
    SocketAddrV4::new(Ipv4Addr::new(a, b, moved, node), socket.port())
}
