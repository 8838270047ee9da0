//! Nodes, each in a namespace of its own, and what joins them.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Once;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::namespace::Namespace;
use crate::relay::Relay;
use crate::say;
use crate::tun::Tun;

/// A switch has so many ports, and an address of a node's its last byte.
const NODES_MAX: usize = 200;
/// What a switch carries: bytes of IP, as those of machine rooms do.
const SWITCH_MTU: u16 = 9_000;
/// And a relay: as most ways do.
const RELAY_MTU: u16 = 1_500;

/// Nodes that are joined to each other, numbered from 0. Where namespaces can't be made it says so, and they are addresses
/// of loopback: then nothing befalls what they send, and nothing of it can be changed.
#[derive(Debug)]
pub struct Net {
    nodes: usize,
    joined: Joined,
}

#[derive(Debug)]
enum Joined {
    Switch { nodes: Vec<Namespace>, switch: Namespace },
    // Relay first: it ends before the devices go.
    Relay { relay: Relay, nodes: Vec<Namespace> },
    Loopback,
}

/// Of a socket of a test's own.
const SOCKET_BYTES: usize = 16 << 20;

/// How fast a node sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// As fast as it can.
    Full,
    /// So many bits in a second. What is sent beyond waits for up to a fifth of a second, and is lost then.
    Bits(u64),
}

impl Net {
    /// Nodes joined by a switch.
    pub fn switched(nodes: usize) -> Net {
        Net::or_loopback(nodes, switch(nodes))
    }

    /// Nodes joined by a relay, whose ways do nothing until they are told to. A seed is for all that they draw.
    pub fn relayed(nodes: usize, seed: u64) -> Net {
        Net::or_loopback(nodes, relay(nodes, seed))
    }

    fn or_loopback(nodes: usize, made: io::Result<Joined>) -> Net {
        static SAID: Once = Once::new();
        let joined = made.unwrap_or_else(|e| {
            let words =
                "NO NETWORK NAMESPACES, so nothing befalls packets in these tests (they need root and iproute2)";
            SAID.call_once(|| say(format_args!("{words}: {e}")));
            Joined::Loopback
        });
        Net { nodes, joined }
    }

    /// Whether nodes have namespaces of their own.
    pub fn is_real(&self) -> bool {
        !matches!(self.joined, Joined::Loopback)
    }

    /// The node's address.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        assert!(node < self.nodes, "there are {} nodes", self.nodes);
        match self.joined {
            Joined::Loopback => Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + node as u32),
            _ => own(node),
        }
    }

    /// Has a command run at a node.
    pub fn place(&self, node: usize, command: &mut Command) {
        if let Some(namespace) = self.namespace(node) {
            namespace.holds(command);
        }
    }

    /// A socket of a node, on a free port, which takes some thousand datagrams before any is read.
    ///
    /// # Errors
    /// When there is none.
    pub fn socket(&self, node: usize) -> io::Result<UdpSocket> {
        let bind = || {
            let socket = UdpSocket::bind((self.address(node), 0))?;
            // Where it may not be so large it is what there is.
            let _ = set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES);
            Ok(socket)
        };
        self.namespace(node).map_or_else(bind, |namespace| namespace.within(bind))
    }

    /// What joins the nodes, where it is a relay.
    pub fn relay(&self) -> Option<&Relay> {
        match &self.joined {
            Joined::Relay { relay, .. } => Some(relay),
            _ => None,
        }
    }

    /// How fast a node sends from now on. Nothing changes on loopback.
    ///
    /// # Errors
    /// When the system does not do it.
    pub fn rate(&self, node: usize, rate: Rate) -> io::Result<()> {
        let Some(namespace) = self.namespace(node) else { return Ok(()) };
        match rate {
            // Where there was no bound there is nothing to take away.
            Rate::Full => namespace.command("tc qdisc del dev net0 root").or(Ok(())),
            Rate::Bits(bits) => {
                // What may go at once has to be a packet at least, and at high rates what goes in a tick.
                let burst = (bits / 8 / 250).max(2 * u64::from(SWITCH_MTU));
                let of_rate = format!("tbf rate {bits}bit burst {burst} latency 200ms");
                namespace.command(&format!("tc qdisc replace dev net0 root {of_rate}"))
            }
        }
    }

    /// Whether a node is joined to the others. It does not learn of it: what it sends goes nowhere. Nothing changes on
    /// loopback.
    ///
    /// # Errors
    /// When the system does not do it.
    pub fn join(&self, node: usize, is_joined: bool) -> io::Result<()> {
        match &self.joined {
            Joined::Switch { switch, .. } => {
                switch.command(&format!("ip link set port{node} {}", if is_joined { "up" } else { "down" }))
            }
            Joined::Relay { relay, .. } => {
                relay.change_from(node, |way| way.cut = !is_joined);
                relay.change_to(node, |way| way.cut = !is_joined);
                Ok(())
            }
            Joined::Loopback => Ok(()),
        }
    }

    fn namespace(&self, node: usize) -> Option<&Namespace> {
        match &self.joined {
            Joined::Switch { nodes, .. } | Joined::Relay { nodes, .. } => nodes.get(node),
            Joined::Loopback => None,
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

fn switch(count: usize) -> io::Result<Joined> {
    let (nodes, switch) = (namespaces(count)?, Namespace::new()?);
    switch.command("ip link add switch0 type bridge")?;
    for (node, namespace) in nodes.iter().enumerate() {
        let (port, path) = (format!("port{node}"), switch.path());
        namespace.command(&format!("ip link add net0 mtu {SWITCH_MTU} type veth peer name {port} netns {path}"))?;
        switch.command(&format!("ip link set {port} mtu {SWITCH_MTU} master switch0 up"))?;
        up(namespace, node)?;
    }
    switch.command("ip link set switch0 up")?;
    Ok(Joined::Switch { nodes, switch })
}

fn relay(count: usize, seed: u64) -> io::Result<Joined> {
    let nodes = namespaces(count)?;
    let mut tuns = Vec::new();
    for (node, namespace) in nodes.iter().enumerate() {
        tuns.push(Tun::new(namespace, "net0")?);
        namespace.command(&format!("ip link set net0 mtu {RELAY_MTU} txqueuelen 4000"))?;
        up(namespace, node)?;
    }
    Ok(Joined::Relay { relay: Relay::new(tuns, seed)?, nodes })
}

/// All of 10.77 is there.
fn up(namespace: &Namespace, node: usize) -> io::Result<()> {
    namespace.command(&format!("ip address add {}/16 dev net0", own(node)))?;
    namespace.command("ip link set net0 up")
}
