//! Memory for large values, which is written again after values that no other process had.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;

use sandbar_core::{Code, VALUE_INLINE_BYTES_MAX};
use sandbar_process::socket;
use sandbar_sandbox::Refusal;
use sandbar_store::{SealedFile, UnsealedFile};

use super::{OutputValue, WorkerRuntime};
use crate::program::messages::SentValue;
use crate::program::worker::{Packet, words};

/// Minimum bytes of a value for reusable memory; smaller values are sealed immediately.
const BYTES_MIN: usize = 1 << 20;
/// Maximum ratio of a memory's size to that of its value. Larger memories are left for larger values.
const OVERSIZE_MAX: usize = 2;
/// Maximum bytes of files that the node has not accepted yet. Tasks that store more wait.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Interval of the check for that credit.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Memories of values by number; the numbers are bits of a word.
#[derive(Debug)]
pub(super) struct MemoryPool {
    all: [Option<UnsealedFile>; u64::BITS as usize],
    /// Bytes of files sent so far.
    sent: u64,
}

/// The file of a value before it is sent.
#[derive(Debug)]
pub(in crate::program) enum ValueFile {
    /// A sealed file.
    Sealed(SealedFile),
    /// Number of a memory, and bytes of the value in it.
    Written(u32, u64),
}

impl ValueFile {
    pub(in crate::program) fn named(&self) -> SentValue<'static> {
        match self {
            ValueFile::Sealed(object) => SentValue::File(object.bytes(), None),
            ValueFile::Written(number, bytes) => SentValue::File(*bytes, Some(*number)),
        }
    }
}

impl MemoryPool {
    pub(super) fn new() -> MemoryPool {
        MemoryPool { all: [const { None }; u64::BITS as usize], sent: 0 }
    }

    /// Writes a value, to a free memory if one fits.
    fn write(&mut self, parts: &[&[u8]], bytes: usize, free: &AtomicU64) -> io::Result<ValueFile> {
        if bytes < BYTES_MIN {
            return SealedFile::of_parts_verifiably(parts).map(ValueFile::Sealed);
        }
        let (number, memory) = match self.take(bytes, free) {
            Some(taken) => taken,
            None => {
                let memory = UnsealedFile::new(bytes)?;
                match self.place(free) {
                    Some(number) => (number, memory),
                    None => return sealed(memory, parts, bytes),
                }
            }
        };
        let memory = self.all[number as usize].insert(memory);
        memory.write(parts)?;
        Ok(ValueFile::Written(number, bytes as u64))
    }

    /// Claims the smallest free memory that is large enough and not much too large.
    fn take(&mut self, bytes: usize, free: &AtomicU64) -> Option<(u32, UnsealedFile)> {
        let fits = |room: usize| room >= bytes && room / OVERSIZE_MAX <= bytes;
        let all = (0..).zip(&self.all).filter_map(|(number, memory)| Some((memory.as_ref()?.capacity(), number)));
        let mut fitting: Vec<(usize, u32)> = all.filter(|(room, _)| fits(*room)).collect();
        fitting.sort_unstable();
        let taken = fitting.into_iter().map(|(_, number)| number).find(|number| clear(free, *number))?;
        Some((taken, self.all[taken as usize].take()?))
    }

    /// Returns a number for new memory: an unused one, or that of a free memory that does not fit.
    fn place(&self, free: &AtomicU64) -> Option<u32> {
        let unused = (0..u64::BITS).zip(&self.all).find(|(_, memory)| memory.is_none());
        unused.map(|(number, _)| number).or_else(|| (0..u64::BITS).find(|number| clear(free, *number)))
    }
}

fn sealed(mut memory: UnsealedFile, parts: &[&[u8]], bytes: usize) -> io::Result<ValueFile> {
    memory.write(parts)?;
    memory.seal_verifiably(bytes as u64).map(ValueFile::Sealed)
}

/// Claims a free memory. Returns whether it was free.
fn clear(free: &AtomicU64, number: u32) -> bool {
    let bit = 1 << number;
    free.load(Acquire) & bit != 0 && free.fetch_and(!bit, AcqRel) & bit != 0
}

impl WorkerRuntime {
    /// Stores the parts of a value, as one value.
    pub(super) fn store_value(&mut self, parts: &[&[u8]]) -> Result<OutputValue, Refusal> {
        self.store_value_within(parts, VALUE_INLINE_BYTES_MAX)
    }

