//! Rings of frames in shared memory, each with one writer and one reader in two processes.
//!
//! Positions in a ring count bytes and wrap at 2³². A frame is its length (u32), 4 zero bytes, and its bytes, padded to
//! a multiple of 8. A frame that does not fit before the end of the memory is placed at its start, after a length of
//! [`SKIP`]. Two positions share one word, so that either side can change both atomically:
//!
//! - [`Sender`] to [`Receiver`]: `published | written`. Frames up to `published` belong to the reader. The writer can
//!   take back frames behind that position, and the reader can [claim](Receiver::claim_all) them.
//! - [`TaskSender`] to [`TaskReceiver`]: `taken | sent`. The reader takes one frame at a time; the writer can take back
//!   the frames that are left.
//!
//! The reader copies a frame before it reads it: the writer may be a process that a guest has taken over.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use sandbar_store::SharedMemory;

const HEAD_BYTES: usize = 8;
/// A length that means: continue at the start of the memory.
const SKIP: u32 = u32::MAX;

/// Location of a ring in shared memory.
#[derive(Debug, Clone)]
pub(super) struct RingMemory {
    pub memory: Arc<SharedMemory>,
    /// Word of its two positions, as an index of u64.
    pub word: usize,
    /// Word of the reader's position ([`Sender`] only), as an index of u64.
    pub read: usize,
    /// Offset and number of its bytes; the number is a power of two.
    pub at: usize,
    pub bytes: usize,
}

fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl RingMemory {
    fn word(&self) -> &AtomicU64 {
        self.memory.atomic(self.word)
    }

    fn offset(&self, position: u32) -> usize {
        position as usize & (self.bytes - 1)
    }

    /// Writes a frame at `end`, if there is room up to the read position. Returns the position after it.
    fn write(&self, end: u32, read: u32, frame: &[u8]) -> Option<u32> {
        let needs = HEAD_BYTES + frame.len().next_multiple_of(8);
        let before_end = self.bytes - self.offset(end);
        let skipped = if needs > before_end { before_end } else { 0 };
        let used = end.wrapping_sub(read) as usize;
        if used + skipped + needs > self.bytes {
            return None;
        }
        if skipped > 0 {
            self.memory.write(self.at + self.offset(end), &SKIP.to_le_bytes());
        }
        let start = end.wrapping_add(skipped as u32);
        let at = self.at + self.offset(start);
        self.memory.write(at, &(frame.len() as u32).to_le_bytes());
        self.memory.write(at + HEAD_BYTES, frame);
        Some(start.wrapping_add(needs as u32))
    }

    /// Copies the frame at `position`, of at most `left` bytes. Returns the position after it.
    fn copy(&self, position: u32, left: u32, to: &mut Vec<u8>) -> io::Result<u32> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a ring's frames are not where they should be");
        let length = |position: u32| {
            let mut bytes = [MaybeUninit::uninit(); 4];
            let read = self.memory.read(self.at + self.offset(position), &mut bytes);
            u32::from_le_bytes([read[0], read[1], read[2], read[3]])
        };
        // The other process may have written both positions.
        if !position.is_multiple_of(8) || left as usize > self.bytes {
            return Err(wrong());
        }
        let (mut start, mut left) = (position, left as usize);
        let mut len = length(start);
        if len == SKIP {
            let skipped = self.bytes - self.offset(start);
            left = left.checked_sub(skipped).ok_or_else(wrong)?;
            start = start.wrapping_add(skipped as u32);
            len = if left < HEAD_BYTES { SKIP } else { length(start) };
        }
        let needs = HEAD_BYTES + (len as usize).next_multiple_of(8);
        let before_end = self.bytes - self.offset(start);
        if len == SKIP || needs > left || needs > before_end {
            return Err(wrong());
        }
        to.clear();
        to.reserve(len as usize);
        self.memory.read(self.at + self.offset(start) + HEAD_BYTES, &mut to.spare_capacity_mut()[..len as usize]);
        // SAFETY: `read` has just initialised this many bytes.
        unsafe { to.set_len(len as usize) };
        Ok(start.wrapping_add(needs as u32))
    }
}

