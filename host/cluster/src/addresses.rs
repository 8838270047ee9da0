//! Addresses of nodes: parsing, name resolution, and where a node listens.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use sandbar_wire::{BindError, EndpointEnvironment};

use crate::error::ClusterError;

/// Maximum time to resolve the name to listen at.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum addresses of one name. Further ones are ignored.
const ADDRESSES_MAX: usize = 16;
/// Maximum bytes of a host name, as in DNS.
const HOST_BYTES_MAX: usize = 255;

const NO_ADDRESS: &str = "the name has no address";

/// Why a text is not the address of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text has no port.
    #[error("the port is missing: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")]
    NoPort,
    /// No port follows the brackets.
    #[error("the port is missing: [HOST]:PORT is expected")]
    NoPortAfterBrackets,
    /// An IPv6 address has no brackets: the address, and the port.
    #[error("an IPv6 address stands in brackets: [{_0}]:{_1}")]
    NoBrackets(String, String),
    /// The text before the port is neither a name nor an address.
    #[error("`{_0}` is not a host: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")]
    InvalidHost(String),
    /// The port is not a number, or too large.
    #[error("the port is a number from 0 to 65535")]
    InvalidPort,
}

/// `HOST:PORT`, where the host is a name or an address; an IPv6 address is in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    host: String,
    port: u16,
}

impl NodeAddress {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for NodeAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NodeAddress, AddressError> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').ok_or(AddressError::NoPortAfterBrackets)?),
            None => {
                let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
                if host.contains(':') {
                    return Err(AddressError::NoBrackets(host.to_owned(), port.to_owned()));
                }
                (host, port)
            }
        };
        let is_of_host = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '/' | '[' | ']' | '@');
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.chars().all(is_of_host) {
            return Err(AddressError::InvalidHost(host.chars().take(60).collect()));
        }
        let is_port = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_port);
        Ok(NodeAddress { host: host.to_owned(), port: port.ok_or(AddressError::InvalidPort)? })
    }
}

