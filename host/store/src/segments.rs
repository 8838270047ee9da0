//! Reusable memory files for the inputs of calls.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, open};

use crate::SharedMemory;
use crate::mapping::{HUGE_BYTES_MIN, PAGE_BYTES, huge_bytes};

/// Minimum size of a segment, in bytes: a segment of one page would be replaced for each larger input.
const SEGMENT_BYTES_MIN: usize = 64 << 10;
/// Minimum address space of a large segment, in bytes, so that a larger input can reuse the pages of a smaller one.
const LARGE_ADDRESS_BYTES: usize = 64 << 20;
/// Maximum total size of free segments, in bytes.
const FREE_BYTES_MAX: usize = 128 << 20;
/// Maximum ratio of a segment's size to the requested size; larger segments are left for larger inputs.
const OVERSIZE_MAX: usize = 8;

/// A pool of memory files, each lent to one call at a time. A new file costs the kernel a cleared page for each 4 KiB,
/// more than the copy into it; pooled files keep their pages.
#[derive(Debug, Clone, Default)]
pub struct SegmentPool(Arc<Mutex<FreeSegments>>);

#[derive(Debug, Default)]
struct FreeSegments {
    segments: Vec<Segment>,
    bytes: usize,
}

#[derive(Debug)]
struct Segment {
    memory: SharedMemory,
    /// A read-only descriptor of the same file.
    reader: OwnedFd,
    /// Bytes from the start on that were ever requested, which take memory.
    used: usize,
    /// Bytes from the start on that are in huge pages.
    huge: usize,
}

/// Content of lent memory at an offset.
#[derive(Debug, Clone, Copy)]
pub enum SegmentPart<'a> {
    /// These bytes, at this offset.
    Bytes(usize, &'a [u8]),
    /// A range (offset, length) that was [written](SegmentDraft::numbers) before.
    Written(usize, usize),
}

/// A segment with fixed content, readable and mappable through its file descriptor. Dropping it returns the segment to
/// the pool.
#[derive(Debug)]
pub struct LentSegment(SegmentDraft);

/// A segment that is written before it is lent.
#[derive(Debug)]
pub struct SegmentDraft {
    /// Taken by `drop`, which returns it to the pool.
    segment: ManuallyDrop<Segment>,
    bytes: usize,
    /// End of the last part.
    end: usize,
    home: SegmentPool,
}

impl SegmentPool {
    /// Takes a segment of `bytes` bytes for writing. It holds stale content: the caller overwrites every range that it
    /// lends as [`SegmentPart::Written`].
    ///
    /// # Errors
    /// Fails if no memory is available.
    pub fn draft(&self, bytes: usize) -> io::Result<SegmentDraft> {
        let mut segment = match self.take(bytes) {
            Some(segment) => segment,
            None => Segment::new(bytes)?,
        };
        if bytes > segment.used {
            self.release_free(bytes - segment.used);
            segment.used = bytes;
            segment.collapse(bytes);
        }
        Ok(SegmentDraft { segment: ManuallyDrop::new(segment), bytes, end: 0, home: self.clone() })
    }

    /// Lends a segment that holds `parts`, of `bytes` bytes or less.
    ///
    /// # Errors
    /// Fails if parts overlap or exceed `bytes`, or no memory is available.
    pub fn lend(&self, bytes: usize, parts: &[SegmentPart<'_>]) -> io::Result<LentSegment> {
        let mut draft = self.draft(bytes)?;
        parts.iter().try_for_each(|part| draft.put(part))?;
        Ok(draft.lend())
    }

    /// Takes the free segment with the least sufficient memory, unless that is more than [`OVERSIZE_MAX`] times the
    /// request. Otherwise takes the segment with the most memory among those with enough address space.
    fn take(&self, bytes: usize) -> Option<Segment> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oversize_bytes = bytes.max(SEGMENT_BYTES_MIN).saturating_mul(OVERSIZE_MAX);
        let fitting =
            free.segments.iter().enumerate().filter(|(_, s)| s.memory.bytes() >= bytes && s.used <= oversize_bytes);
        let (at, _) = fitting.min_by_key(|(_, s)| if s.used >= bytes { s.used } else { usize::MAX - s.used })?;
        free.bytes -= free.segments[at].used;
        Some(free.segments.swap_remove(at))
    }

    /// Returns at least `bytes` bytes of free segments to the kernel, or all of them. A growing input takes over this
    /// memory: the kernel has it at hand, and the total stays at the most that was used at once.
    fn release_free(&self, bytes: usize) {
        if bytes < HUGE_BYTES_MIN {
            return;
        }
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = bytes;
        let is_released = |segment: &mut Segment| {
            let released = left > 0 && segment.used >= HUGE_BYTES_MIN;
            left = left.saturating_sub(if released { segment.used } else { 0 });
            released
        };
        let released: Vec<Segment> = free.segments.extract_if(.., is_released).collect();
        free.bytes -= released.iter().map(|segment| segment.used).sum::<usize>();
    }

    fn return_segment(&self, segment: Segment) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = free.bytes + segment.used;
        if bytes <= FREE_BYTES_MAX {
            free.bytes = bytes;
            free.segments.push(segment);
        }
    }
}

