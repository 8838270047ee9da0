//! Memory for the inputs of calls, used again and again.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, open};

use crate::Scratch;
use crate::mapping::{HUGE_FROM_BYTES, PAGE_BYTES, huge_bytes};

/// The least that is made, in bytes: one page would be made anew for each larger input.
const SEGMENT_BYTES_MIN: usize = 64 << 10;
/// Of large ones the addresses are for so many bytes, so that a larger input can have the pages of a smaller one.
const ROOM_BYTES: usize = 64 << 20;
/// Memory that waits for its next use, at most, in bytes.
const FREE_BYTES_MAX: usize = 128 << 20;
/// A segment this many times larger than what it is to hold is left for a larger input.
const OVERSIZE_MAX: usize = 8;

/// Memory files that are lent to one call at a time. A new file costs the kernel
/// a cleared page for each 4 KiB, more than the copy into it; these keep theirs.
#[derive(Debug, Clone, Default)]
pub struct Segments(Arc<Mutex<Free>>);

#[derive(Debug, Default)]
struct Free {
    segments: Vec<Segment>,
    bytes: usize,
}

#[derive(Debug)]
struct Segment {
    memory: Scratch,
    /// The same file, which can't be written through this.
    reader: OwnedFd,
    /// Bytes from the start on that it was wanted for, which are those that take memory.
    used: usize,
    /// Bytes from the start on that are in huge pages, where there are any.
    huge: usize,
}

/// What stands in lent memory, from an offset on.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// At the offset, these bytes.
    Bytes(usize, &'a [u8]),
    /// At the offset, so many bytes that were [written](Draft::numbers) there before.
    Written(usize, usize),
}

/// Bytes that stay as they are until this is dropped; then their memory is used
/// for others. Its file can be read and mapped, not written.
#[derive(Debug)]
pub struct Lent(Draft);

/// Memory that is written before it is lent.
#[derive(Debug)]
pub struct Draft {
    /// There until `drop`, which gives it back.
    segment: ManuallyDrop<Segment>,
    bytes: usize,
    /// Where the last part ends that was put there.
    end: usize,
    home: Segments,
}

impl Segments {
    /// Memory of `bytes` bytes to be written. It holds what was left in it: who lends
    /// parts of it as written has written all of them.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn draft(&self, bytes: usize) -> io::Result<Draft> {
        let mut segment = match self.take(bytes) {
            Some(segment) => segment,
            None => Segment::new(bytes)?,
        };
        if bytes > segment.used {
            self.give_up(bytes - segment.used);
            segment.used = bytes;
            segment.gather(bytes);
        }
        Ok(Draft { segment: ManuallyDrop::new(segment), bytes, end: 0, home: self.clone() })
    }

    /// Lends memory that holds `parts`, of `bytes` bytes or less.
    ///
    /// # Errors
    /// When parts overlap or end behind `bytes`, or there is no memory.
    pub fn lend(&self, bytes: usize, parts: &[Part<'_>]) -> io::Result<Lent> {
        let mut draft = self.draft(bytes)?;
        parts.iter().try_for_each(|part| draft.put(part))?;
        Ok(draft.lend())
    }

    /// The free segment with the least memory that is enough, unless it is much too much; otherwise the one with the
    /// most, of those that have room for more.
    fn take(&self, bytes: usize) -> Option<Segment> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = bytes.max(SEGMENT_BYTES_MIN).saturating_mul(OVERSIZE_MAX);
        let fitting = free.segments.iter().enumerate().filter(|(_, s)| s.memory.bytes() >= bytes && s.used <= most);
        let (at, _) = fitting.min_by_key(|(_, s)| if s.used >= bytes { s.used } else { usize::MAX - s.used })?;
        free.bytes -= free.segments[at].used;
        Some(free.segments.swap_remove(at))
    }

    /// Gives so many bytes of what is free back to the kernel, or somewhat more, or all there are. Free memory that was
    /// too little is what the next larger input grows by: the kernel has it at hand, and all together stays as much as
    /// was used at once.
    fn give_up(&self, bytes: usize) {
        if bytes < HUGE_FROM_BYTES {
            return;
        }
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = bytes;
        let is_given = |segment: &mut Segment| {
            let given = left > 0 && segment.used >= HUGE_FROM_BYTES;
            left = left.saturating_sub(if given { segment.used } else { 0 });
            given
        };
        let given: Vec<Segment> = free.segments.extract_if(.., is_given).collect();
        free.bytes -= given.iter().map(|segment| segment.used).sum::<usize>();
    }

    fn give_back(&self, segment: Segment) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = free.bytes + segment.used;
        if bytes <= FREE_BYTES_MAX {
            free.bytes = bytes;
            free.segments.push(segment);
        }
    }
}

