//! Every bound on what peers and strangers can make this end hold, do or wait for.

use serde::{Deserialize, Serialize};

/// What peers may use of this end. Defaults are for a node with a few GiB of memory, in a cluster of up to a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WireLimits {
    /// Connections of nodes to this end at once. Each name has one.
    pub nodes_max: usize,
    /// Connections of tenants to this end at once.
    pub tenants_max: usize,
    /// Of these, connections of one tenant: as many commands as it runs at once.
    pub connections_per_tenant_max: usize,
    /// Connections of either role that wait to be accepted; who comes then is told to come later.
    pub accept_queue_max: usize,
    /// How long a connection may take to be made, from this end's side.
    pub connect_time_ms_max: u64,

    /// After so long without a packet from the peer it is asked for one.
    pub keep_alive_ms: u64,
    /// After so long without a packet from the peer the connection is lost. A peer that dies is noticed after at most
    /// this and [`keep_alive_ms`](Self::keep_alive_ms): 4.9 s, not 5, so that both come before 5 s with the delays of
    /// timers and threads.
    pub idle_ms_max: u64,

    /// How long a stranger may take to prove who it is. Its slot is kept for as long again when it fails: QUIC keeps the
    /// connection about as long, and it makes the bound on how many fail at once one on how many fail in a second.
    pub handshake_time_ms_max: u64,
    /// Handshakes at once from addresses that have not proved to be anybody's; who comes then has to (Retry).
    pub handshakes_unproved_max: usize,
    /// Handshakes at once from addresses that have proved it. As many again are for addresses that nodes came from before.
    pub handshakes_max: usize,
    /// Of these, handshakes from one prefix of addresses.
    pub handshakes_per_prefix_max: usize,
    /// How many bits of an IPv4 address make a prefix. All: neighbours of a node in its own network share no bound.
    pub prefix_v4_bits: u8,
    /// How many bits of an IPv6 address make a prefix: whoever has one address mostly has 2⁶⁴.
    pub prefix_v6_bits: u8,
    /// Bytes that a stranger may send in all before it has proved who it is, or joined.
    pub handshake_window_bytes: u32,
    /// Packets of one attempt to connect that are kept until it is looked at, in bytes. It is looked at at once.
    pub incoming_buffer_bytes_max: u64,
    /// The same, of all attempts.
    pub incoming_buffers_bytes_max: u64,
    /// Addresses of nodes that were here before, which keep room of their own while strangers flood this end; as many of
    /// tenants.
    pub familiar_max: usize,

    /// Streams that a peer may have open at once: channels, requests, transfers.
    pub streams_max: u32,
    /// Bytes of one stream that may have arrived and not been read: at 1 ms of round trip 4 GB/s, at 50 ms 80 MB/s.
    pub stream_window_bytes: u32,
    /// Bytes of all streams of a node that may have arrived and not been read. Sixteen streams that nobody reads take
    /// it all: who transfers reads what comes, and has fewer open at once.
    pub node_window_bytes: u32,
    /// Bytes of all streams of a tenant that may have arrived and not been read; and that were written for it and that it
    /// has not acknowledged.
    pub tenant_window_bytes: u32,
    /// Bytes that were written and that the peer has not acknowledged, of one connection. Bulk has to take less, by as many
    /// streams at once as stay below it with [`stream_window_bytes`](Self::stream_window_bytes) each: what comes first among
    /// what was written is of no use to what can't be written.
    pub send_window_bytes: u64,
    /// The largest datagram that is tried, in bytes of UDP payload: QUIC finds out what the way carries. The default fits
    /// Ethernet's jumbo frames and goes well beyond what others carry, but is no more than is quick: the kernel is handed
    /// ten datagrams at once, which together must be no more than one UDP payload can be, 65,507 bytes. With 6,600 bytes
    /// each nothing gets through; with 9,000 quinn hands over one at a time and takes 2.5 times as long.
    pub datagram_bytes_max: u16,
    /// How long the first byte of a stream, which says what it is, may take.
    pub stream_head_ms_max: u64,

    /// The longest frame of a channel.
    pub frame_bytes_max: u32,
    /// How long a frame may take from its first byte to its last.
    pub frame_time_ms_max: u64,
    /// Bytes of frames that were sent and that QUIC has not taken, of one channel. Who sends more waits.
    pub send_queue_bytes_max: u32,
    /// Channels that a peer may have open at once.
    pub channels_max: usize,

    /// Requests of a peer that wait to be looked at; what comes then is refused.
    pub requests_waiting_max: usize,
    /// The longest request.
    pub request_bytes_max: u32,
    /// The longest answer.
    pub answer_bytes_max: u32,
    /// How long a request's bytes, or its answer's, may take to come.
    pub request_time_ms_max: u64,

    /// How long joining, or renewing, may take. A stranger keeps the place of its handshake for so long.
    pub join_time_ms_max: u64,
}