/// Writer of a ring that can take back its last frame.
#[derive(Debug)]
pub(super) struct Sender {
    ring: RingMemory,
    written: u32,
    published: u32,
    /// Whether the reader may claim unpublished frames.
    is_open: bool,
}

impl Sender {
    pub(super) fn new(ring: RingMemory) -> Sender {
        Sender { ring, written: 0, published: 0, is_open: true }
    }

    /// Creates a writer whose reader cannot see or claim unpublished frames.
    pub(super) fn closed(ring: RingMemory) -> Sender {
        Sender { is_open: false, ..Sender::new(ring) }
    }

    /// Writes a frame, which the reader sees after [`Sender::publish`] or after claiming it, together with all frames
    /// before it. Returns its position; `None` when the ring is full.
    pub(super) fn write(&mut self, frame: &[u8]) -> Option<u32> {
        let read = self.ring.memory.atomic(self.ring.read).load(Acquire) as u32;
        let start = self.written;
        let end = self.ring.write(start, read, frame)?;
        if self.is_open {
            self.update_positions(|published, _| (published, end));
        }
        self.written = end;
        Some(start)
    }

    /// Publishes all written frames.
    pub(super) fn publish(&mut self) {
        let written = self.written;
        if std::mem::replace(&mut self.published, written) != written {
            self.update_positions(|_, _| (written, written));
        }
    }

    /// Takes back the last frame, which starts at `start`, unless the reader may have it already.
    pub(super) fn take_back(&mut self, start: u32) -> bool {
        let word = self.ring.word();
        let before = word.load(Acquire);
        let (published, _) = unpack(before);
        // `published` is at or before `written`. It is before `start` if unpublished frames precede this one.
        let is_behind = (self.written.wrapping_sub(published)) >= self.written.wrapping_sub(start);
        let taken = is_behind && word.compare_exchange(before, pack(published, start), AcqRel, Acquire).is_ok();
        if taken {
            self.written = start;
        }
        taken
    }

    fn update_positions(&self, to: impl Fn(u32, u32) -> (u32, u32)) {
        let _ = self.ring.word().fetch_update(AcqRel, Acquire, |word| {
            let (published, written) = unpack(word);
            let (published, written) = to(published, written);
            Some(pack(published, written))
        });
    }
}

/// Reader of a ring with a [`Sender`].
#[derive(Debug)]
pub(super) struct Receiver {
    ring: RingMemory,
    read: u32,
}

impl Receiver {
    pub(super) fn new(ring: RingMemory) -> Receiver {
        Receiver { ring, read: 0 }
    }

    /// Returns whether a frame is available.
    pub(super) fn has_frame(&self) -> bool {
        unpack(self.ring.word().load(Acquire)).0 != self.read
    }

    /// Returns whether there are unpublished frames.
    pub(super) fn has_unpublished(&self) -> bool {
        let (published, written) = unpack(self.ring.word().load(Relaxed));
        published != written
    }

    /// Publishes all written frames, on the reader's side.
    pub(super) fn claim_all(&self) {
        let _ = self.ring.word().fetch_update(AcqRel, Acquire, |word| {
            let (_, written) = unpack(word);
            Some(pack(written, written))
        });
    }

    /// Reads the next frame into `frame`. Returns false if there is none.
    ///
    /// # Errors
    /// When the ring is corrupt.
    pub(super) fn next(&mut self, frame: &mut Vec<u8>) -> io::Result<bool> {
        let (published, _) = unpack(self.ring.word().load(Acquire));
        let left = published.wrapping_sub(self.read);
        if left == 0 {
            return Ok(false);
        }
        self.read = self.ring.copy(self.read, left, frame)?;
        self.ring.memory.atomic(self.ring.read).store(u64::from(self.read), Release);
        Ok(true)
    }
}