impl Segment {
    /// A segment for `bytes` bytes, or somewhat more.
    fn new(bytes: usize) -> io::Result<Segment> {
        let least = if bytes < HUGE_FROM_BYTES { SEGMENT_BYTES_MIN } else { ROOM_BYTES };
        let memory = Scratch::new(bytes.max(least).next_power_of_two())?;
        let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
        let reader = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Segment { memory, reader, used: 0, huge: 0 })
    }

    /// Sees to it that the first `bytes` bytes are in huge pages, but for a small rest.
    fn gather(&mut self, bytes: usize) {
        let huge = huge_bytes(bytes);
        if huge > self.huge {
            self.memory.gather(self.huge, huge - self.huge);
            self.huge = huge;
        }
    }
}

impl Draft {
    /// Its whole words, as numbers.
    pub fn numbers(&mut self) -> &mut [f64] {
        self.words(self.bytes / size_of::<f64>())
    }

    fn words(&mut self, count: usize) -> &mut [f64] {
        let memory = &mut self.segment.memory;
        // SAFETY: any bytes are a number, and no other process can write them: only readers of the file are handed out.
        unsafe { memory.numbers(count) }
    }

    /// Bytes there are for parts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a part behind those that are there already. What is between them is zero.
    ///
    /// # Errors
    /// When it starts before the last one's end or ends behind the memory.
    pub fn put(&mut self, part: &Part<'_>) -> io::Result<()> {
        let (at, len) = match part {
            Part::Bytes(at, bytes) => (*at, bytes.len()),
            Part::Written(at, len) => (*at, *len),
        };
        let end = at.checked_add(len).filter(|end| at >= self.end && *end <= self.bytes);
        let Some(end) = end else {
            let message = format!("{len} bytes at {at} behind {}, of {}", self.end, self.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        let memory = &self.segment.memory;
        memory.clear(self.end, at - self.end);
        if let Part::Bytes(at, bytes) = part {
            memory.write(*at, bytes);
        }
        self.end = end;
        Ok(())
    }

    /// The same parts in memory of `bytes` bytes, at least as many as they take.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn moved(mut self, bytes: usize) -> io::Result<Draft> {
        let mut moved = self.home.draft(bytes.max(self.end))?;
        let words = self.end.div_ceil(size_of::<f64>());
        moved.words(words).copy_from_slice(self.words(words));
        moved.end = self.end;
        Ok(moved)
    }

    /// Lends the memory up to the end of its last part. What is behind that part on its page is zero.
    pub fn lend(mut self) -> Lent {
        let memory = &self.segment.memory;
        let rest = self.end.next_multiple_of(PAGE_BYTES).min(memory.bytes()) - self.end;
        memory.clear(self.end, rest);
        self.bytes = self.end;
        Lent(self)
    }
}

impl Lent {
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }
}

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.segment.reader.as_fd()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: what is dropped is not used again.
        let segment = unsafe { ManuallyDrop::take(&mut self.segment) };
        self.home.give_back(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use crate::mapping::HUGE_PAGE_BYTES;

    fn check(segments: &Segments, bytes: usize, parts: &[(usize, &[u8])], expect: &[u8]) {
        let parts: Vec<_> = parts.iter().map(|(at, bytes)| Part::Bytes(*at, bytes)).collect();
        let lent = segments.lend(bytes, &parts).unwrap();
        assert_eq!(lent.bytes(), expect.len());
        // To the end of the last page there are zeros.
        let page_end = expect.len().next_multiple_of(PAGE_BYTES);
        // SAFETY: `lent` outlives the mapping.
        let mapping = unsafe { Mapping::lent(lent.as_fd(), page_end as u64) }.unwrap();
        assert_eq!(&mapping[..expect.len()], expect);
        assert!(mapping[expect.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn parts_are_where_they_were_put_and_nothing_else_is() {
        let segments = Segments::default();
        for _ in 0..2 {
            check(&segments, 8, &[(0, b"abcdefgh")], b"abcdefgh");
            check(&segments, 0, &[], b"");
            check(&segments, 8, &[(1, b"a"), (4, b"bc")], b"\0a\0\0bc");
            let mut far = vec![0; 100_000];
            far[0] = b'x';
            far[99_999] = b'y';
            check(&segments, 100_000, &[(0, b"x"), (99_999, b"y")], &far);
            check(&segments, 100_000, &[(0, b"x")], b"x");
            check(&segments, 100_000, &[(0, &[1; 5000])], &[1; 5000]);
        }
    }

    #[test]
    fn what_was_written_before_stays_and_nothing_else_does() {
        let segments = Segments::default();
        let mut before = segments.draft(64).unwrap();
        before.numbers().fill(f64::from_bits(u64::MAX));
        drop(before);
        let mut draft = segments.draft(37).unwrap();
        assert_eq!(draft.numbers().len(), 4);
        draft.numbers()[1] = f64::from_bits(0x0101_0101_0101_0101);
        draft.put(&Part::Bytes(2, b"a")).unwrap();
        draft.put(&Part::Written(8, 8)).unwrap();
        // Somewhere else nothing of it is different.
        let mut draft = draft.moved(200_000).unwrap();
        assert_eq!(draft.bytes(), 200_000);
        draft.put(&Part::Bytes(20, b"b")).unwrap();
        draft.put(&Part::Bytes(36, b"c")).unwrap();
        let lent = draft.lend();
        // SAFETY: `lent` outlives the mapping.
        let mapping = unsafe { Mapping::lent(lent.as_fd(), 37) }.unwrap();
        let mut expect = [0; 37];
        expect[8..16].fill(1);
        (expect[2], expect[20], expect[36]) = (b'a', b'b', b'c');
        assert_eq!(*mapping, expect);
    }

    /// Whatever pages they lie in.
    #[test]
    fn large_inputs_are_what_was_put_in() {
        let segments = Segments::default();
        for bytes in [HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + HUGE_FROM_BYTES + 1, HUGE_FROM_BYTES, HUGE_PAGE_BYTES - 1]
        {
            let mut before = segments.draft(bytes).unwrap();
            before.numbers().fill(1.0);
            drop(before);
            let edges = [0, HUGE_FROM_BYTES - 1, bytes - 1];
            let parts: Vec<_> = edges.iter().map(|at| Part::Bytes(*at, b"x")).collect();
            let parts = if bytes == HUGE_FROM_BYTES { &parts[..2] } else { &parts };
            let lent = segments.lend(bytes, parts).unwrap();
            // SAFETY: `lent` outlives the mapping.
            let mapping = unsafe { Mapping::lent(lent.as_fd(), bytes as u64) }.unwrap();
            let marked: Vec<_> = mapping.iter().enumerate().filter(|(_, b)| **b != 0).map(|(at, _)| at).collect();
            assert_eq!(marked, edges[..parts.len()], "{bytes}");
            assert!(bytes < HUGE_PAGE_BYTES || mapping.as_ptr().align_offset(HUGE_PAGE_BYTES) == 0);
        }
    }

    #[test]
    fn memory_is_used_again_one_call_at_a_time() {
        let segments = Segments::default();
        let inode = |lent: &Lent| rustix::fs::fstat(lent).unwrap().st_ino;
        let (a, b) = (segments.lend(10, &[]).unwrap(), segments.lend(10, &[]).unwrap());
        assert_ne!(inode(&a), inode(&b));
        let first = inode(&a);
        drop(a);
        assert_eq!(inode(&segments.lend(20, &[]).unwrap()), first);
        // Much too large for a small one.
        let segments = Segments::default();
        let large = inode(&segments.lend(8 << 20, &[]).unwrap());
        assert_ne!(inode(&segments.lend(10, &[]).unwrap()), large);
        // A larger one has its pages too, the largest can't.
        assert_eq!(inode(&segments.lend(ROOM_BYTES, &[]).unwrap()), large);
        assert_ne!(inode(&segments.lend(ROOM_BYTES + 1, &[]).unwrap()), large);
    }

    #[test]
    fn what_grows_takes_what_was_free() {
        const MIB: usize = 1 << 20;
        // What is lent at once, then what is, and how much waits after that in so many pieces.
        for (first, then, waits) in [
            (&[8 * MIB, 8 * MIB][..], 8 * MIB, (1, 8 * MIB)),
            (&[8 * MIB, 8 * MIB], 16 * MIB, (0, 0)),
            (&[8 * MIB, 4 * MIB, 4 * MIB], 10 * MIB, (1, 4 * MIB)),
            (&[4 * MIB, 4 * MIB], 64 * MIB, (0, 0)),
            (&[8 * MIB, 100 << 10], 16 * MIB, (1, 100 << 10)),
            (&[8 * MIB, 2 * MIB], 8 * MIB + 1000, (1, 2 * MIB)),
        ] {
            let segments = Segments::default();
            let lent: Vec<Draft> = first.iter().map(|bytes| segments.draft(*bytes).unwrap()).collect();
            drop(lent);
            let _then = segments.draft(then).unwrap();
            let free = segments.0.lock().unwrap();
            assert_eq!((free.segments.len(), free.bytes), waits, "{first:?}, then {then}");
        }
    }

    #[test]
    fn readers_do_not_write() {
        let lent = Segments::default().lend(4, &[Part::Bytes(0, b"abcd")]).unwrap();
        assert!(rustix::io::pwrite(&lent, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(&lent, 2).is_err());
    }

    #[test]
    fn parts_out_of_bounds_are_refused() {
        for parts in [
            [Part::Bytes(2, b"ab"), Part::Bytes(5, b"c")],
            [Part::Bytes(0, b"ab"), Part::Bytes(1, b"c")],
            [Part::Bytes(0, b"ab"), Part::Written(1, 1)],
            [Part::Bytes(0, b"ab"), Part::Written(2, 3)],
            [Part::Written(usize::MAX, 1), Part::Bytes(0, b"")],
        ] {
            assert!(Segments::default().lend(4, &parts).is_err(), "{parts:?}");
        }
    }
}
