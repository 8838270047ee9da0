//! Frames out of a stream of bytes, in whatever pieces these come.

use bytes::{Buf, Bytes, BytesMut};

/// Before each frame: its length, the least byte first.
pub(super) const HEAD_BYTES: usize = 4;
/// More than this is given back when it is not used any more, in bytes.
const KEPT_BYTES: usize = 128 << 10;

/// What has come of a channel and is no frame yet. It grows by what comes, never by a length; and it is copied in and out:
/// a byte of a datagram would keep the datagram, and a small frame those that came with it.
#[derive(Debug, Default)]
pub(super) struct Unframe {
    held: BytesMut,
}

/// A length over the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Oversized(pub u32);

impl Unframe {
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.held.extend_from_slice(piece);
    }

    /// Whether there is a part of a frame.
    pub(super) fn is_within(&self) -> bool {
        !self.held.is_empty()
    }

    /// The next frame, if it is there.
    pub(super) fn next(&mut self, bytes_max: u32) -> Result<Option<Bytes>, Oversized> {
        let Some((head, rest)) = self.held.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head);
        if length > bytes_max {
            return Err(Oversized(length));
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

    /// Whatever the pieces are, the frames are the same.
    fn check(stream: &[u8], wanted: &[&[u8]]) {
        for piece in 1..=stream.len().max(1) {
            let (mut unframe, mut got) = (Unframe::default(), Vec::new());
            for piece in stream.chunks(piece) {
                unframe.push(piece);
                while let Some(frame) = unframe.next(64).unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, wanted, "in pieces of {piece}");
            assert!(!unframe.is_within(), "in pieces of {piece}");
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
        for (head, wanted) in [
            (64, Ok(None)),
            (65, Err(Oversized(65))),
            (u32::MAX, Err(Oversized(u32::MAX))),
            (0, Ok(Some(Bytes::new()))),
        ] {
            let mut unframe = Unframe::default();
            unframe.push(&u32::to_le_bytes(head));
            assert_eq!(unframe.next(64), wanted, "{head}");
        }
    }

    /// Bytes at random in pieces at random, beside a reader that has all of them at once. `SANDBAR_SEED` is one case alone.
    #[test]
    fn nonsense_is_read_the_same_in_any_pieces() {
        use rand_xoshiro::rand_core::{RngCore, SeedableRng};
        let asked_for = std::env::var("SANDBAR_SEED").ok().and_then(|text| text.parse::<u64>().ok());
        for seed in asked_for.map_or(0..5_000, |seed| seed..seed + 1) {
            let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut bytes = vec![0; random.next_u32() as usize % 400];
            random.fill_bytes(&mut bytes);
            // Heads that mostly say little, so that there are frames.
            bytes
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| at % 5 != 0)
                .for_each(|(_, byte)| *byte = byte.saturating_sub(230));
            let (mut whole, mut pieces) = (Unframe::default(), Unframe::default());
            let (mut wanted, mut got) = (Vec::new(), Vec::new());
            whole.push(&bytes);
            read_all(&mut whole, &mut wanted);
            let mut rest = &bytes[..];
            while !rest.is_empty() && !got.last().is_some_and(Result::is_err) {
                let (piece, later) = rest.split_at(1 + random.next_u32() as usize % rest.len());
                rest = later;
                pieces.push(piece);
                read_all(&mut pieces, &mut got);
            }
            assert_eq!(got, wanted, "SANDBAR_SEED={seed} replays it");
        }
    }

    /// Up to the first error.
    fn read_all(unframe: &mut Unframe, to: &mut Vec<Result<Bytes, Oversized>>) {
        while let Some(next) = unframe.next(64).transpose() {
            let is_over = next.is_err();
            to.push(next);
            if is_over {
                break;
            }
        }
    }
}
