//! The transfer protocol on one stream.
//!
//! A stream consists of [`TRANSFER_STREAM`], one [`TransferRequest`] in postcard, and the end. Integers below are
//! little-endian.
//!
//! The answer to [`TransferRequest::Piece`] begins with a status byte: [`FOUND`], or a [`Refusal`] and the end. Then
//! follow the requested hash lists, 32 bytes for each hash: those of all blocks, those of the groups of the piece's
//! block. Then follow frames until all groups of the piece are sent, and the end. A frame is a [`FrameHead`] and as
//! many bytes as it states: the next groups, in the stated encoding.
//!
//! The answer to [`TransferRequest::Small`] contains for each object, in order, [`FOUND`] and the announced number of
//! bytes, or a refusal; then the end.

use sandbar_core::ObjectId;
use serde::{Deserialize, Serialize};

use super::codec::Codec;
use super::layout::Groups;
use super::{HolderError, Priority, RootHash, TransferLimits};
use crate::encoding::AlwaysEncodes;

/// First byte of a transfer stream.
pub const TRANSFER_STREAM: u8 = b't';

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TransferRequest {
    Piece(PieceRequest),
    Small { priority: Priority, objects: Vec<SmallRequest> },
}

/// A request for groups of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PieceRequest {
    /// The peer's fetch. Pieces of one fetch are sent in order.
    pub(crate) fetch: u32,
    pub(crate) object: ObjectId,
    pub(crate) bytes: u64,
    pub(crate) root: RootHash,
    /// At least one group, all in one block.
    pub(crate) groups: Groups,
    /// Whether the hashes of blocks are requested (`wants_blocks`), and those of the block's groups (`wants_groups`).
    pub(crate) wants_blocks: bool,
    pub(crate) wants_groups: bool,
    pub(crate) priority: Priority,
    /// Recently measured goodput from this holder, in bytes a second. Zero if unknown, or to disable compression.
    pub(crate) goodput: u64,
}

/// An object in a request for small objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SmallRequest {
    pub(crate) object: ObjectId,
    pub(crate) bytes: u32,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    /// The data is still being fetched.
    NotYet,
    /// The object has this many bytes.
    OtherLength(u64),
    OtherRoot,
    /// The request is invalid.
    Malformed,
    Failed,
}

pub(crate) const FOUND: u8 = 0;
const NOT_FOUND: u8 = 1;
const NOT_YET: u8 = 2;
const OTHER_LENGTH: u8 = 3;
const OTHER_ROOT: u8 = 4;
const MALFORMED: u8 = 5;
const FAILED: u8 = 6;
/// Returns the number of bytes that follow a status byte.
pub(crate) fn refusal_len(status: u8) -> usize {
    if status == OTHER_LENGTH { 8 } else { 0 }
}

impl Refusal {
    pub(crate) fn write(self, to: &mut Vec<u8>) {
        to.push(match self {
            Refusal::NotFound => NOT_FOUND,
            Refusal::NotYet => NOT_YET,
            Refusal::OtherLength(_) => OTHER_LENGTH,
            Refusal::OtherRoot => OTHER_ROOT,
            Refusal::Malformed => MALFORMED,
            Refusal::Failed => FAILED,
        });
        if let Refusal::OtherLength(bytes) = self {
            to.extend_from_slice(&bytes.to_le_bytes());
        }
    }

    /// Decodes a status byte and the bytes after it.
    pub(crate) fn read(status: u8, rest: [u8; 8]) -> Option<Refusal> {
        Some(match status {
            NOT_FOUND => Refusal::NotFound,
            NOT_YET => Refusal::NotYet,
            OTHER_LENGTH => Refusal::OtherLength(u64::from_le_bytes(rest)),
            OTHER_ROOT => Refusal::OtherRoot,
            MALFORMED => Refusal::Malformed,
            FAILED => Refusal::Failed,
            _ => return None,
        })
    }

    /// Returns the holder's error; `None` if the request may be repeated.
    pub(crate) fn error(self, announced: u64) -> Option<HolderError> {
        match self {
            Refusal::NotYet => None,
            Refusal::NotFound => Some(HolderError::NotFound),
            // Equal lengths are no reason to refuse.
            Refusal::OtherLength(actual) if actual == announced => {
                Some(HolderError::Protocol("it reports another length that is equal"))
            }
            Refusal::OtherLength(actual) => Some(HolderError::OtherLength { announced, actual }),
            Refusal::OtherRoot => Some(HolderError::OtherRoot),
            Refusal::Malformed => Some(HolderError::Protocol("it rejected the request as malformed")),
            Refusal::Failed => Some(HolderError::Failed),
        }
    }
}

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) codec: Codec,
    /// Number of groups, at least one.
    pub(crate) groups: u16,
    /// Bytes that follow.
    pub(crate) len: u32,
}

