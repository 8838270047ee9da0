//! What an endpoint stands on: a socket, a runtime, a clock. A simulation brings its own.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::SystemTime;

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
    /// A UDP socket of the system, and its clock. Within a tokio runtime.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub fn udp(address: SocketAddr) -> io::Result<Ground> {
        let socket = UdpSocket::bind(address)?;
        // Less is slower, not wrong.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
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

/// QUIC's own tokens begin and end by the same clock.
pub(super) struct QuicTime(pub Arc<dyn Clock>);

impl quinn::TimeSource for QuicTime {
    fn now(&self) -> SystemTime {
        let since = std::time::Duration::from_secs(self.0.now().0);
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}
