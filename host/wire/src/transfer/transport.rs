//! How QUIC is to be set up for transfers.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

/// What a connection and a socket need to carry objects at the speed of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferTransport {
    /// Bytes that may be on their way on one connection: bandwidth times round trip. The default carries 10 Gbit/s over
    /// 50 ms.
    pub window_bytes: u32,
    /// Bytes of UDP payload that are tried at most; links that do not carry so many are found out. At most
    /// [`MTU_BYTES_MAX`].
    pub mtu_bytes_max: u16,
    /// Streams that a peer may have open at once.
    pub streams_max: u32,
    /// A connection on which nothing came for so long is lost.
    pub idle_ms_max: u32,
}

impl Default for TransferTransport {
    fn default() -> Self {
        TransferTransport {
            window_bytes: 64 << 20,
            mtu_bytes_max: MTU_BYTES_MAX,
            streams_max: 256,
            idle_ms_max: 10_000,
        }
    }
}

/// The largest UDP payload that is quick. The kernel is handed ten packets at once, which together must be no more than
/// one UDP payload can be, 65,507 bytes: with 6,600 bytes each nothing gets through, with 9,000 quinn hands over
/// one at a time and takes 2.5 times as long. Loopback and links with jumbo frames of 9,000 bytes carry these.
pub const MTU_BYTES_MAX: u16 = 6_500;

/// Bytes of a UDP socket's buffers: what comes while the receiving thread does something else must lie somewhere.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The configuration of an endpoint whose connections carry objects.
pub fn endpoint_for_transfer(advice: TransferTransport) -> EndpointConfig {
    let mut endpoint = EndpointConfig::default();
    // It refuses what is below QUIC's least or above UDP's most.
    let _ = endpoint.max_udp_payload_size(advice.mtu_bytes_max.clamp(1200, MTU_BYTES_MAX));
    endpoint
}

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
    mtu.upper_bound(advice.mtu_bytes_max.clamp(1200, MTU_BYTES_MAX));
    transport.mtu_discovery_config(Some(mtu));
    Arc::new(transport)
}
