//! Memory that tasks here write large values to, and write again where no other process had it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;

use sandbar_core::{Code, VALUE_INLINE_BYTES_MAX};
use sandbar_process::socket;
use sandbar_sandbox::Refusal;
use sandbar_store::{Object, Unsealed};

use super::{Desk, Returned};
use crate::program::link::{Packet, words};
use crate::program::messages::ValueUp;

/// Values of so many bytes are written to such memory; smaller ones are sealed here.
const BYTES_MIN: usize = 1 << 20;
/// Memory that is so many times larger than a value is left for a larger one.
const OVERSIZE_MAX: usize = 2;
/// Bytes of files that may be on their way to the node. Who has more to store waits.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// How often who waits for that looks.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Memory that values were written to, by number: as many as there are bits for.
#[derive(Debug)]
pub(super) struct Memories {
    all: [Option<Unsealed>; u64::BITS as usize],
    /// Bytes of files that were sent.
    sent: u64,
}

/// A value's file, until it is sent.
#[derive(Debug)]
pub(in crate::program) enum ValueFile {
    /// Sealed.
    Sealed(Object),
    /// So many bytes in memory of this number.
    Written(u32, u64),
}

impl ValueFile {
    pub(in crate::program) fn named(&self) -> ValueUp<'static> {
        match self {
            ValueFile::Sealed(object) => ValueUp::File(object.bytes(), None),
            ValueFile::Written(number, bytes) => ValueUp::File(*bytes, Some(*number)),
        }
    }
}

impl Memories {
    pub(super) fn new() -> Memories {
        Memories { all: [const { None }; u64::BITS as usize], sent: 0 }
    }