/// Writer of a ring that can take back all frames that the reader has not taken.
#[derive(Debug)]
pub(super) struct TaskSender {
    ring: RingMemory,
    sent: u32,
}

impl TaskSender {
    pub(super) fn new(ring: RingMemory) -> TaskSender {
        TaskSender { ring, sent: 0 }
    }

    /// Writes a frame. Returns the position of its end; `None` when the ring is full.
    pub(super) fn send(&mut self, frame: &[u8]) -> Option<u32> {
        let (taken, _) = unpack(self.ring.word().load(Acquire));
        let end = self.ring.write(self.sent, taken, frame)?;
        let _ = self.ring.word().fetch_update(AcqRel, Acquire, |word| Some(pack(unpack(word).0, end)));
        self.sent = end;
        Some(end)
    }

    /// Returns the position up to which the reader has taken frames.
    pub(super) fn taken(&self) -> u32 {
        unpack(self.ring.word().load(Acquire)).0
    }

    /// Takes back all frames that the reader has not taken: those that end behind the returned position.
    pub(super) fn take_back(&mut self) -> u32 {
        // Both positions advance, so that no position is reused while the reader copies a frame there.
        let sent = self.sent;
        let before = self.ring.word().swap(pack(sent, sent), AcqRel);
        unpack(before).0
    }
}

/// Reader of a ring with a [`TaskSender`].
#[derive(Debug)]
pub(super) struct TaskReceiver {
    ring: RingMemory,
}

impl TaskReceiver {
    pub(super) fn new(ring: RingMemory) -> TaskReceiver {
        TaskReceiver { ring }
    }

    /// Returns whether a frame is available.
    pub(super) fn has_frame(&self) -> bool {
        let (taken, sent) = unpack(self.ring.word().load(Acquire));
        taken != sent
    }

