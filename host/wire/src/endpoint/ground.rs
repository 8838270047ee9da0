//! What an endpoint stands on: a socket, a runtime, a clock. A simulation brings its own.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::clock::{Clock, SystemClock};
use crate::protocol::PROTOCOL_VERSION;

/// What an endpoint stands on.
#[derive(Debug, Clone)]
pub struct Ground {
    /// Where datagrams come and go.
    pub socket: Arc<dyn quinn::AsyncUdpSocket>,
    /// What runs tasks and timers. Tasks of this room's own run on tokio.
    pub runtime: Arc<dyn quinn::Runtime>,
    /// By which certificates and tokens begin and end.
    pub clock: Arc<dyn Clock>,
    /// The version that is spoken: any but [`PROTOCOL_VERSION`] is for tests.
    pub version: u8,
    /// From which connection ids and paddings are drawn; of the system when there is none. What is secret is always
    /// drawn from the system.
    pub seed: Option<[u8; 32]>,
}

/// Bytes of a UDP socket's buffers: what comes while the receiving thread does something else must lie somewhere. The
/// kernel gives as much as its administrator allows. Two bursts of what a node's peers send in a millisecond.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

impl Ground {
    /// A UDP socket of the system, and its clock. Within a tokio runtime. The socket of `[::]` takes IPv4, too.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub fn udp(address: SocketAddr) -> io::Result<Ground> {
        let socket = bind(address)?;
        // Less is slower, not wrong.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
        Ok(Ground {
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
    // Whatever the machine's administrator has as its default.
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

/// Whether a socket at `local` can send to an address.
pub(super) fn reaches(local: SocketAddr, address: SocketAddr) -> bool {
    match (local, address) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) | (SocketAddr::V6(_), SocketAddr::V6(_)) => true,
        (SocketAddr::V6(local), SocketAddr::V4(_)) => local.ip().is_unspecified(),
        (SocketAddr::V4(_), SocketAddr::V6(_)) => false,
    }
}

/// An address as people know it: an IPv4 address that a socket of both families shows as one of IPv6 is one of IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // With its zone.
        IpAddr::V6(_) => address,
    }
}

/// QUIC's own tokens begin and end by the same clock.
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
            assert_eq!(reaches(from, to), expected, "{local} {address}");
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