    /// Writes a value, to memory that is `free` if there is any.
    fn write(&mut self, parts: &[&[u8]], bytes: usize, free: &AtomicU64) -> io::Result<ValueFile> {
        if bytes < BYTES_MIN {
            return Object::of_parts_verifiably(parts).map(ValueFile::Sealed);
        }
        let (number, memory) = match self.take(bytes, free) {
            Some(taken) => taken,
            None => {
                let memory = Unsealed::new(bytes)?;
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

    /// The smallest of those that are free and large enough, but not much too large.
    fn take(&mut self, bytes: usize, free: &AtomicU64) -> Option<(u32, Unsealed)> {
        let fits = |room: usize| room >= bytes && room / OVERSIZE_MAX <= bytes;
        let all = (0..).zip(&self.all).filter_map(|(number, memory)| Some((memory.as_ref()?.room(), number)));
        let mut fitting: Vec<(usize, u32)> = all.filter(|(room, _)| fits(*room)).collect();
        fitting.sort_unstable();
        let taken = fitting.into_iter().map(|(_, number)| number).find(|number| clear(free, *number))?;
        Some((taken, self.all[taken as usize].take()?))
    }

    /// A number for new memory: one that is not in use, or of memory that is free and does not fit.
    fn place(&self, free: &AtomicU64) -> Option<u32> {
        let unused = (0..u64::BITS).zip(&self.all).find(|(_, memory)| memory.is_none());
        unused.map(|(number, _)| number).or_else(|| (0..u64::BITS).find(|number| clear(free, *number)))
    }
}

fn sealed(mut memory: Unsealed, parts: &[&[u8]], bytes: usize) -> io::Result<ValueFile> {
    memory.write(parts)?;
    memory.seal_verifiably(bytes as u64).map(ValueFile::Sealed)
}

/// Takes what is free. Says whether it was.
fn clear(free: &AtomicU64, number: u32) -> bool {
    let bit = 1 << number;
    free.load(Acquire) & bit != 0 && free.fetch_and(!bit, AcqRel) & bit != 0
}

impl Desk {
    /// A value's parts, as one.
    pub(super) fn keep(&mut self, parts: &[&[u8]]) -> Result<Returned, Refusal> {
        self.keep_beside(parts, VALUE_INLINE_BYTES_MAX)
    }

    /// As [`Desk::keep`], where there is so much room for it in a message.
    pub(super) fn keep_beside(&mut self, parts: &[&[u8]], room: usize) -> Result<Returned, Refusal> {
        // The same part may be there many times.
        let bytes = parts.iter().fold(0_usize, |bytes, part| bytes.saturating_add(part.len()));
        if bytes <= VALUE_INLINE_BYTES_MAX.min(room) {
            return Ok(Returned::Inline(parts.concat()));
        }
        let max = self.value_bytes_max;
        if bytes as u64 > max {
            let message =
                format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory (--object-memory)");
            return Err(Refusal { code: Code::StoreFull, message });
        }
        // What was released before may be free by the next time.
        self.publish();
        self.wait_for_node();
        let free = self.memory.atomic(words::FREE);
        self.memories.write(parts, bytes, free).map(Returned::File).map_err(no_memory)
    }

    /// Waits until the node has taken in what was sent: it has room for it then, in memory or on disk, or has none and says
    /// so. All tasks here wait meanwhile, as long as a disk takes for so many bytes.
    fn wait_for_node(&mut self) {
        let taken_in = |desk: &Desk| desk.memory.atomic(words::TAKEN_IN).load(Acquire);
        while self.memories.sent.saturating_sub(taken_in(self)) > AHEAD_BYTES_MAX {
            self.publish();
            self.bell.ring();
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Sends a value's file over the socket: the next message that names one means it.
    pub(in crate::program) fn send_file(&mut self, file: &ValueFile) -> io::Result<()> {
        let (fd, bytes) = match file {
            ValueFile::Sealed(object) => (object.as_fd(), object.bytes()),
            ValueFile::Written(number, bytes) => {
                let missing = || io::Error::other("a value's memory is not there any more");
                (self.memories.all[*number as usize].as_ref().ok_or_else(missing)?.as_fd(), *bytes)
            }
        };
        socket::send(io::stdin().as_fd(), socket::frame(&Packet::File, &mut self.packet)?, &[fd])?;
        self.memories.sent += bytes;
        Ok(())
    }

    /// A value's file is not sent: nobody wants it.
    pub(in crate::program) fn discard(&mut self, file: &ValueFile) {
        if let ValueFile::Written(number, _) = file {
            self.close(*number);
        }
    }

    /// Memory that a value was written to is given up.
    pub(in crate::program) fn close(&mut self, number: u32) {
        if let Some(memory) = self.memories.all.get_mut(number as usize) {
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

    fn write(memories: &mut Memories, free: &AtomicU64, bytes: usize) -> Option<u32> {
        match memories.write(&[&vec![1; bytes]], bytes, free).unwrap() {
            ValueFile::Sealed(_) => None,
            ValueFile::Written(number, _) => Some(number),
        }
    }

    #[test]
    fn memory_is_written_again_when_it_is_free() {
        let (mut memories, free) = (Memories::new(), AtomicU64::new(0));
        let mut write = |bytes| write(&mut memories, &free, bytes);
        assert_eq!(write(BYTES_MIN - 1), None);
        assert_eq!((write(BYTES_MIN), write(BYTES_MIN)), (Some(0), Some(1)));
        free.fetch_or(0b11, AcqRel);
        assert_eq!((write(BYTES_MIN + 1), free.load(Acquire)), (Some(0), 0b10));
        // Much smaller than it, much larger, and then of the same size.
        assert_eq!((write(4 * BYTES_MIN), write(3 * BYTES_MIN)), (Some(2), Some(3)));
        free.fetch_or(0b100, AcqRel);
        assert_eq!((write(BYTES_MIN), write(BYTES_MIN), write(3 * BYTES_MIN)), (Some(1), Some(4), Some(2)));
    }

    #[test]
    fn there_are_so_many_and_then_values_are_sealed() {
        let (mut memories, free) = (Memories::new(), AtomicU64::new(0));
        let mut write = |bytes| write(&mut memories, &free, bytes);
        (0..u64::BITS).for_each(|number| assert_eq!(write(BYTES_MIN), Some(number)));
        assert_eq!(write(BYTES_MIN), None);
        free.fetch_or(1 << 7, AcqRel);
        assert_eq!((write(4 * BYTES_MIN), write(BYTES_MIN)), (Some(7), None));
    }
}
