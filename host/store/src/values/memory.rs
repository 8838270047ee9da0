//! Memory of values, and its reuse by the worker that wrote it.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::{Order, ValueKey, Values};
use crate::{Object, Taken};

const PAGE_BYTES: u64 = 4096;

/// The memory of a value.
#[derive(Debug)]
pub enum Memory {
    /// Bytes in this process's memory.
    Bytes(Arc<[u8]>),
    /// A sealed file.
    Object(Object),
    /// A file that its writer can still write, with the writer's id and the writer's number of the memory.
    Taken(Taken, (WorkerId, u32)),
}

/// Instruction to a worker about memory that it wrote a value to.
#[derive(Debug)]
pub enum Fate {
    /// Reuse the memory: no other process has had it.
    Reuse,
    /// Return the memory, which is then [discarded](UnsealedValue::discard), unless the worker is writing it again.
    Trim(Taken),
    /// Close the file.
    Close,
}

#[derive(Debug)]
pub(super) struct Warm {
    pub(super) writer: WorkerId,
    pub(super) number: u32,
    pub(super) charge: u64,
    pub(super) memory: Taken,
}

impl Values {
    /// Offers memory that only its writer has had for reuse, if enough memory is free.
    pub(super) fn keep_warm(&mut self, key: ValueKey) {
        let high = self.high();
        let warm: u64 = self.warm.iter().map(|warm| warm.charge).sum();
        let Some(value) = self.all.get_mut(&key) else { return };
        let is_little = self.used <= high && warm + value.charge <= self.limits.memory_bytes_max / 4;
        if !is_little {
            return;
        }
        if let Some(Memory::Taken(memory, (writer, number))) =
            value.memory.take_if(|memory| matches!(memory, Memory::Taken(..)))
        {
            self.files -= 1;
            self.warm.push_back(Warm { writer, number, charge: std::mem::take(&mut value.charge), memory });
            self.orders.push(Order::Writer(writer, number, Fate::Reuse));
        }
    }

    /// Handles a worker's new value in memory that was kept for reuse.
    pub(super) fn take_warm(&mut self, worker: WorkerId, number: u32) {
        if let Some(at) = self.warm.iter().position(|warm| (warm.writer, warm.number) == (worker, number))
            && let Some(warm) = self.warm.remove(at)
        {
            self.used -= warm.charge;
        }
    }
}

pub(super) fn charge(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

impl Memory {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Memory::Bytes(bytes) => bytes.len() as u64,
            Memory::Object(object) => object.bytes(),
            Memory::Taken(taken, _) => taken.bytes(),
        }
    }

    pub(super) fn charge(&self) -> u64 {
        charge(self.bytes())
    }

    pub(super) fn is_file(&self) -> bool {
        !matches!(self, Memory::Bytes(_))
    }
}
