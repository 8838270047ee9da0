//! Nodes in network namespaces, joined by a bridge or a relay.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Once;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::namespace::Namespace;
use crate::print_line;
use crate::relay::Relay;
use crate::tun::Tun;

/// Bounded by the ports of a bridge and by the last byte of a node's address.
const NODES_MAX: usize = 200;
/// MTU of the bridge in bytes: jumbo frames, as in data centers.
const SWITCH_MTU: u16 = 9_000;
/// MTU of the relay in bytes: as on most networks.
const RELAY_MTU: u16 = 1_500;

/// A network of nodes numbered from 0. If namespaces can't be created, prints a warning and uses loopback addresses:
/// packets are then not affected, and no link can be changed.
#[derive(Debug)]
pub struct Net {
    nodes: usize,
    topology: Topology,
}

#[derive(Debug)]
enum Topology {
    Switch { nodes: Vec<Namespace>, switch: Namespace },
    // The relay comes first, so that its thread ends before the devices are closed.
    Relay { relay: Relay, nodes: Vec<Namespace> },
    Loopback,
}

/// Receive buffer of a test's socket, in bytes.
const SOCKET_BYTES: usize = 16 << 20;

/// Send rate of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Unlimited.
    Full,
    /// Bits per second. Packets beyond the rate queue for up to 200 ms and are dropped then.
    Bits(u64),
}

impl Net {
    /// Joins nodes by a bridge.
    pub fn switched(nodes: usize) -> Net {
        Net::or_loopback(nodes, switch(nodes))
    }

    /// Joins nodes by a relay without faults. `seed` seeds the random faults of all links.
    pub fn relayed(nodes: usize, seed: u64) -> Net {
        Net::or_loopback(nodes, relay(nodes, seed))
    }

    fn or_loopback(nodes: usize, topology_result: io::Result<Topology>) -> Net {
        static PRINT_ONCE: Once = Once::new();
        let topology = topology_result.unwrap_or_else(|e| {
            let warning =
                "NO NETWORK NAMESPACES, so nothing befalls packets in these tests (they need root and iproute2)";
            PRINT_ONCE.call_once(|| print_line(format_args!("{warning}: {e}")));
            Topology::Loopback
        });
        Net { nodes, topology }
    }

    /// Returns whether nodes have namespaces of their own.
    pub fn is_real(&self) -> bool {
        !matches!(self.topology, Topology::Loopback)
    }

    /// Returns the address of a node.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        assert!(node < self.nodes, "there are {} nodes", self.nodes);
        match self.topology {
            Topology::Loopback => Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + node as u32),
            _ => own(node),
        }
    }

    /// Makes `command` start at a node.
    pub fn attach(&self, node: usize, command: &mut Command) {
        if let Some(namespace) = self.namespace(node) {
            namespace.attach(command);
        }
    }

    /// Binds a UDP socket at a node, on a free port, with room for several thousand datagrams.
    ///
    /// # Errors
    /// Fails if the socket can't be bound.
    pub fn socket(&self, node: usize) -> io::Result<UdpSocket> {
        let bind = || {
            let socket = UdpSocket::bind((self.address(node), 0))?;
            // Without the privilege, the default size remains.
            let _ = set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES);
            Ok(socket)
        };
        self.namespace(node).map_or_else(bind, |namespace| namespace.within(bind))
    }

    /// Returns the relay, if one joins the nodes.
    pub fn relay(&self) -> Option<&Relay> {
        match &self.topology {
            Topology::Relay { relay, .. } => Some(relay),
            _ => None,
        }
    }

    /// Sets the send rate of a node. Does nothing on loopback.
    ///
    /// # Errors
    /// Fails if the `tc` command fails.
    pub fn rate(&self, node: usize, rate: Rate) -> io::Result<()> {
        let Some(namespace) = self.namespace(node) else { return Ok(()) };
        match rate {
            // Deleting fails if no limit is set.
            Rate::Full => namespace.command("tc qdisc del dev net0 root").or(Ok(())),
            Rate::Bits(bits) => {
                // The burst holds at least two packets, and at high rates the bytes of one 4 ms tick.
                let burst = (bits / 8 / 250).max(2 * u64::from(SWITCH_MTU));
                let of_rate = format!("tbf rate {bits}bit burst {burst} latency 200ms");
                namespace.command(&format!("tc qdisc replace dev net0 root {of_rate}"))
            }
        }
    }

    /// Connects a node to the others or disconnects it. Its own link stays up: its packets are dropped. Does nothing on
    /// loopback.
    ///
    /// # Errors
    /// Fails if the `ip` command fails.
    pub fn join(&self, node: usize, is_joined: bool) -> io::Result<()> {
        match &self.topology {
            Topology::Switch { switch, .. } => {
                switch.command(&format!("ip link set port{node} {}", if is_joined { "up" } else { "down" }))
            }
            Topology::Relay { relay, .. } => {
                relay.change_from(node, |link| link.cut = !is_joined);
                relay.change_to(node, |link| link.cut = !is_joined);
                Ok(())
            }
            Topology::Loopback => Ok(()),
        }
    }

    fn namespace(&self, node: usize) -> Option<&Namespace> {
        match &self.topology {
            Topology::Switch { nodes, .. } | Topology::Relay { nodes, .. } => nodes.get(node),
            Topology::Loopback => None,
        }
    }
}

fn own(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, u8::try_from(node + 1).unwrap_or(u8::MAX))
}

fn namespaces(count: usize) -> io::Result<Vec<Namespace>> {
    if count > NODES_MAX {
        return Err(io::Error::other(format!("{count} nodes are more than {NODES_MAX}")));
    }
    (0..count).map(|_| Namespace::new()).collect()
}

fn switch(count: usize) -> io::Result<Topology> {
    let (nodes, switch) = (namespaces(count)?, Namespace::new()?);
    switch.command("ip link add switch0 type bridge")?;
    for (node, namespace) in nodes.iter().enumerate() {
        let (port, path) = (format!("port{node}"), switch.path());
        namespace.command(&format!("ip link add net0 mtu {SWITCH_MTU} type veth peer name {port} netns {path}"))?;
        switch.command(&format!("ip link set {port} mtu {SWITCH_MTU} master switch0 up"))?;
        up(namespace, node)?;
    }
    switch.command("ip link set switch0 up")?;
    Ok(Topology::Switch { nodes, switch })
}

fn relay(count: usize, seed: u64) -> io::Result<Topology> {
    let nodes = namespaces(count)?;
    let mut tuns = Vec::new();
    for (node, namespace) in nodes.iter().enumerate() {
        tuns.push(Tun::new(namespace, "net0")?);
        namespace.command(&format!("ip link set net0 mtu {RELAY_MTU} txqueuelen 4000"))?;
        up(namespace, node)?;
    }
    Ok(Topology::Relay { relay: Relay::new(tuns, seed)?, nodes })
}

/// Assigns the node's address, with a route to all of 10.77.0.0/16, and sets its device up.
fn up(namespace: &Namespace, node: usize) -> io::Result<()> {
    namespace.command(&format!("ip address add {}/16 dev net0", own(node)))?;
    namespace.command("ip link set net0 up")
}
