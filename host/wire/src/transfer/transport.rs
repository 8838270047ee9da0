//! How QUIC is to be set up for transfers.

use std::sync::Arc;
use std::time::Duration;

use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

/// What a connection and a socket need to carry objects at the speed of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferTransport {
    /// Bytes that may be on their way on one connection: bandwidth times round trip. The default carries 10 Gbit/s over
    /// 50 ms.
    pub window_bytes: u32,
    /// Bytes of UDP payload that are tried at most; links that do not carry so many are found out.
    pub mtu_bytes_max: u16,
    /// Streams that a peer may have open at once.
    pub streams_max: u32,
    /// A connection on which nothing came for so long is lost.
    pub idle_ms_max: u32,
}

impl Default for TransferTransport {
    fn default() -> Self {
        TransferTransport { window_bytes: 64 << 20, mtu_bytes_max: 8952, streams_max: 256, idle_ms_max: 10_000 }
    }
}

/// Bytes of a UDP socket's buffers: what comes while the receiving thread does something else must lie somewhere.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The configuration of a connection that carries objects.
pub fn transport_for_transfer(advice: TransferTransport) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let window = VarInt::from_u32(advice.window_bytes);
    transport.receive_window(window);
    // A piece must not wait for its window to be opened.
    transport.stream_receive_window(VarInt::from_u32((advice.window_bytes / 4).max(1)));
    transport.send_window(u64::from(advice.window_bytes));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(advice.streams_max));
    transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(advice.idle_ms_max))));
    transport.keep_alive_interval(Some(Duration::from_millis(u64::from(advice.idle_ms_max / 3))));
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(advice.mtu_bytes_max);
    transport.mtu_discovery_config(Some(mtu));
    Arc::new(transport)
}