impl From<SocketAddr> for NodeAddress {
    fn from(address: SocketAddr) -> NodeAddress {
        // The text form includes the zone of an IPv6 address.
        let text = address.to_string();
        let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
        NodeAddress { host: host.trim_matches(['[', ']']).to_owned(), port: address.port() }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenOn {
    /// This port of all IPv6 and IPv4 addresses of the machine; 0 for any free port.
    Any(u16),
    /// The first address of this name that the machine has.
    At(NodeAddress),
}

impl ListenOn {
    pub(crate) async fn bind(&self) -> Result<EndpointEnvironment, ClusterError> {
        let candidates = match self {
            ListenOn::Any(port) => vec![(Ipv6Addr::UNSPECIFIED, *port).into(), (Ipv4Addr::UNSPECIFIED, *port).into()],
            ListenOn::At(name) => resolve(name, RESOLVE_TIME_MAX).await?,
        };
        let mut failed = None;
        for address in candidates {
            match EndpointEnvironment::udp(address) {
                Ok(environment) => return Ok(environment),
                // Another process has the port. The other family's port would be only half of what was requested.
                Err(reason) if reason.kind() == io::ErrorKind::AddrInUse => {
                    return Err(BindError::Address { address, reason }.into());
                }
                Err(reason) => failed = Some(BindError::Address { address, reason }),
            }
        }
        Err(failed.map_or_else(|| ClusterError::Unresolved(format!("{self:?}"), NO_ADDRESS.to_owned()), Into::into))
    }

    /// Returns the local address for connections to `address` before the node listens: the node's own one, if both are of
    /// one family.
    pub(crate) fn source_for(&self, address: SocketAddr) -> SocketAddr {
        let own = match self {
            ListenOn::At(name) => name.host.parse().ok(),
            ListenOn::Any(_) => None,
        };
        let own = own.filter(|own: &IpAddr| own.is_ipv4() == address.is_ipv4());
        own.map_or_else(|| unspecified(address), |own| SocketAddr::new(own, 0))
    }
}

/// Returns the unspecified address of the same family, with any port.
pub(crate) fn unspecified(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Resolves a name to at least one address. The addresses alternate between IPv6 and IPv4.
pub(crate) async fn resolve(name: &NodeAddress, time: Duration) -> Result<Vec<SocketAddr>, ClusterError> {
    let failed = |reason: String| ClusterError::Unresolved(name.to_string(), reason);
    let found = tokio::time::timeout(time, tokio::net::lookup_host((name.host.as_str(), name.port))).await;
    let found = found.map_err(|_| failed(format!("no answer from the name service within {} s", time.as_secs())))?;
    let found = found.map_err(|e| failed(format!("the name can't be resolved: {e}")))?;
    let addresses = alternate_families(found.collect());
    if addresses.is_empty() { Err(failed(NO_ADDRESS.to_owned())) } else { Ok(addresses) }
}

/// Alternates between the families, starting with the first address's. Within a family, the system's order remains.
fn alternate_families(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first_ipv6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (VecDeque<_>, VecDeque<_>) = found.into_iter().partition(|a| a.is_ipv6() == is_first_ipv6);
    let (mut families, mut all) = ([one, other], Vec::new());
    while families.iter().any(|family| !family.is_empty()) && all.len() < ADDRESSES_MAX {
        for address in families.iter_mut().filter_map(VecDeque::pop_front) {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    all
}

/// Returns the address at which other nodes reach `listen_address`. If that is unspecified, it is the source address of
/// datagrams to the joined node, or else to any other machine.
pub(crate) async fn advertised(
    listen_address: SocketAddr,
    joined: Option<&NodeAddress>,
    time: Duration,
) -> Result<SocketAddr, ClusterError> {
    if !listen_address.ip().is_unspecified() {
        return Ok(listen_address);
    }
    let targets = match joined {
        Some(name) => resolve(name, time).await?,
        // Addresses of the blocks for documentation: the default route leads to them.
        None => vec![([192, 0, 2, 1], 1).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1).into()],
    };
    // Sends nothing: the kernel only chooses the source address.
    let source = |target: &SocketAddr| {
        let socket = std::net::UdpSocket::bind(unspecified(*target)).ok()?;
        socket.connect(target).ok()?;
        socket.local_addr().ok()
    };
    let is_served = |address: &SocketAddr| address.is_ipv4() || listen_address.is_ipv6();
    let sources = targets.iter().filter_map(source).find(is_served);
    let ip = sources.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    Ok(SocketAddr::new(ip, listen_address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_and_ports() {
        for (text, expected) in [
            ("first:7410", Ok("first:7410")),
            ("10.0.0.1:0", Ok("10.0.0.1:0")),
            ("[::1]:7410", Ok("[::1]:7410")),
            ("[fe80::1%lo]:7410", Ok("[fe80::1%lo]:7410")),
            ("::1:7511", Err("an IPv6 address stands in brackets: [::1]:7511")),
            ("[::1]", Err("the port is missing: [HOST]:PORT is expected")),
            ("[::1]7410", Err("the port is missing: [HOST]:PORT is expected")),
            ("localhost", Err("the port is missing: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")),
            ("first:", Err("the port is a number from 0 to 65535")),
            ("first:+1", Err("the port is a number from 0 to 65535")),
            ("first:65536", Err("the port is a number from 0 to 65535")),
            (":7410", Err("`` is not a host: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")),
            ("a b:1", Err("`a b` is not a host: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")),
        ] {
            let parsed = text.parse::<NodeAddress>().map(|address| address.to_string()).map_err(|e| e.to_string());
            assert_eq!(parsed.as_deref().map_err(String::as_str), expected, "{text}");
        }
        for address in ["10.0.0.1:5", "[::1]:5", "[fe80::1%3]:5"] {
            assert_eq!(NodeAddress::from(address.parse::<SocketAddr>().unwrap()).to_string(), address);
        }
    }

    #[test]
    fn addresses_alternate_between_families() {
        let addresses = |all: &[&str]| -> Vec<SocketAddr> { all.iter().map(|text| text.parse().unwrap()).collect() };
        let found = addresses(&["[::1]:1", "[::2]:1", "1.1.1.1:1", "2.2.2.2:1", "3.3.3.3:1", "[::1]:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "3.3.3.3:1"]);
        assert_eq!(alternate_families(found), expected);
    }
}
