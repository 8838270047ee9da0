//! Every bound of a transfer, in one place.

use super::layout::{BLOCK_GROUPS, GROUP_BYTES};

/// What transfers may use. Every length, queue and wait is bounded by one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferLimits {
    /// Bytes of an object that is fetched.
    pub object_bytes_max: u64,
    /// Bytes that are asked for at once: whole groups of 64 KiB, at most a block of 16 MiB.
    pub piece_bytes_max: u64,
    /// Pieces that one holder is asked for at once, where round trips are so long and the link so wide that it takes
    /// them; else fewer.
    pub pieces_in_flight_max: usize,
    /// Holders that an object is fetched from at once; others wait until one of these is given up.
    pub holders_max: usize,
    /// How often a holder's connection is made again, for one object.
    pub reconnects_max: u32,
    /// How long making a connection may take.
    pub connect_ms_max: u64,
    /// A holder that is asked for something and in so long sends neither [`stall_bytes_min`](Self::stall_bytes_min)
    /// nor the end of a piece is given up.
    pub stall_ms_max: u64,
    /// See [`stall_ms_max`](Self::stall_ms_max).
    pub stall_bytes_min: u64,
    /// How long a holder may answer that it has nothing yet, one time after another.
    pub idle_ms_max: u64,
    /// How long a holder that has nothing yet, or is busy, is left alone.
    pub rest_ms: u64,

    /// Bytes of a request.
    pub request_bytes_max: usize,
    /// How long a peer may take to send a request.
    pub request_ms_max: u64,
    /// Requests of one peer that are answered at once; further streams are not accepted meanwhile.
    pub answers_per_peer_max: usize,
    /// Bytes that are being handed to QUIC at once, for all peers.
    pub sending_bytes_max: u64,
    /// Bytes that are being handed to QUIC at once, for one peer, so that none takes all.
    pub sending_peer_bytes_max: u64,
    /// How long an answer waits for bytes that are still to come, before it says so. Less than the peer's
    /// [`stall_ms_max`](Self::stall_ms_max).
    pub wait_ms_max: u64,
    /// Bytes of hash trees that are kept: 32 for each 64 KiB of an object.
    pub trees_bytes_max: u64,
    /// Hash trees that are made at once, each by a thread.
    pub trees_made_max: usize,

    /// Bytes of an object that may be fetched together with others.
    pub small_bytes_max: u64,
    /// Objects that are asked for by one request.
    pub small_objects_max: usize,
    /// Bytes that are asked for by one request for small objects.
    pub small_request_bytes_max: u64,
    /// Requests for small objects that one fetch has open at once.
    pub small_requests_max: usize,

    /// Fetches that wait for memory.
    pub waiting_max: usize,
    /// Links of more than so many bytes a second are never compressed for: the processor is the limit there.
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
            answers_per_peer_max: 64,
            sending_bytes_max: 256 << 20,
            sending_peer_bytes_max: 32 << 20,
            wait_ms_max: 2_000,
            trees_bytes_max: 64 << 20,
            trees_made_max: 2,
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
    /// Whether each is one that can be kept.
    ///
    /// # Errors
    /// Names the first that can't, and what it may be.
    pub fn check(&self) -> Result<(), String> {
        let block = BLOCK_GROUPS as u64 * GROUP_BYTES;
        let bounds = [
            ("object_bytes_max", self.object_bytes_max, 1, 256 << 40),
            ("piece_bytes_max", self.piece_bytes_max, GROUP_BYTES, block),
            ("pieces_in_flight_max", self.pieces_in_flight_max as u64, 1, 1024),
            ("holders_max", self.holders_max as u64, 1, 1024),
            ("stall_ms_max", self.stall_ms_max, 1, 3_600_000),
            ("wait_ms_max", self.wait_ms_max, 0, self.stall_ms_max),
            ("request_bytes_max", self.request_bytes_max as u64, 64, 16 << 20),
            ("answers_per_peer_max", self.answers_per_peer_max as u64, 1, 1 << 20),
            ("sending_peer_bytes_max", self.sending_peer_bytes_max, block, u64::from(u32::MAX)),
            ("sending_bytes_max", self.sending_bytes_max, self.sending_peer_bytes_max, u64::from(u32::MAX)),
            ("trees_made_max", self.trees_made_max as u64, 1, 1024),
            ("small_bytes_max", self.small_bytes_max, 0, GROUP_BYTES),
            ("small_objects_max", self.small_objects_max as u64, 1, self.request_bytes_max as u64 / 50),
            (
                "small_request_bytes_max",
                self.small_request_bytes_max,
                self.small_bytes_max,
                self.sending_peer_bytes_max,
            ),
            ("small_requests_max", self.small_requests_max as u64, 1, 1024),
        ];
        match bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            None => Ok(()),
            Some((name, value, least, most)) => Err(format!("`{name}` is {value}, not from {least} to {most}")),
        }
    }

    /// Groups that are asked for at once.
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
    fn what_cannot_be_kept_is_named() {
        let wrong = TransferLimits { piece_bytes_max: 1, ..TransferLimits::default() };
        assert!(wrong.check().unwrap_err().contains("`piece_bytes_max` is 1"));
    }
}
