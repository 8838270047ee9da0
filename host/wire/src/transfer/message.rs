//! What is said on a stream.
//!
//! A stream begins with [`TRANSFER_STREAM`]; then comes one [`Request`] as postcard, then the end. Numbers below are
//! little-endian.
//!
//! The answer to [`Request::Piece`] is a byte: [`HERE`], or a [`Refusal`] and the end. Then the lists that were asked for:
//! the hashes of all blocks, the hashes of the groups of the piece's block, 32 bytes each. Then frames, until all groups
//! of the piece were sent, and the end. A frame is a [`FrameHead`] and as many bytes as it says: the next groups, in the
//! form that it names.
//!
//! The answer to [`Request::Small`] is, for each object in its place, a byte: [`HERE`] and as many bytes as were announced,
//! or a refusal. Then comes the end.

use sandbar_core::ObjectId;
use serde::{Deserialize, Serialize};

use super::codec::Codec;
use super::layout::Groups;
use super::{HolderError, Priority, Root, TransferLimits};

/// The first byte of a stream that asks for objects.
pub const TRANSFER_STREAM: u8 = b't';

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    Piece(PieceRequest),
    Small { priority: Priority, objects: Vec<SmallRequest> },
}

/// Some groups of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PieceRequest {
    /// Which of the peer's fetches wants them: its pieces are sent one after another.
    pub(crate) fetch: u32,
    pub(crate) object: ObjectId,
    pub(crate) bytes: u64,
    pub(crate) root: Root,
    /// At least one, all in one block.
    pub(crate) groups: Groups,
    /// Whether the hashes of blocks are wanted, and those of the block's groups.
    pub(crate) wants_blocks: bool,
    pub(crate) wants_groups: bool,
    pub(crate) priority: Priority,
    /// Bytes a second that came from this holder over the link lately; zero when it is not known, or when nothing is to
    /// be compressed.
    pub(crate) goodput: u64,
}

/// An object that is fetched together with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SmallRequest {
    pub(crate) object: ObjectId,
    pub(crate) bytes: u32,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotHere,
    /// It is still to come.
    NotYet,
    /// It has as many bytes.
    OtherLength(u64),
    OtherRoot,
    /// The request can't be meant.
    Malformed,
    Failed,
}

pub(crate) const HERE: u8 = 0;
const NOT_HERE: u8 = 1;
const NOT_YET: u8 = 2;
const OTHER_LENGTH: u8 = 3;
const OTHER_ROOT: u8 = 4;
const MALFORMED: u8 = 5;
const FAILED: u8 = 6;
/// How many bytes follow this one.
pub(crate) fn refusal_len(status: u8) -> usize {
    if status == OTHER_LENGTH { 8 } else { 0 }
}

