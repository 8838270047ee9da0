//! Rings of frames in shared memory, each with one writer and one reader in two processes.
//!
//! A ring's positions count bytes, and start over at 2³². A frame is its length (u32), 4 bytes of zero, and its bytes,
//! padded to a multiple of 8; one that does not fit before the end of the memory stands at its start, behind a length of
//! [`SKIP`]. Two positions share one word, so that both sides can change them at once or not at all:
//!
//! - [`Sender`] to [`Receiver`]: `published | written`. Frames up to `published` are the reader's. Those behind it can
//!   be taken back by the writer, and [taken](Receiver::claim_all) by the reader.
//! - [`TaskSender`] to [`TaskReceiver`]: `taken | given`. The reader takes one frame at a time; the writer takes back what is left.
//!
//! The reader copies a frame before it looks at it: the writer may be a process that a guest has taken over.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use sandbar_store::SharedMemory;

const HEAD_BYTES: usize = 8;
/// Instead of a length: go on at the start of the memory.
const SKIP: u32 = u32::MAX;

/// Where a ring is in shared memory.
#[derive(Debug, Clone)]
pub(super) struct RingMemory {
    pub memory: Arc<SharedMemory>,
    /// The word of its two positions, as an index of u64.
    pub word: usize,
    /// The word of how far the reader is ([`Sender`] only).
    pub read: usize,
    /// Its bytes: a power of two of them.
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

    /// Writes a frame at `end`, if there is room up to what was read. Gives the position behind it.
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

    /// Copies the frame at `position` out of at most `left` bytes. Gives the position behind it.
    fn copy(&self, position: u32, left: u32, to: &mut Vec<u8>) -> io::Result<u32> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a ring's frames are not where they should be");
        let length = |position: u32| {
            let mut bytes = [MaybeUninit::uninit(); 4];
            let read = self.memory.read(self.at + self.offset(position), &mut bytes);
            u32::from_le_bytes([read[0], read[1], read[2], read[3]])
        };
        // Both may be what somebody else wrote.
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
        // SAFETY: as many bytes were just read.
        unsafe { to.set_len(len as usize) };
        Ok(start.wrapping_add(needs as u32))
    }
}

/// The writer of a ring whose last frames it may take back.
#[derive(Debug)]
pub(super) struct Sender {
    place: RingMemory,
    written: u32,
    published: u32,
    /// Whether the reader may take what was not published.
    is_open: bool,
}

impl Sender {
    pub(super) fn new(place: RingMemory) -> Sender {
        Sender { place, written: 0, published: 0, is_open: true }
    }

    /// One whose reader gets nothing that was not published: it does not look up before.
    pub(super) fn closed(place: RingMemory) -> Sender {
        Sender { is_open: false, ..Sender::new(place) }
    }

    /// Writes a frame, which the reader gets with all before it once it is [published](Sender::publish), or takes. Gives
    /// where it stands; none when there is no room.
    pub(super) fn write(&mut self, frame: &[u8]) -> Option<u32> {
        let read = self.place.memory.atomic(self.place.read).load(Acquire) as u32;
        let start = self.written;
        let end = self.place.write(start, read, frame)?;
        if self.is_open {
            self.update_positions(|published, _| (published, end));
        }
        self.written = end;
        Some(start)
    }

    /// The reader may have all that was written.
    pub(super) fn publish(&mut self) {
        let written = self.written;
        if std::mem::replace(&mut self.published, written) != written {
            self.update_positions(|_, _| (written, written));
        }
    }

    /// Takes the last frame back, which stands at `start`, unless the reader may have it already.
    pub(super) fn take_back(&mut self, start: u32) -> bool {
        let word = self.place.word();
        let before = word.load(Acquire);
        let (published, _) = unpack(before);
        // Published is at or before what is written; before `start` if frames stand between.
        let is_behind = (self.written.wrapping_sub(published)) >= self.written.wrapping_sub(start);
        let taken = is_behind && word.compare_exchange(before, pack(published, start), AcqRel, Acquire).is_ok();
        if taken {
            self.written = start;
        }
        taken
    }

    fn update_positions(&self, to: impl Fn(u32, u32) -> (u32, u32)) {
        let _ = self.place.word().fetch_update(AcqRel, Acquire, |word| {
            let (published, written) = unpack(word);
            let (published, written) = to(published, written);
            Some(pack(published, written))
        });
    }
}

/// The reader of a ring.
#[derive(Debug)]
pub(super) struct Receiver {
    place: RingMemory,
    read: u32,
}

impl Receiver {
    pub(super) fn new(place: RingMemory) -> Receiver {
        Receiver { place, read: 0 }
    }

    /// Whether there is a frame.
    pub(super) fn has_frame(&self) -> bool {
        unpack(self.place.word().load(Acquire)).0 != self.read
    }

    /// Whether there are frames that were not published.
    pub(super) fn has_unpublished(&self) -> bool {
        let (published, written) = unpack(self.place.word().load(Relaxed));
        published != written
    }

    /// Takes all that was written, published or not.
    pub(super) fn claim_all(&self) {
        let _ = self.place.word().fetch_update(AcqRel, Acquire, |word| {
            let (_, written) = unpack(word);
            Some(pack(written, written))
        });
    }

