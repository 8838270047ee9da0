//! Memory that values lie in, and what becomes of it when its writer could write to it again.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::{Order, ValueKey, Values};
use crate::{Object, Taken};

const PAGE_BYTES: u64 = 4096;

/// Where a value lies that is in memory.
#[derive(Debug)]
pub enum Memory {
    /// In this process's own.
    Bytes(Arc<[u8]>),
    /// In a sealed file.
    Object(Object),
    /// In a file that its writer could still write to: which worker, and its number for this memory.
    Taken(Taken, (WorkerId, u32)),
}

/// What becomes of memory that a worker wrote a value to.
#[derive(Debug)]
pub enum Fate {
    /// Nobody else had it: it may be written again.
    Reuse,
    /// It is to be taken back and [forgotten](Taken::forget), unless it is being written again.
    Trim(Taken),
    /// It is to be given up.
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
    /// Memory that only its writer had is its to write again, if there is enough.
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

    /// A worker has written again to memory that waited for that.
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