impl WireLimits {
    /// The defaults.
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
        tenant_window_bytes: 4 << 20,
        send_window_bytes: 64 << 20,
        datagram_bytes_max: 6_500,
        stream_head_ms_max: 5_000,
        frame_bytes_max: 1 << 20,
        frame_time_ms_max: 30_000,
        send_queue_bytes_max: 2 << 20,
        channels_max: 16,
        requests_waiting_max: 64,
        request_bytes_max: 1 << 20,
        answer_bytes_max: 1 << 20,
        request_time_ms_max: 10_000,
        join_time_ms_max: 5_000,
    };

    /// Whether each is one that can be kept, and they fit each other.
    ///
    /// # Errors
    /// Names the first that can't, and what it may be.
    pub fn check(&self) -> Result<(), String> {
        const SECONDS: u64 = 1000;
        let count = |value: usize| value as u64;
        let (bytes, window) = (u64::from(self.frame_bytes_max), u64::from(self.stream_window_bytes));
        let bounds = [
            ("nodes_max", count(self.nodes_max), 1, 1 << 20),
            ("tenants_max", count(self.tenants_max), 1, 1 << 20),
            ("connections_per_tenant_max", count(self.connections_per_tenant_max), 1, 1 << 20),
            ("accept_queue_max", count(self.accept_queue_max), 1, 1 << 16),
            ("connect_time_ms_max", self.connect_time_ms_max, 1, 600 * SECONDS),
            ("keep_alive_ms", self.keep_alive_ms, 10, self.idle_ms_max / 2),
            ("idle_ms_max", self.idle_ms_max, 100, 600 * SECONDS),
            ("handshake_time_ms_max", self.handshake_time_ms_max, 100, 60 * SECONDS),
            ("handshakes_unproved_max", count(self.handshakes_unproved_max), 0, 1 << 16),
            ("handshakes_max", count(self.handshakes_max), 1, 1 << 16),
            ("handshakes_per_prefix_max", count(self.handshakes_per_prefix_max), 1, count(self.handshakes_max)),
            ("prefix_v4_bits", u64::from(self.prefix_v4_bits), 1, 32),
            ("prefix_v6_bits", u64::from(self.prefix_v6_bits), 1, 128),
            ("handshake_window_bytes", u64::from(self.handshake_window_bytes), 16 << 10, 1 << 20),
            ("incoming_buffer_bytes_max", self.incoming_buffer_bytes_max, 0, self.incoming_buffers_bytes_max),
            ("incoming_buffers_bytes_max", self.incoming_buffers_bytes_max, 0, 1 << 30),
            ("familiar_max", count(self.familiar_max), 0, 1 << 20),
            ("streams_max", u64::from(self.streams_max), 4, 1 << 16),
            ("stream_window_bytes", window, 64 << 10, 1 << 30),
            ("node_window_bytes", u64::from(self.node_window_bytes), window, u64::from(u32::MAX)),
            ("tenant_window_bytes", u64::from(self.tenant_window_bytes), window, u64::from(u32::MAX)),
            ("send_window_bytes", self.send_window_bytes, window, 1 << 40),
            ("datagram_bytes_max", u64::from(self.datagram_bytes_max), 1_200, 65_527),
            ("stream_head_ms_max", self.stream_head_ms_max, 1, 600 * SECONDS),
            ("frame_bytes_max", bytes, 1, 256 << 20),
            ("frame_time_ms_max", self.frame_time_ms_max, 1, 3600 * SECONDS),
            ("send_queue_bytes_max", u64::from(self.send_queue_bytes_max), bytes + 4, 1 << 29),
            ("channels_max", count(self.channels_max), 1, u64::from(self.streams_max)),
            ("requests_waiting_max", count(self.requests_waiting_max), 1, 1 << 16),
            ("request_bytes_max", u64::from(self.request_bytes_max), 1, 256 << 20),
            ("answer_bytes_max", u64::from(self.answer_bytes_max), 1, 256 << 20),
            ("request_time_ms_max", self.request_time_ms_max, 1, 3600 * SECONDS),
            ("join_time_ms_max", self.join_time_ms_max, 1, 60 * SECONDS),
        ];
        match bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            None => Ok(()),
            Some((name, value, least, most)) => Err(format!("`wire.{name}` is {value}, not from {least} to {most}")),
        }
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
        for (change, wanted) in cases {
            let mut limits = WireLimits::default();
            change(&mut limits);
            assert_eq!(limits.check().err().as_deref(), wanted);
        }
    }

    #[test]
    fn a_dead_peer_is_noticed_within_5_s() {
        let limits = WireLimits::default();
        assert!(limits.keep_alive_ms + limits.idle_ms_max < 5_000);
    }
}