impl Segment {
    /// Creates a segment of at least `bytes` bytes.
    fn new(bytes: usize) -> io::Result<Segment> {
        let least = if bytes < HUGE_BYTES_MIN { SEGMENT_BYTES_MIN } else { LARGE_ADDRESS_BYTES };
        let memory = SharedMemory::new(bytes.max(least).next_power_of_two())?;
        let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
        let reader = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Segment { memory, reader, used: 0, huge: 0 })
    }

    /// Collapses the first `bytes` bytes into huge pages, except for a small remainder.
    fn collapse(&mut self, bytes: usize) {
        let huge = huge_bytes(bytes);
        if huge > self.huge {
            self.memory.collapse(self.huge, huge - self.huge);
            self.huge = huge;
        }
    }
}

impl SegmentDraft {
    /// Returns the whole words of the segment, as numbers.
    pub fn numbers(&mut self) -> &mut [f64] {
        self.words(self.bytes / size_of::<f64>())
    }

    fn words(&mut self, count: usize) -> &mut [f64] {
        let memory = &mut self.segment.memory;
        // SAFETY: every bit pattern is a number, and no other process can write them: other processes get the read-only
        // descriptor.
        unsafe { memory.numbers(count) }
    }

    /// Returns the size in bytes available for parts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a part. The gap to the part before is zeroed.
    ///
    /// # Errors
    /// Fails if the part starts before the end of the last one or exceeds the segment.
    pub fn put(&mut self, part: &SegmentPart<'_>) -> io::Result<()> {
        let (at, len) = match part {
            SegmentPart::Bytes(at, bytes) => (*at, bytes.len()),
            SegmentPart::Written(at, len) => (*at, *len),
        };
        let end = at.checked_add(len).filter(|end| at >= self.end && *end <= self.bytes);
        let Some(end) = end else {
            let message = format!("{len} bytes at {at} behind {}, of {}", self.end, self.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        let memory = &self.segment.memory;
        memory.clear(self.end, at - self.end);
        if let SegmentPart::Bytes(at, bytes) = part {
            memory.write(*at, bytes);
        }
        self.end = end;
        Ok(())
    }

    /// Copies the parts into a segment of `bytes` bytes, or of their size if that is larger.
    ///
    /// # Errors
    /// Fails if no memory is available.
    pub fn copy_with_capacity(mut self, bytes: usize) -> io::Result<SegmentDraft> {
        let mut moved = self.home.draft(bytes.max(self.end))?;
        let words = self.end.div_ceil(size_of::<f64>());
        moved.words(words).copy_from_slice(self.words(words));
        moved.end = self.end;
        Ok(moved)
    }

    /// Lends the memory up to the end of the last part. The rest of that part's page is zeroed.
    pub fn lend(mut self) -> LentSegment {
        let memory = &self.segment.memory;
        let rest = self.end.next_multiple_of(PAGE_BYTES).min(memory.bytes()) - self.end;
        memory.clear(self.end, rest);
        self.bytes = self.end;
        LentSegment(self)
    }
}

impl LentSegment {
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }
}

impl AsFd for LentSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.segment.reader.as_fd()
    }
}

