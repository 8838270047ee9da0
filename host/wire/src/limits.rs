//! Every bound on the memory, work and waiting that peers and unauthenticated clients can cause at this end.

use sandbar_core::LimitError;
use serde::{Deserialize, Serialize};

/// Limits for connections, handshakes, streams, frames and requests. The defaults fit a node with a few GiB of memory
/// in a cluster of up to a thousand nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WireLimits {
    /// Maximum concurrent connections from nodes to this end. Each node name has one.
    pub nodes_max: usize,
    /// Maximum concurrent connections from tenants to this end.
    pub tenants_max: usize,
    /// Maximum concurrent connections of one tenant, which bounds the commands that it runs at once.
    pub connections_per_tenant_max: usize,
    /// Maximum connections of one role that wait to be accepted. Further peers are closed with `busy`.
    pub accept_queue_max: usize,
    /// Maximum time to establish an outgoing connection, in milliseconds.
    pub connect_time_ms_max: u64,

    /// Idle time after which this end sends a keep-alive packet, in milliseconds.
    pub keep_alive_ms: u64,
    /// Time without a packet from the peer after which the connection is lost, in milliseconds. A dead peer is detected
    /// after at most this plus [`keep_alive_ms`](Self::keep_alive_ms). The default sum is 4.9 s, not 5 s, so that both
    /// complete within 5 s despite timer and thread delays.
    pub idle_ms_max: u64,

    /// Maximum time for a client to authenticate, in milliseconds. A failed handshake keeps its slot for the same time
    /// again: QUIC keeps the connection about that long, and the delay turns the bound on concurrent failures into a
    /// bound on failures a second.
    pub handshake_time_ms_max: u64,
    /// Maximum concurrent handshakes from unvalidated addresses. Further clients must validate their address first
    /// (QUIC Retry).
    pub handshakes_unproved_max: usize,
    /// Maximum concurrent handshakes from validated addresses. Addresses of known nodes, and those of known tenants,
    /// have as many again each.
    pub handshakes_max: usize,
    /// Maximum concurrent handshakes from one address prefix, out of the above.
    pub handshakes_per_prefix_max: usize,
    /// Bits of an IPv4 address that form a prefix. The default, all 32, keeps neighbours in a node's network from
    /// sharing one limit.
    pub prefix_v4_bits: u8,
    /// Bits of an IPv6 address that form a prefix. The default is 64, as the owner of one address usually owns 2⁶⁴.
    pub prefix_v6_bits: u8,
    /// Maximum bytes that a client may send before it has authenticated or joined.
    pub handshake_window_bytes: u32,
    /// Maximum bytes of buffered packets of one connection attempt, until it is examined, which happens immediately.
    pub incoming_buffer_bytes_max: u64,
    /// Maximum bytes of buffered packets of all connection attempts together.
    pub incoming_buffers_bytes_max: u64,
    /// Maximum addresses of previously connected nodes that keep handshake capacity of their own during a flood; as
    /// many of tenants.
    pub familiar_max: usize,

    /// Maximum concurrent streams that a peer may open: channels, requests and transfers.
    pub streams_max: u32,
    /// Flow-control window of one stream, in unread bytes. It allows 4 GB/s at 1 ms of round-trip time, 80 MB/s at 50
    /// ms.
    pub stream_window_bytes: u32,
    /// Flow-control window of a node's connection, in unread bytes. Sixteen streams without a reader exhaust it;
    /// transfers read what arrives, and have fewer open at once.
    pub node_window_bytes: u32,
    /// Flow-control window of a tenant's connection, in unread bytes, of one stream or of all. It also bounds the bytes
    /// sent to a tenant that it has not acknowledged. With [`tenants_max`](Self::tenants_max) it bounds the memory that
    /// tenants fill on a node.
    pub tenant_window_bytes: u32,
    /// Maximum unacknowledged bytes of one connection. Bulk transfers must stay below it by limiting their concurrent
    /// streams, each of which may hold [`stream_window_bytes`](Self::stream_window_bytes): stream priorities order only
    /// data that was already written.
    pub send_window_bytes: u64,
    /// Largest UDP payload that path MTU discovery tries, in bytes. The default fits Ethernet jumbo frames. Larger
    /// values are slower: the kernel takes ten datagrams a call, which together must fit the largest UDP payload,
    /// 65,507 bytes. With 6,600 bytes each nothing gets through; with 9,000 quinn sends one datagram a call and takes
    /// 2.5 times as long.
    pub datagram_bytes_max: u16,
    /// Maximum time for the first byte of a stream, which determines its kind, in milliseconds.
    pub stream_head_ms_max: u64,

    /// Maximum bytes of one frame of a channel.
    pub frame_bytes_max: u32,
    /// Maximum time from the first to the last byte of a frame, in milliseconds.
    pub frame_time_ms_max: u64,
    /// Maximum bytes of frames that one channel queues before QUIC takes them. Senders wait beyond it.
    pub send_queue_bytes_max: u32,
    /// Maximum concurrent channels that a peer may open.
    pub channels_max: usize,

    /// Maximum requests of a peer that wait for the application. Further requests are refused.
    pub requests_waiting_max: usize,
    /// Maximum bytes of one request.
    pub request_bytes_max: u32,
    /// Maximum bytes of one answer.
    pub response_bytes_max: u32,
    /// Maximum time for the bytes of a request, or of its answer, to arrive, in milliseconds.
    pub request_time_ms_max: u64,

    /// Maximum time for a join or a renewal, in milliseconds. A joining client occupies its handshake slot for that
    /// time.
    pub join_time_ms_max: u64,
}

