//! Every bound of transfers.

use sandbar_core::LimitError;

use super::layout::{BLOCK_GROUPS, GROUP_BYTES};

/// Limits of transfers. Every length, queue and wait has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferLimits {
    /// Maximum bytes of a fetched object.
    pub object_bytes_max: u64,
    /// Maximum bytes of a piece, the unit of requests: whole groups of 64 KiB, at most a block of 16 MiB.
    pub piece_bytes_max: u64,
    /// Maximum concurrent pieces requested from one holder. Fewer are requested unless the bandwidth-delay product
    /// needs them.
    pub pieces_in_flight_max: usize,
    /// Maximum concurrent holders of one fetch. Others are used when one of these fails.
    pub holders_max: usize,
    /// Maximum consecutive reconnects to one holder of a fetch.
    pub reconnects_max: u32,
    /// Maximum time to connect to a holder, in milliseconds.
    pub connect_ms_max: u64,
    /// Time after which a holder with requested pieces is dropped if it has sent neither
    /// [`stall_bytes_min`](Self::stall_bytes_min) nor the end of a piece, in milliseconds.
    pub stall_ms_max: u64,
    /// See [`stall_ms_max`](Self::stall_ms_max).
    pub stall_bytes_min: u64,
    /// Maximum time that a holder may keep answering that it has nothing yet, in milliseconds.
    pub idle_ms_max: u64,
    /// Pause before the next request to a holder that has nothing yet or is busy, in milliseconds.
    pub rest_ms: u64,

    /// Maximum bytes of a request.
    pub request_bytes_max: usize,
    /// Maximum time for a request to arrive, in milliseconds.
    pub request_ms_max: u64,
    /// Maximum concurrent requests of one peer. Further streams are accepted only afterwards.
    pub responses_per_peer_max: usize,
    /// Maximum bytes being handed to QUIC, for all peers.
    pub sending_bytes_max: u64,
    /// Maximum bytes being handed to QUIC for one peer, so that none monopolises the total.
    pub sending_peer_bytes_max: u64,
    /// Maximum time that an answer waits for groups still being fetched, in milliseconds. Must be less than the peer's
    /// [`stall_ms_max`](Self::stall_ms_max).
    pub wait_ms_max: u64,
    /// Maximum bytes of cached hash trees. A tree has 32 bytes for each 64 KiB of its object.
    pub trees_bytes_max: u64,
    /// Maximum hash trees computed concurrently, each on one thread.
    pub tree_builds_max: usize,

    /// Maximum bytes of an object in a request for small objects.
    pub small_bytes_max: u64,
    /// Maximum objects of one request for small objects.
    pub small_objects_max: usize,
    /// Maximum total bytes of one request for small objects.
    pub small_request_bytes_max: u64,
    /// Maximum concurrent requests of one fetch of small objects.
    pub small_requests_max: usize,

    /// Maximum fetches that wait for memory.
    pub waiting_max: usize,
    /// Link rate above which nothing is compressed, in bytes a second: the processor is the bottleneck there.
    pub compress_below_bytes_per_s: u64,
}

impl Default for TransferLimits {
    fn default() -> Self {
        TransferLimits {
            object_bytes_max: 256 << 30,
            piece_bytes_max: 1 << 20,
            pieces_in_flight_max: 64,
            holders_max: 8,
            reconnects_max: 3,
            connect_ms_max: 5_000,
            stall_ms_max: 5_000,
            stall_bytes_min: 64 << 10,
            idle_ms_max: 30_000,
            rest_ms: 20,
            request_bytes_max: 64 << 10,
            request_ms_max: 5_000,
            responses_per_peer_max: 64,
            sending_bytes_max: 256 << 20,
            sending_peer_bytes_max: 32 << 20,
            wait_ms_max: 2_000,
            trees_bytes_max: 64 << 20,
            tree_builds_max: 2,
            small_bytes_max: 64 << 10,
            small_objects_max: 1024,
            small_request_bytes_max: 2 << 20,
            small_requests_max: 4,
            waiting_max: 100_000,
            compress_below_bytes_per_s: 100_000_000,
        }
    }
}

impl TransferLimits {
    /// Checks each limit against its range.
    ///
    /// # Errors
    /// The first limit out of its range.
    pub fn check(&self) -> Result<(), LimitError> {
        let block = BLOCK_GROUPS as u64 * GROUP_BYTES;
        LimitError::check([
            ("object_bytes_max", self.object_bytes_max, 1..=256 << 40),
            ("piece_bytes_max", self.piece_bytes_max, GROUP_BYTES..=block),
            ("pieces_in_flight_max", self.pieces_in_flight_max as u64, 1..=1024),
            ("holders_max", self.holders_max as u64, 1..=1024),
            ("stall_ms_max", self.stall_ms_max, 1..=3_600_000),
            ("wait_ms_max", self.wait_ms_max, 0..=self.stall_ms_max),
            ("request_bytes_max", self.request_bytes_max as u64, 64..=16 << 20),
            ("responses_per_peer_max", self.responses_per_peer_max as u64, 1..=1 << 20),
            ("sending_peer_bytes_max", self.sending_peer_bytes_max, block..=u64::from(u32::MAX)),
            ("sending_bytes_max", self.sending_bytes_max, self.sending_peer_bytes_max..=u64::from(u32::MAX)),
            ("tree_builds_max", self.tree_builds_max as u64, 1..=1024),
            ("small_bytes_max", self.small_bytes_max, 0..=GROUP_BYTES),
            ("small_objects_max", self.small_objects_max as u64, 1..=self.request_bytes_max as u64 / 50),
            (
                "small_request_bytes_max",
                self.small_request_bytes_max,
                self.small_bytes_max..=self.sending_peer_bytes_max,
            ),
            ("small_requests_max", self.small_requests_max as u64, 1..=1024),
        ])
    }

    /// Returns the groups of a piece.
    pub(crate) fn piece_groups(&self) -> u32 {
        u32::try_from(self.piece_bytes_max / GROUP_BYTES).unwrap_or(BLOCK_GROUPS).clamp(1, BLOCK_GROUPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_can_be_kept() {
        assert_eq!(TransferLimits::default().check(), Ok(()));
    }

    #[test]
    fn invalid_limits_are_named() {
        let wrong = TransferLimits { piece_bytes_max: 1, ..TransferLimits::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("`piece_bytes_max` is 1"));
    }
}