impl Drop for SegmentDraft {
    fn drop(&mut self) {
        // SAFETY: `segment` is not used after `drop`.
        let segment = unsafe { ManuallyDrop::take(&mut self.segment) };
        self.home.return_segment(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use crate::mapping::HUGE_PAGE_BYTES;

    fn check(segments: &SegmentPool, bytes: usize, parts: &[(usize, &[u8])], expect: &[u8]) {
        let parts: Vec<_> = parts.iter().map(|(at, bytes)| SegmentPart::Bytes(*at, bytes)).collect();
        let lent = segments.lend(bytes, &parts).unwrap();
        assert_eq!(lent.bytes(), expect.len());
        // The rest of the last page is zero.
        let page_end = expect.len().next_multiple_of(PAGE_BYTES);
        // SAFETY: `lent` outlives the mapping.
        let mapping = unsafe { Mapping::lent(lent.as_fd(), page_end as u64) }.unwrap();
        assert_eq!(&mapping[..expect.len()], expect);
        assert!(mapping[expect.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn parts_are_where_they_were_put_and_nothing_else_is() {
        let segments = SegmentPool::default();
        for _ in 0..2 {
            check(&segments, 8, &[(0, b"abcdefgh")], b"abcdefgh");
            check(&segments, 0, &[], b"");
            check(&segments, 8, &[(1, b"a"), (4, b"bc")], b"\0a\0\0bc");
            let mut expected = vec![0; 100_000];
            expected[0] = b'x';
            expected[99_999] = b'y';
            check(&segments, 100_000, &[(0, b"x"), (99_999, b"y")], &expected);
            check(&segments, 100_000, &[(0, b"x")], b"x");
            check(&segments, 100_000, &[(0, &[1; 5000])], &[1; 5000]);
        }
    }

    #[test]
    fn copies_of_drafts_keep_written_parts_only() {
        let segments = SegmentPool::default();
        let mut before = segments.draft(64).unwrap();
        before.numbers().fill(f64::from_bits(u64::MAX));
        drop(before);
        let mut draft = segments.draft(37).unwrap();
        assert_eq!(draft.numbers().len(), 4);
        draft.numbers()[1] = f64::from_bits(0x0101_0101_0101_0101);
        draft.put(&SegmentPart::Bytes(2, b"a")).unwrap();
        draft.put(&SegmentPart::Written(8, 8)).unwrap();
        // A copy in a larger segment has the same content.
        let mut draft = draft.copy_with_capacity(200_000).unwrap();
        assert_eq!(draft.bytes(), 200_000);
        draft.put(&SegmentPart::Bytes(20, b"b")).unwrap();
        draft.put(&SegmentPart::Bytes(36, b"c")).unwrap();
        let lent = draft.lend();
        // SAFETY: `lent` outlives the mapping.
        let mapping = unsafe { Mapping::lent(lent.as_fd(), 37) }.unwrap();
        let mut expect = [0; 37];
        expect[8..16].fill(1);
        (expect[2], expect[20], expect[36]) = (b'a', b'b', b'c');
        assert_eq!(*mapping, expect);
    }

    /// With any mix of small and huge pages.
    #[test]
    fn large_inputs_are_copied_unchanged() {
        let segments = SegmentPool::default();
        for bytes in [HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + HUGE_BYTES_MIN + 1, HUGE_BYTES_MIN, HUGE_PAGE_BYTES - 1] {
            let mut before = segments.draft(bytes).unwrap();
            before.numbers().fill(1.0);
            drop(before);
            let edges = [0, HUGE_BYTES_MIN - 1, bytes - 1];
            let parts: Vec<_> = edges.iter().map(|at| SegmentPart::Bytes(*at, b"x")).collect();
            let parts = if bytes == HUGE_BYTES_MIN { &parts[..2] } else { &parts };
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
        let segments = SegmentPool::default();
        let inode = |lent: &LentSegment| rustix::fs::fstat(lent).unwrap().st_ino;
        let (a, b) = (segments.lend(10, &[]).unwrap(), segments.lend(10, &[]).unwrap());
        assert_ne!(inode(&a), inode(&b));
        let first = inode(&a);
        drop(a);
        assert_eq!(inode(&segments.lend(20, &[]).unwrap()), first);
        // Too large for a small input.
        let segments = SegmentPool::default();
        let large = inode(&segments.lend(8 << 20, &[]).unwrap());
        assert_ne!(inode(&segments.lend(10, &[]).unwrap()), large);
        // Another large input reuses its pages, unless it exceeds the address space.
        assert_eq!(inode(&segments.lend(LARGE_ADDRESS_BYTES, &[]).unwrap()), large);
        assert_ne!(inode(&segments.lend(LARGE_ADDRESS_BYTES + 1, &[]).unwrap()), large);
    }

    #[test]
    fn growing_segments_take_free_memory() {
        const MIB: usize = 1 << 20;
        // Sizes lent at once, then a size that is lent, and the number and bytes of the segments that stay free.
        for (first, then, waits) in [
            (&[8 * MIB, 8 * MIB][..], 8 * MIB, (1, 8 * MIB)),
            (&[8 * MIB, 8 * MIB], 16 * MIB, (0, 0)),
            (&[8 * MIB, 4 * MIB, 4 * MIB], 10 * MIB, (1, 4 * MIB)),
            (&[4 * MIB, 4 * MIB], 64 * MIB, (0, 0)),
            (&[8 * MIB, 100 << 10], 16 * MIB, (1, 100 << 10)),
            (&[8 * MIB, 2 * MIB], 8 * MIB + 1000, (1, 2 * MIB)),
        ] {
            let segments = SegmentPool::default();
            let lent: Vec<SegmentDraft> = first.iter().map(|bytes| segments.draft(*bytes).unwrap()).collect();
            drop(lent);
            let _then = segments.draft(then).unwrap();
            let free = segments.0.lock().unwrap();
            assert_eq!((free.segments.len(), free.bytes), waits, "{first:?}, then {then}");
        }
    }

    #[test]
    fn readers_do_not_write() {
        let lent = SegmentPool::default().lend(4, &[SegmentPart::Bytes(0, b"abcd")]).unwrap();
        assert!(rustix::io::pwrite(&lent, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(&lent, 2).is_err());
    }

    #[test]
    fn parts_out_of_bounds_are_refused() {
        for parts in [
            [SegmentPart::Bytes(2, b"ab"), SegmentPart::Bytes(5, b"c")],
            [SegmentPart::Bytes(0, b"ab"), SegmentPart::Bytes(1, b"c")],
            [SegmentPart::Bytes(0, b"ab"), SegmentPart::Written(1, 1)],
            [SegmentPart::Bytes(0, b"ab"), SegmentPart::Written(2, 3)],
            [SegmentPart::Written(usize::MAX, 1), SegmentPart::Bytes(0, b"")],
        ] {
            assert!(SegmentPool::default().lend(4, &parts).is_err(), "{parts:?}");
        }
    }
}