impl WireLimits {
    /// The default limits.
    pub const DEFAULT: WireLimits = WireLimits {
        nodes_max: 1024,
        tenants_max: 256,
        connections_per_tenant_max: 16,
        accept_queue_max: 64,
        connect_time_ms_max: 5_000,
        keep_alive_ms: 900,
        idle_ms_max: 4_000,
        handshake_time_ms_max: 3_000,
        handshakes_unproved_max: 32,
        handshakes_max: 256,
        handshakes_per_prefix_max: 32,
        prefix_v4_bits: 32,
        prefix_v6_bits: 64,
        handshake_window_bytes: 32 << 10,
        incoming_buffer_bytes_max: 16 << 10,
        incoming_buffers_bytes_max: 1 << 20,
        familiar_max: 1024,
        streams_max: 256,
        stream_window_bytes: 4 << 20,
        node_window_bytes: 64 << 20,
        tenant_window_bytes: 1 << 20,
        send_window_bytes: 64 << 20,
        datagram_bytes_max: 6_500,
        stream_head_ms_max: 5_000,
        frame_bytes_max: 1 << 20,
        frame_time_ms_max: 30_000,
        send_queue_bytes_max: 2 << 20,
        channels_max: 16,
        requests_waiting_max: 64,
        request_bytes_max: 1 << 20,
        response_bytes_max: 1 << 20,
        request_time_ms_max: 10_000,
        join_time_ms_max: 5_000,
    };