    /// The next frame, in `frame`; false if there is none.
    ///
    /// # Errors
    /// When the writer makes no sense.
    pub(super) fn next(&mut self, frame: &mut Vec<u8>) -> io::Result<bool> {
        let (published, _) = unpack(self.place.word().load(Acquire));
        let left = published.wrapping_sub(self.read);
        if left == 0 {
            return Ok(false);
        }
        self.read = self.place.copy(self.read, left, frame)?;
        self.place.memory.atomic(self.place.read).store(u64::from(self.read), Release);
        Ok(true)
    }
}

/// The writer of a ring that takes back what the reader has not taken.
#[derive(Debug)]
pub(super) struct TaskSender {
    place: RingMemory,
    given: u32,
}

impl TaskSender {
    pub(super) fn new(place: RingMemory) -> TaskSender {
        TaskSender { place, given: 0 }
    }

    /// Gives a frame. Gives where it ends; none when there is no room.
    pub(super) fn send(&mut self, frame: &[u8]) -> Option<u32> {
        let (taken, _) = unpack(self.place.word().load(Acquire));
        let end = self.place.write(self.given, taken, frame)?;
        let _ = self.place.word().fetch_update(AcqRel, Acquire, |word| Some(pack(unpack(word).0, end)));
        self.given = end;
        Some(end)
    }

    /// How far the reader has taken frames.
    pub(super) fn taken(&self) -> u32 {
        unpack(self.place.word().load(Acquire)).0
    }

    /// Takes back all frames that the reader has not taken: those that end behind what it gives.
    pub(super) fn take_back(&mut self) -> u32 {
        // Both positions move on, so that none is used again while the reader looks at it.
        let given = self.given;
        let before = self.place.word().swap(pack(given, given), AcqRel);
        unpack(before).0
    }
}

/// The reader of such a ring.
#[derive(Debug)]
pub(super) struct TaskReceiver {
    place: RingMemory,
}

impl TaskReceiver {
    pub(super) fn new(place: RingMemory) -> TaskReceiver {
        TaskReceiver { place }
    }

    /// Whether there is a frame.
    pub(super) fn has_frame(&self) -> bool {
        let (taken, given) = unpack(self.place.word().load(Acquire));
        taken != given
    }

    /// Takes the next frame into `frame`; false if there is none.
    ///
    /// # Errors
    /// When the writer makes no sense.
    pub(super) fn take(&mut self, frame: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let word = self.place.word().load(Acquire);
            let (taken, given) = unpack(word);
            if taken == given {
                return Ok(false);
            }
            let copied = self.place.copy(taken, given.wrapping_sub(taken), frame);
            let next = *copied.as_ref().unwrap_or(&taken);
            if self.place.word().compare_exchange(word, pack(next, given), AcqRel, Acquire).is_ok() {
                return copied.map(|_| true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(bytes: usize) -> RingMemory {
        RingMemory { memory: Arc::new(SharedMemory::new(4096 + bytes).unwrap()), word: 0, read: 1, at: 4096, bytes }
    }

    fn frame(number: u32) -> Vec<u8> {
        let len = number.wrapping_mul(2_654_435_761) % 90;
        number.to_le_bytes().into_iter().chain((0..len).map(|at| (number + at) as u8)).collect()
    }

    #[test]
    fn frames_arrive_in_order_once_they_are_published() {
        let place = place(1024);
        let (mut sender, mut receiver) = (Sender::new(place.clone()), Receiver::new(place));
        let (mut sent, mut got, mut buffer) = (0, 0, Vec::new());
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
                assert_eq!(buffer, frame(got));
                got += 1;
            }
            assert_eq!(sent, got);
        }
        assert!(sent > 30_000);
    }

    #[test]
    fn the_last_frame_can_be_taken_back_until_the_reader_has_it() {
        let place = place(1024);
        let (mut sender, mut receiver) = (Sender::new(place.clone()), Receiver::new(place));
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
        let place = place(1024);
        let (mut sender, mut receiver) = (Sender::closed(place.clone()), Receiver::new(place));
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

    /// In two threads: each frame is taken, or taken back.
    #[test]
    fn what_is_given_is_taken_or_taken_back() {
        let place = place(4096);
        let (mut sender, mut receiver) = (TaskSender::new(place.clone()), TaskReceiver::new(place));
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
        let mut given: std::collections::VecDeque<(u32, u32)> = Default::default();
        let (mut back, mut number) = (Vec::new(), 0);
        while number <= FRAMES {
            match sender.send(&frame(number)) {
                Some(end) => {
                    given.push_back((end, number));
                    number += 1;
                }
                None => std::thread::yield_now(),
            }
            if number % 97 == 0 && number < FRAMES {
                let taken = sender.take_back();
                while given.front().is_some_and(|(end, _)| taken.wrapping_sub(*end) as i32 >= 0) {
                    given.pop_front();
                }
                back.extend(given.drain(..).map(|(_, number)| number));
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
        let place = place(1024);
        for (word, length) in [(pack(2000, 2000), 4u32), (pack(64, 64), 1000), (pack(8, 8), SKIP), (pack(4, 4), 0)] {
            place.word().store(word, Relaxed);
            place.memory.write(place.at, &length.to_le_bytes());
            assert!(Receiver::new(place.clone()).next(&mut Vec::new()).is_err(), "{word:x} {length}");
        }
        for (taken, given) in [(0, 2000), (1022, 1030), (8, 0)] {
            place.word().store(pack(taken, given), Relaxed);
            assert!(TaskReceiver::new(place.clone()).take(&mut Vec::new()).is_err(), "{taken} {given}");
        }
    }
}