impl Refusal {
    pub(crate) fn write(self, to: &mut Vec<u8>) {
        to.push(match self {
            Refusal::NotHere => NOT_HERE,
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

    /// From a status and what follows it.
    pub(crate) fn read(status: u8, rest: [u8; 8]) -> Option<Refusal> {
        Some(match status {
            NOT_HERE => Refusal::NotHere,
            NOT_YET => Refusal::NotYet,
            OTHER_LENGTH => Refusal::OtherLength(u64::from_le_bytes(rest)),
            OTHER_ROOT => Refusal::OtherRoot,
            MALFORMED => Refusal::Malformed,
            FAILED => Refusal::Failed,
            _ => return None,
        })
    }

    /// What is wrong with a holder that says so; nothing when it may be asked again.
    pub(crate) fn error(self, said: u64) -> Option<HolderError> {
        match self {
            Refusal::NotYet => None,
            Refusal::NotHere => Some(HolderError::NotHere),
            // It would be no reason to refuse.
            Refusal::OtherLength(is) if is == said => Some(HolderError::Protocol("another length that is the same")),
            Refusal::OtherLength(is) => Some(HolderError::OtherLength { said, is }),
            Refusal::OtherRoot => Some(HolderError::OtherRoot),
            Refusal::Malformed => Some(HolderError::Protocol("it can't read requests")),
            Refusal::Failed => Some(HolderError::Failed),
        }
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) codec: Codec,
    /// How many groups, at least one.
    pub(crate) groups: u16,
    /// Bytes that follow.
    pub(crate) len: u32,
}

/// In place of a codec: what was to come did not.
const INSTEAD: u8 = 255;
pub(crate) const FRAME_HEAD_LEN: usize = 7;

impl FrameHead {
    pub(crate) fn write(self) -> [u8; FRAME_HEAD_LEN] {
        let ([a, b], [c, d, e, f]) = (self.groups.to_le_bytes(), self.len.to_le_bytes());
        [self.codec as u8, a, b, c, d, e, f]
    }

    /// That there is no further frame, and why.
    pub(crate) fn write_instead(refusal: Refusal) -> [u8; FRAME_HEAD_LEN] {
        let mut status = Vec::new();
        refusal.write(&mut status);
        [INSTEAD, status[0], 0, 0, 0, 0, 0]
    }

    /// A frame, or why there is none; nothing when it is neither.
    pub(crate) fn read(head: [u8; FRAME_HEAD_LEN]) -> Option<Result<FrameHead, Refusal>> {
        let [codec, a, b, c, d, e, f] = head;
        if codec == INSTEAD {
            return Refusal::read(a, [0; 8]).map(Err);
        }
        let (groups, len) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        Some(Ok(FrameHead { codec: Codec::of(codec)?, groups, len }))
    }
}

impl Request {
    pub(crate) fn write(&self) -> Vec<u8> {
        // Writing to a growing vector can't fail, and these types have no form that can't be written.
        postcard::to_extend(self, vec![TRANSFER_STREAM]).unwrap_or_default()
    }

    /// What stands behind the stream's first byte; nothing when it is no request, or one for more than may be asked for.
    pub(crate) fn read(bytes: &[u8], limits: &TransferLimits) -> Option<Request> {
        let (request, rest) = postcard::take_from_bytes::<Request>(bytes).ok()?;
        let is_bounded = match &request {
            Request::Piece(_) => true,
            Request::Small { objects, .. } => {
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

    fn read(request: &Request) -> Option<Request> {
        Request::read(&request.write()[1..], &TransferLimits::default())
    }

    #[test]
    fn requests_come_back() {
        let (object, root) = (ObjectId(7), Root([3; 32]));
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
        let small = |bytes, count| Request::Small { priority, objects: vec![SmallRequest { object, bytes }; count] };
        for request in [Request::Piece(piece), small(0, 0), small(10 << 10, 100)] {
            assert_eq!(request.write()[0], TRANSFER_STREAM);
            assert_eq!(read(&request), Some(request));
        }
        for (bytes, count) in [(65 << 10, 1), (1, 1025), (64 << 10, 100)] {
            assert_eq!(read(&small(bytes, count)), None, "{count} of {bytes} bytes");
        }
    }

    #[test]
    fn what_is_no_request_is_none() {
        let limits = TransferLimits::default();
        let whole = Request::Small { priority: Priority::Get, objects: vec![] }.write();
        for bytes in [&[][..], &[7], &[1, 2, 255, 255, 255, 255, 15], &[&whole[1..], &[0]].concat()] {
            assert_eq!(Request::read(bytes, &limits), None, "{bytes:?}");
        }
    }

    #[test]
    fn refusals_and_heads_come_back() {
        use Refusal::{Failed, Malformed, NotHere, NotYet, OtherLength, OtherRoot};
        for refusal in [NotHere, NotYet, OtherLength(1 << 40), OtherRoot, Malformed, Failed] {
            let mut bytes = Vec::new();
            refusal.write(&mut bytes);
            let mut rest = [0; 8];
            rest[..bytes.len() - 1].copy_from_slice(&bytes[1..]);
            assert_eq!((refusal_len(bytes[0]), Refusal::read(bytes[0], rest)), (bytes.len() - 1, Some(refusal)));
        }
        assert_eq!(Refusal::read(HERE, [0; 8]), None);
        let head = FrameHead { codec: Codec::Zstd, groups: 300, len: 70_000 };
        assert_eq!(FrameHead::read(head.write()), Some(Ok(head)));
        assert_eq!(FrameHead::read(FrameHead::write_instead(NotYet)), Some(Err(NotYet)));
        assert_eq!(FrameHead::read([9; FRAME_HEAD_LEN]), None);
    }
}
