//! Network address translation, as by a router in front of each node.
//!
//! Node 3 has the address 10.77.0.3. After its first move, flows that it initiates have the source address 10.77.1.3,
//! and replies to that address reach it. Flows that others initiate to 10.77.0.3 still reach it, as through a forwarded
//! port.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::packet::Packet;

/// Maximum tracked flows. A further one clears the table, as if all nodes had moved.
const FLOWS_MAX: usize = 4096;

/// Tracked flows: pairs of sockets, the initiator first.
#[derive(Debug, Default)]
pub(crate) struct Flows(HashSet<[SocketAddrV4; 2]>);

impl Flows {
    /// Rewrites the packet's addresses to those at which it arrives. Returns false if the destination address is one
    /// that its node has left. `moved` counts the moves of each node.
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

/// Returns the same socket at the address of its node after `moved` moves.
fn at(socket: SocketAddrV4, moved: u8) -> SocketAddrV4 {
    let [a, b, _, node] = socket.ip().octets();
    SocketAddrV4::new(Ipv4Addr::new(a, b, moved, node), socket.port())
}
