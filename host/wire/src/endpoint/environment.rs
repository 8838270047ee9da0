//! The operating-system services of an endpoint: socket, runtime and clock. A simulation replaces them.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::clock::{Clock, SystemClock};
use crate::protocol::PROTOCOL_VERSION;

/// Socket, runtime, clock, version and seed of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointEnvironment {
    /// The UDP socket.
    pub socket: Arc<dyn quinn::AsyncUdpSocket>,
    /// QUIC's task and timer runtime. This crate's own tasks always run on tokio.
    pub runtime: Arc<dyn quinn::Runtime>,
    /// Clock for the validity of certificates and tokens.
    pub clock: Arc<dyn Clock>,
    /// Protocol version. Values other than [`PROTOCOL_VERSION`] are for tests.
    pub version: u8,
    /// Seed of connection ids and padding; `None` for system randomness. Secrets always use system randomness.
    pub seed: Option<[u8; 32]>,
}

/// Requested bytes of a UDP socket's send and receive buffers. They hold what arrives while the receiving thread is
/// busy: two bursts of what a node's peers send in a millisecond. The kernel's configured maximum may reduce them.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

impl EndpointEnvironment {
    /// Binds a UDP socket and uses the system clock. Must be called within a tokio runtime. A socket of `[::]` accepts
    /// IPv4 too.
    ///
    /// # Errors
    /// The address can't be bound.
    pub fn udp(address: SocketAddr) -> io::Result<EndpointEnvironment> {
        let socket = bind(address)?;
        // Smaller buffers are slower, not wrong.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
        Ok(EndpointEnvironment {
            socket: runtime.wrap_udp_socket(socket)?,
            runtime,
            clock: Arc::new(SystemClock),
            version: PROTOCOL_VERSION,
            seed: None,
        })
    }
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let SocketAddr::V6(any) = address else { return UdpSocket::bind(address) };
    if !any.ip().is_unspecified() {
        return UdpSocket::bind(address);
    }
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Independent of the machine's default (`net.ipv6.bindv6only`).
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

/// Returns whether a socket bound to `local` can send to an address.
pub(super) fn can_reach(local: SocketAddr, address: SocketAddr) -> bool {
    match (local, address) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) | (SocketAddr::V6(_), SocketAddr::V6(_)) => true,
        (SocketAddr::V6(local), SocketAddr::V4(_)) => local.ip().is_unspecified(),
        (SocketAddr::V4(_), SocketAddr::V6(_)) => false,
    }
}

/// Converts an IPv4-mapped IPv6 address, as a dual-stack socket shows it, to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // Keeps the scope id.
        IpAddr::V6(_) => address,
    }
}

/// The clock for QUIC's own address-validation tokens.
pub(super) struct QuicTime(pub Arc<dyn Clock>);

impl quinn::TimeSource for QuicTime {
    fn now(&self) -> SystemTime {
        let since = std::time::Duration::from_secs(self.0.now().0);
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_sockets_and_targets() {
        for (local, address, expected) in [
            ("0.0.0.0:1", "10.0.0.1:2", true),
            ("0.0.0.0:1", "[::1]:2", false),
            ("127.0.0.1:1", "[::1]:2", false),
            ("[::]:1", "[::1]:2", true),
            ("[::]:1", "10.0.0.1:2", true),
            ("[::1]:1", "127.0.0.1:2", false),
        ] {
            let [from, to] = [local, address].map(|text| text.parse().unwrap());
            assert_eq!(can_reach(from, to), expected, "{local} {address}");
        }
    }

    #[test]
    fn addresses_of_ipv4_are_shown_as_such() {
        for (address, expected) in
            [("[::ffff:10.0.0.1]:2", "10.0.0.1:2"), ("10.0.0.1:2", "10.0.0.1:2"), ("[fe80::1%3]:2", "[fe80::1%3]:2")]
        {
            assert_eq!(canonical(address.parse().unwrap()).to_string(), expected);
        }
    }
}