/// Marks a refusal in place of a codec.
const REFUSAL: u8 = 255;
pub(crate) const FRAME_HEAD_LEN: usize = 7;

impl FrameHead {
    pub(crate) fn write(self) -> [u8; FRAME_HEAD_LEN] {
        let ([a, b], [c, d, e, f]) = (self.groups.to_le_bytes(), self.len.to_le_bytes());
        [self.codec as u8, a, b, c, d, e, f]
    }

    /// Encodes that no further frame follows, and why.
    pub(crate) fn write_refusal(refusal: Refusal) -> [u8; FRAME_HEAD_LEN] {
        let mut status = Vec::new();
        refusal.write(&mut status);
        [REFUSAL, status[0], 0, 0, 0, 0, 0]
    }

    /// Decodes a frame header or a refusal; `None` if it is neither.
    pub(crate) fn read(head: [u8; FRAME_HEAD_LEN]) -> Option<Result<FrameHead, Refusal>> {
        let [codec, a, b, c, d, e, f] = head;
        if codec == REFUSAL {
            return Refusal::read(a, [0; 8]).map(Err);
        }
        let (groups, len) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        Some(Ok(FrameHead { codec: Codec::from_number(codec)?, groups, len }))
    }
}

impl AlwaysEncodes for TransferRequest {}

impl TransferRequest {
    pub(crate) fn write(&self) -> Vec<u8> {
        self.encode_after(vec![TRANSFER_STREAM])
    }

    /// Decodes a request without the stream's first byte; `None` if it is invalid or exceeds the limits.
    pub(crate) fn read(bytes: &[u8], limits: &TransferLimits) -> Option<TransferRequest> {
        let (request, rest) = postcard::take_from_bytes::<TransferRequest>(bytes).ok()?;
        let is_bounded = match &request {
            TransferRequest::Piece(_) => true,
            TransferRequest::Small { objects, .. } => {
                let bytes: u64 = objects.iter().map(|small| u64::from(small.bytes)).sum();
                let is_small = |small: &SmallRequest| u64::from(small.bytes) <= limits.small_bytes_max;
                objects.len() <= limits.small_objects_max
                    && bytes <= limits.small_request_bytes_max
                    && objects.iter().all(is_small)
            }
        };
        (rest.is_empty() && is_bounded).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: &TransferRequest) -> Option<TransferRequest> {
        TransferRequest::read(&request.write()[1..], &TransferLimits::default())
    }

    #[test]
    fn requests_come_back() {
        let (object, root) = (ObjectId(7), RootHash([3; 32]));
        let (wants_blocks, wants_groups, priority) = (true, false, Priority::Argument);
        let piece = PieceRequest {
            fetch: 2,
            object,
            bytes: 1 << 40,
            root,
            groups: 3..9,
            wants_blocks,
            wants_groups,
            priority,
            goodput: 5,
        };
        let small =
            |bytes, count| TransferRequest::Small { priority, objects: vec![SmallRequest { object, bytes }; count] };
        for request in [TransferRequest::Piece(piece), small(0, 0), small(10 << 10, 100)] {
            assert_eq!(request.write()[0], TRANSFER_STREAM);
            assert_eq!(read(&request), Some(request));
        }
        for (bytes, count) in [(65 << 10, 1), (1, 1025), (64 << 10, 100)] {
            assert_eq!(read(&small(bytes, count)), None, "{count} of {bytes} bytes");
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let limits = TransferLimits::default();
        let whole = TransferRequest::Small { priority: Priority::Get, objects: vec![] }.write();
        for bytes in [&[][..], &[7], &[1, 2, 255, 255, 255, 255, 15], &[&whole[1..], &[0]].concat()] {
            assert_eq!(TransferRequest::read(bytes, &limits), None, "{bytes:?}");
        }
    }

    #[test]
    fn refusals_and_heads_come_back() {
        use Refusal::{Failed, Malformed, NotFound, NotYet, OtherLength, OtherRoot};
        for refusal in [NotFound, NotYet, OtherLength(1 << 40), OtherRoot, Malformed, Failed] {
            let mut bytes = Vec::new();
            refusal.write(&mut bytes);
            let mut rest = [0; 8];
            rest[..bytes.len() - 1].copy_from_slice(&bytes[1..]);
            assert_eq!((refusal_len(bytes[0]), Refusal::read(bytes[0], rest)), (bytes.len() - 1, Some(refusal)));
        }
        assert_eq!(Refusal::read(FOUND, [0; 8]), None);
        let head = FrameHead { codec: Codec::Zstd, groups: 300, len: 70_000 };
        assert_eq!(FrameHead::read(head.write()), Some(Ok(head)));
        assert_eq!(FrameHead::read(FrameHead::write_refusal(NotYet)), Some(Err(NotYet)));
        assert_eq!(FrameHead::read([9; FRAME_HEAD_LEN]), None);
    }
}
