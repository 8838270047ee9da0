//! Memory for large values, which is written again after values that no other process had.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use sandbar_core::Code;
use sandbar_sandbox::{Refusal, is_interrupted};
use sandbar_store::{SealedFile, UnsealedFile};

use crate::program::messages::SentValue;

/// Minimum bytes of a value for reusable memory; smaller values are sealed immediately.
const BYTES_MIN: usize = 1 << 20;
/// Maximum ratio of a memory's size to that of its value. Larger memories are left for larger values.
const OVERSIZE_MAX: usize = 2;

/// Memories of values by number; the numbers are bits of a word.
#[derive(Debug)]
pub(super) struct MemoryPool {
    all: [Option<UnsealedFile>; u64::BITS as usize],
    /// Maximum bytes of one value.
    value_bytes_max: u64,
}

/// A value before it is sent.
#[derive(Debug)]
pub(super) enum OutputValue {
    Inline(Vec<u8>),
    File(ValueFile),
}

/// The file of a value before it is sent.
#[derive(Debug)]
pub(super) enum ValueFile {
    /// A sealed file.
    Sealed(SealedFile),
    /// Number of a memory, and bytes of the value in it.
    Written(u32, u64),
}

impl ValueFile {
    /// Returns the value for a message that is sent after the file.
    pub(super) fn named(&self) -> SentValue<'static> {
        match self {
            ValueFile::Sealed(object) => SentValue::File(object.bytes(), None),
            ValueFile::Written(number, bytes) => SentValue::File(*bytes, Some(*number)),
        }
    }
}

impl MemoryPool {
    pub(super) fn new(value_bytes_max: u64) -> MemoryPool {
        MemoryPool { all: [const { None }; u64::BITS as usize], value_bytes_max }
    }

    /// Checks the length of a value.
    pub(super) fn check_bytes(&self, bytes: usize) -> Result<(), Refusal> {
        let max = self.value_bytes_max;
        if bytes as u64 <= max {
            return Ok(());
        }
        let message =
            format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory (--object-memory)");
        Err(Refusal { code: Code::StoreFull, message })
    }

    /// Writes a value, to a free memory if one fits. `free` is the bit set of free memories, which the node shares.
    pub(super) fn write(&mut self, parts: &[&[u8]], bytes: usize, free: &AtomicU64) -> io::Result<ValueFile> {
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
        if let Err(error) = memory.write_while(parts, check_interrupt) {
            self.close(number);
            return Err(error);
        }
        Ok(ValueFile::Written(number, bytes as u64))
    }

    /// Returns a value's file, with the length of the value.
    pub(super) fn file<'f>(&'f self, value: &'f ValueFile) -> io::Result<(BorrowedFd<'f>, u64)> {
        Ok(match value {
            ValueFile::Sealed(object) => (object.as_fd(), object.bytes()),
            ValueFile::Written(number, bytes) => {
                let missing = || io::Error::other("the memory of a value was dropped");
                (self.all[*number as usize].as_ref().ok_or_else(missing)?.as_fd(), *bytes)
            }
        })
    }

    /// Discards a value's file that is not sent.
    pub(super) fn discard(&mut self, value: &ValueFile) {
        if let ValueFile::Written(number, _) = value {
            self.close(*number);
        }
    }

    /// Drops the memory of this number, which holds a value.
    pub(super) fn close(&mut self, number: u32) {
        if let Some(memory) = self.all.get_mut(number as usize) {
            *memory = None;
        }
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
    memory.write_while(parts, check_interrupt)?;
    memory.seal_verifiably(bytes as u64).map(ValueFile::Sealed)
}

/// Fails if the task that stores a value must end.
fn check_interrupt() -> io::Result<()> {
    if is_interrupted() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// Claims a free memory. Returns whether it was free.
fn clear(free: &AtomicU64, number: u32) -> bool {
    let bit = 1 << number;
    free.load(Acquire) & bit != 0 && free.fetch_and(!bit, AcqRel) & bit != 0
}

/// Returns the refusal of a value for which there is no memory.
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
        let (mut memory_pool, free) = (MemoryPool::new(u64::MAX), AtomicU64::new(0));
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
        let (mut memory_pool, free) = (MemoryPool::new(u64::MAX), AtomicU64::new(0));
        let mut write = |bytes| write(&mut memory_pool, &free, bytes);
        (0..u64::BITS).for_each(|number| assert_eq!(write(BYTES_MIN), Some(number)));
        assert_eq!(write(BYTES_MIN), None);
        free.fetch_or(1 << 7, AcqRel);
        assert_eq!((write(4 * BYTES_MIN), write(BYTES_MIN)), (Some(7), None));
    }
}