    /// Like [`WorkerRuntime::store_value`], with at most `room` bytes inside a message.
    pub(super) fn store_value_within(&mut self, parts: &[&[u8]], room: usize) -> Result<OutputValue, Refusal> {
        // Saturating, because the same part may be listed many times.
        let bytes = parts.iter().fold(0_usize, |bytes, part| bytes.saturating_add(part.len()));
        if bytes <= VALUE_INLINE_BYTES_MAX.min(room) {
            return Ok(OutputValue::Inline(parts.concat()));
        }
        let max = self.value_bytes_max;
        if bytes as u64 > max {
            let message =
                format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory (--object-memory)");
            return Err(Refusal { code: Code::StoreFull, message });
        }
        // Releases published now may free memory for the next value.
        self.publish();
        self.wait_for_node();
        let free = self.memory.atomic(words::FREE_MEMORY);
        self.memory_pool.write(parts, bytes, free).map(OutputValue::File).map_err(no_memory)
    }

    /// Waits until the node has accepted the files sent so far, that is, until it has room in memory or on disk, or
    /// reports that it has none. All tasks of this worker wait meanwhile, at most as long as the disk takes for these
    /// bytes.
    fn wait_for_node(&mut self) {
        let taken_in = |runtime: &WorkerRuntime| runtime.memory.atomic(words::FILE_BYTES_CREDITED).load(Acquire);
        while self.memory_pool.sent.saturating_sub(taken_in(self)) > AHEAD_BYTES_MAX {
            self.publish();
            self.doorbell.ring();
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Sends a value's file over the socket. The next message that refers to a file means this one.
    pub(in crate::program) fn send_file(&mut self, file: &ValueFile) -> io::Result<()> {
        let (fd, bytes) = match file {
            ValueFile::Sealed(object) => (object.as_fd(), object.bytes()),
            ValueFile::Written(number, bytes) => {
                let missing = || io::Error::other("the memory of a value was dropped");
                (self.memory_pool.all[*number as usize].as_ref().ok_or_else(missing)?.as_fd(), *bytes)
            }
        };
        socket::send(io::stdin().as_fd(), socket::frame(&Packet::File, &mut self.packet)?, &[fd])?;
        self.memory_pool.sent += bytes;
        Ok(())
    }

    /// Discards a value's file that is not sent.
    pub(in crate::program) fn discard(&mut self, file: &ValueFile) {
        if let ValueFile::Written(number, _) = file {
            self.close(*number);
        }
    }

    /// Drops memory that holds a value.
    pub(in crate::program) fn close(&mut self, number: u32) {
        if let Some(memory) = self.memory_pool.all.get_mut(number as usize) {
            *memory = None;
        }
    }
}

pub(super) fn no_memory(error: io::Error) -> Refusal {
    Refusal { code: Code::Host, message: format!("there is no memory for a value: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(memory_pool: &mut MemoryPool, free: &AtomicU64, bytes: usize) -> Option<u32> {
        match memory_pool.write(&[&vec![1; bytes]], bytes, free).unwrap() {
            ValueFile::Sealed(_) => None,
            ValueFile::Written(number, _) => Some(number),
        }
    }

    #[test]
    fn memory_is_written_again_when_it_is_free() {
        let (mut memory_pool, free) = (MemoryPool::new(), AtomicU64::new(0));
        let mut write = |bytes| write(&mut memory_pool, &free, bytes);
        assert_eq!(write(BYTES_MIN - 1), None);
        assert_eq!((write(BYTES_MIN), write(BYTES_MIN)), (Some(0), Some(1)));
        free.fetch_or(0b11, AcqRel);
        assert_eq!((write(BYTES_MIN + 1), free.load(Acquire)), (Some(0), 0b10));
        // Neither a much smaller nor a much larger value fits; a value of the same size does.
        assert_eq!((write(4 * BYTES_MIN), write(3 * BYTES_MIN)), (Some(2), Some(3)));
        free.fetch_or(0b100, AcqRel);
        assert_eq!((write(BYTES_MIN), write(BYTES_MIN), write(3 * BYTES_MIN)), (Some(1), Some(4), Some(2)));
    }

    #[test]
    fn there_are_so_many_and_then_values_are_sealed() {
        let (mut memory_pool, free) = (MemoryPool::new(), AtomicU64::new(0));
        let mut write = |bytes| write(&mut memory_pool, &free, bytes);
        (0..u64::BITS).for_each(|number| assert_eq!(write(BYTES_MIN), Some(number)));
        assert_eq!(write(BYTES_MIN), None);
        free.fetch_or(1 << 7, AcqRel);
        assert_eq!((write(4 * BYTES_MIN), write(BYTES_MIN)), (Some(7), None));
    }
}