    /// Takes the next frame into `frame`. Returns false if there is none.
    ///
    /// # Errors
    /// When the ring is corrupt.
    pub(super) fn take(&mut self, frame: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let word = self.ring.word().load(Acquire);
            let (taken, sent) = unpack(word);
            if taken == sent {
                return Ok(false);
            }
            let copied = self.ring.copy(taken, sent.wrapping_sub(taken), frame);
            let next = *copied.as_ref().unwrap_or(&taken);
            if self.ring.word().compare_exchange(word, pack(next, sent), AcqRel, Acquire).is_ok() {
                return copied.map(|_| true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(bytes: usize) -> RingMemory {
        RingMemory { memory: Arc::new(SharedMemory::new(4096 + bytes).unwrap()), word: 0, read: 1, at: 4096, bytes }
    }

    fn frame(number: u32) -> Vec<u8> {
        let len = number.wrapping_mul(2_654_435_761) % 90;
        number.to_le_bytes().into_iter().chain((0..len).map(|at| (number + at) as u8)).collect()
    }

    #[test]
    fn frames_arrive_in_order_once_they_are_published() {
        let ring = ring(1024);
        let (mut sender, mut receiver) = (Sender::new(ring.clone()), Receiver::new(ring));
        let (mut sent, mut received, mut buffer) = (0, 0, Vec::new());
        for _ in 0..100_000 {
            if sender.write(&frame(sent)).is_some() {
                sent += 1;
                assert!(!receiver.next(&mut buffer).unwrap());
                if sent % 3 == 0 {
                    continue;
                }
            }
            assert!(receiver.has_unpublished() || !receiver.has_frame());
            if sent % 2 == 0 {
                sender.publish()
            } else {
                receiver.claim_all()
            }
            while receiver.next(&mut buffer).unwrap() {
                assert_eq!(buffer, frame(received));
                received += 1;
            }
            assert_eq!(sent, received);
        }
        assert!(sent > 30_000);
    }

    #[test]
    fn the_last_frame_can_be_taken_back_until_the_reader_has_it() {
        let ring = ring(1024);
        let (mut sender, mut receiver) = (Sender::new(ring.clone()), Receiver::new(ring));
        let mut buffer = Vec::new();
        for number in 0..1000 {
            let kept = sender.write(&frame(number)).unwrap();
            if number % 2 == 0 {
                assert!(sender.take_back(kept));
                sender.publish();
                assert!(!receiver.next(&mut buffer).unwrap());
                continue;
            }
            if number % 3 == 0 {
                let last = sender.write(&frame(7)).unwrap();
                assert!(sender.take_back(last));
            }
            receiver.claim_all();
            assert!(!sender.take_back(kept));
            assert!(receiver.next(&mut buffer).unwrap() && buffer == frame(number));
            assert!(!receiver.next(&mut buffer).unwrap());
        }
    }

    #[test]
    fn a_closed_ring_shows_nothing_before_it_is_published() {
        let ring = ring(1024);
        let (mut sender, mut receiver) = (Sender::closed(ring.clone()), Receiver::new(ring));
        let mut buffer = Vec::new();
        for number in 0..1000 {
            assert!((0..=number % 3).all(|more| sender.write(&frame(number + more)).is_some()));
            receiver.claim_all();
            assert!(!receiver.has_frame() && !receiver.has_unpublished());
            sender.publish();
            for more in 0..=number % 3 {
                assert!(receiver.next(&mut buffer).unwrap() && buffer == frame(number + more));
            }
            assert!(!receiver.next(&mut buffer).unwrap());
        }
    }

    /// With two threads: each frame is either taken or taken back.
    #[test]
    fn assigned_tasks_are_taken_or_recalled() {
        let ring = ring(4096);
        let (mut sender, mut receiver) = (TaskSender::new(ring.clone()), TaskReceiver::new(ring));
        const FRAMES: u32 = 200_000;
        let taking = std::thread::spawn(move || {
            let (mut taken, mut buffer) = (Vec::new(), Vec::new());
            loop {
                if !receiver.take(&mut buffer).unwrap() {
                    std::thread::yield_now();
                    continue;
                }
                let number = u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                if number == FRAMES {
                    return taken;
                }
                assert_eq!(buffer, frame(number));
                taken.push(number);
            }
        });
        let mut sent: std::collections::VecDeque<(u32, u32)> = Default::default();
        let (mut back, mut number) = (Vec::new(), 0);
        while number <= FRAMES {
            match sender.send(&frame(number)) {
                Some(end) => {
                    sent.push_back((end, number));
                    number += 1;
                }
                None => std::thread::yield_now(),
            }
            if number % 97 == 0 && number < FRAMES {
                let taken = sender.take_back();
                while sent.front().is_some_and(|(end, _)| taken.wrapping_sub(*end) as i32 >= 0) {
                    sent.pop_front();
                }
                back.extend(sent.drain(..).map(|(_, number)| number));
            }
        }
        let mut all = taking.join().unwrap();
        assert!(all.is_sorted() && back.is_sorted());
        all.extend(&back);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..FRAMES), "{} were taken back", back.len());
    }

    #[test]
    fn positions_that_make_no_sense_are_errors() {
        let ring = ring(1024);
        for (word, length) in [(pack(2000, 2000), 4u32), (pack(64, 64), 1000), (pack(8, 8), SKIP), (pack(4, 4), 0)] {
            ring.word().store(word, Relaxed);
            ring.memory.write(ring.at, &length.to_le_bytes());
            assert!(Receiver::new(ring.clone()).next(&mut Vec::new()).is_err(), "{word:x} {length}");
        }
        for (taken, sent) in [(0, 2000), (1022, 1030), (8, 0)] {
            ring.word().store(pack(taken, sent), Relaxed);
            assert!(TaskReceiver::new(ring.clone()).take(&mut Vec::new()).is_err(), "{taken} {sent}");
        }
    }
}
