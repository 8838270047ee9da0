//! Decoding of frames from a byte stream that arrives in pieces of any size.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a frame's header: its length, little-endian.
pub(super) const HEAD_BYTES: usize = 4;
/// Buffer capacity above which an empty buffer is freed, in bytes.
const KEPT_BYTES: usize = 128 << 10;

/// Received bytes of a channel that are not a whole frame yet. The buffer grows with received bytes, never with an
/// announced length. Bytes are copied in and out: a slice would keep its whole datagram alive, and a small frame its
/// neighbours.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    held: BytesMut,
}

/// A frame length over the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FrameTooLong(pub u32);

impl FrameDecoder {
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.held.extend_from_slice(piece);
    }

    /// Returns whether a part of a frame is buffered.
    pub(super) fn is_within(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the next frame, if it is complete.
    pub(super) fn next(&mut self, bytes_max: u32) -> Result<Option<Bytes>, FrameTooLong> {
        let Some((head, rest)) = self.held.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head);
        if length > bytes_max {
            return Err(FrameTooLong(length));
        }
        let Some(frame) = rest.get(..length as usize) else { return Ok(None) };
        let frame = Bytes::copy_from_slice(frame);
        self.held.advance(HEAD_BYTES + frame.len());
        if self.held.is_empty() && self.held.capacity() > KEPT_BYTES {
            self.held = BytesMut::new();
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(frames: &[&[u8]]) -> Vec<u8> {
        frames.iter().flat_map(|frame| [&(frame.len() as u32).to_le_bytes(), *frame].concat()).collect()
    }

    /// Decodes the stream in pieces of every size and expects the same frames.
    fn check(stream: &[u8], expected: &[&[u8]]) {
        for piece in 1..=stream.len().max(1) {
            let (mut decoder, mut decoded) = (FrameDecoder::default(), Vec::new());
            for piece in stream.chunks(piece) {
                decoder.push(piece);
                while let Some(frame) = decoder.next(64).unwrap() {
                    decoded.push(frame);
                }
            }
            assert_eq!(decoded, expected, "in pieces of {piece}");
            assert!(!decoder.is_within(), "in pieces of {piece}");
        }
    }

    #[test]
    fn frames_come_out_whatever_the_pieces() {
        check(&[], &[]);
        let long = [7; 64];
        let frames: [&[u8]; 5] = [b"", b"a", &long, b"", b"bcd"];
        check(&framed(&frames), &frames);
    }

    #[test]
    fn a_length_over_the_limit_is_seen_before_its_bytes_come() {
        for (head, expected) in [
            (64, Ok(None)),
            (65, Err(FrameTooLong(65))),
            (u32::MAX, Err(FrameTooLong(u32::MAX))),
            (0, Ok(Some(Bytes::new()))),
        ] {
            let mut decoder = FrameDecoder::default();
            decoder.push(&u32::to_le_bytes(head));
            assert_eq!(decoder.next(64), expected, "{head}");
        }
    }

    /// Decodes random bytes in random pieces, and compares with a decoder that gets them at once. `SANDBAR_SEED` runs
    /// one case.
    #[test]
    fn nonsense_is_read_the_same_in_any_pieces() {
        use rand_xoshiro::rand_core::{RngCore, SeedableRng};
        use sandbar_seeds::{for_each_seed, seeds};
        for_each_seed(seeds(5_000), |seed| {
            let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut bytes = vec![0; random.next_u32() as usize % 400];
            random.fill_bytes(&mut bytes);
            // Mostly small length bytes, so that some frames are complete.
            bytes
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| at % 5 != 0)
                .for_each(|(_, byte)| *byte = byte.saturating_sub(230));
            let (mut whole, mut pieces) = (FrameDecoder::default(), FrameDecoder::default());
            let (mut expected, mut decoded) = (Vec::new(), Vec::new());
            whole.push(&bytes);
            read_all(&mut whole, &mut expected);
            let mut rest = &bytes[..];
            while !rest.is_empty() && !decoded.last().is_some_and(Result::is_err) {
                let (piece, later) = rest.split_at(1 + random.next_u32() as usize % rest.len());
                rest = later;
                pieces.push(piece);
                read_all(&mut pieces, &mut decoded);
            }
            assert_eq!(decoded, expected);
        });
    }

    /// Reads frames up to the first error.
    fn read_all(decoder: &mut FrameDecoder, to: &mut Vec<Result<Bytes, FrameTooLong>>) {
        while let Some(next) = decoder.next(64).transpose() {
            let is_over = next.is_err();
            to.push(next);
            if is_over {
                break;
            }
        }
    }
}