    /// Checks each limit against its range, and limits against each other.
    ///
    /// # Errors
    /// The first limit out of its range.
    pub fn check(&self) -> Result<(), LimitError> {
        const SECONDS: u64 = 1000;
        let count = |value: usize| value as u64;
        let (bytes, window) = (u64::from(self.frame_bytes_max), u64::from(self.stream_window_bytes));
        LimitError::check([
            ("wire.nodes_max", count(self.nodes_max), 1..=1 << 20),
            ("wire.tenants_max", count(self.tenants_max), 1..=1 << 20),
            ("wire.connections_per_tenant_max", count(self.connections_per_tenant_max), 1..=1 << 20),
            ("wire.accept_queue_max", count(self.accept_queue_max), 1..=1 << 16),
            ("wire.connect_time_ms_max", self.connect_time_ms_max, 1..=600 * SECONDS),
            ("wire.keep_alive_ms", self.keep_alive_ms, 10..=self.idle_ms_max / 2),
            ("wire.idle_ms_max", self.idle_ms_max, 100..=600 * SECONDS),
            ("wire.handshake_time_ms_max", self.handshake_time_ms_max, 100..=60 * SECONDS),
            ("wire.handshakes_unproved_max", count(self.handshakes_unproved_max), 0..=1 << 16),
            ("wire.handshakes_max", count(self.handshakes_max), 1..=1 << 16),
            ("wire.handshakes_per_prefix_max", count(self.handshakes_per_prefix_max), 1..=count(self.handshakes_max)),
            ("wire.prefix_v4_bits", u64::from(self.prefix_v4_bits), 1..=32),
            ("wire.prefix_v6_bits", u64::from(self.prefix_v6_bits), 1..=128),
            ("wire.handshake_window_bytes", u64::from(self.handshake_window_bytes), 16 << 10..=1 << 20),
            ("wire.incoming_buffer_bytes_max", self.incoming_buffer_bytes_max, 0..=self.incoming_buffers_bytes_max),
            ("wire.incoming_buffers_bytes_max", self.incoming_buffers_bytes_max, 0..=1 << 30),
            ("wire.familiar_max", count(self.familiar_max), 0..=1 << 20),
            ("wire.streams_max", u64::from(self.streams_max), 4..=1 << 16),
            ("wire.stream_window_bytes", window, 64 << 10..=1 << 30),
            ("wire.node_window_bytes", u64::from(self.node_window_bytes), window..=u64::from(u32::MAX)),
            ("wire.tenant_window_bytes", u64::from(self.tenant_window_bytes), 64 << 10..=u64::from(u32::MAX)),
            ("wire.send_window_bytes", self.send_window_bytes, window..=1 << 40),
            ("wire.datagram_bytes_max", u64::from(self.datagram_bytes_max), 1_200..=65_527),
            ("wire.stream_head_ms_max", self.stream_head_ms_max, 1..=600 * SECONDS),
            ("wire.frame_bytes_max", bytes, 1..=256 << 20),
            ("wire.frame_time_ms_max", self.frame_time_ms_max, 1..=3600 * SECONDS),
            ("wire.send_queue_bytes_max", u64::from(self.send_queue_bytes_max), bytes + 4..=1 << 29),
            ("wire.channels_max", count(self.channels_max), 1..=u64::from(self.streams_max)),
            ("wire.requests_waiting_max", count(self.requests_waiting_max), 1..=1 << 16),
            ("wire.request_bytes_max", u64::from(self.request_bytes_max), 1..=256 << 20),
            ("wire.response_bytes_max", u64::from(self.response_bytes_max), 1..=256 << 20),
            ("wire.request_time_ms_max", self.request_time_ms_max, 1..=3600 * SECONDS),
            ("wire.join_time_ms_max", self.join_time_ms_max, 1..=60 * SECONDS),
        ])
    }
}

impl Default for WireLimits {
    fn default() -> Self {
        WireLimits::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fit_each_other() {
        type Change = fn(&mut WireLimits);
        let cases: [(Change, Option<&str>); 6] = [
            (|_| (), None),
            (|l| l.keep_alive_ms = 3_000, Some("`wire.keep_alive_ms` is 3000, not from 10 to 2000")),
            (
                |l| l.frame_bytes_max = 4 << 20,
                Some("`wire.send_queue_bytes_max` is 2097152, not from 4194308 to 536870912"),
            ),
            (
                |l| l.node_window_bytes = 1 << 20,
                Some("`wire.node_window_bytes` is 1048576, not from 4194304 to 4294967295"),
            ),
            (|l| l.prefix_v4_bits = 33, Some("`wire.prefix_v4_bits` is 33, not from 1 to 32")),
            (|l| l.join_time_ms_max = 0, Some("`wire.join_time_ms_max` is 0, not from 1 to 60000")),
        ];
        for (change, expected) in cases {
            let mut limits = WireLimits::default();
            change(&mut limits);
            assert_eq!(limits.check().err().map(|e| e.to_string()).as_deref(), expected);
        }
    }

    #[test]
    fn a_dead_peer_is_noticed_within_5_s() {
        let limits = WireLimits::default();
        assert!(limits.keep_alive_ms + limits.idle_ms_max < 5_000);
    }
}
