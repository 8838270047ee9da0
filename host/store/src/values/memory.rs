//! Memory of values, and its reuse by the worker that wrote it.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::{StoreAction, ValueKey, ValueStore};
use crate::{SealedFile, UnsealedValue};

const PAGE_BYTES: u64 = 4096;

/// The memory of a value.
#[derive(Debug)]
pub enum ValueMemory {
    /// Bytes in this process's memory.
    Bytes(Arc<[u8]>),
    /// A sealed file.
    Sealed(SealedFile),
    /// A file that its writer can still write, with the writer's id and the writer's number of the memory.
    Unsealed(UnsealedValue, (WorkerId, u32)),
}

/// Instruction to a worker about memory that it wrote a value to.
#[derive(Debug)]
pub enum WriterAction {
    /// Reuse the memory: no other process has had it.
    Reuse,
    /// Return the memory, which is then [discarded](UnsealedValue::discard), unless the worker is writing it again.
    Trim(UnsealedValue),
    /// Close the file.
    Close,
}

#[derive(Debug)]
pub(super) struct ReusableMemory {
    pub(super) writer: WorkerId,
    pub(super) number: u32,
    pub(super) charge: u64,
    pub(super) memory: UnsealedValue,
}

impl ValueStore {
    /// Offers memory that only its writer has had for reuse, if enough memory is free.
    pub(super) fn keep_for_reuse(&mut self, key: ValueKey) {
        let high = self.high_watermark();
        let reusable: u64 = self.reusable.iter().map(|reusable| reusable.charge).sum();
        let Some(value) = self.all.get_mut(&key) else { return };
        let fits_budget = self.used <= high && reusable + value.charge <= self.limits.memory_bytes_max / 4;
        if !fits_budget {
            return;
        }
        if let Some(ValueMemory::Unsealed(memory, (writer, number))) =
            value.memory.take_if(|memory| matches!(memory, ValueMemory::Unsealed(..)))
        {
            self.files -= 1;
            self.reusable.push_back(ReusableMemory {
                writer,
                number,
                charge: std::mem::take(&mut value.charge),
                memory,
            });
            self.actions.push(StoreAction::Writer(writer, number, WriterAction::Reuse));
        }
    }

    /// Handles a worker's new value in memory that was kept for reuse.
    pub(super) fn take_reusable(&mut self, worker: WorkerId, number: u32) {
        if let Some(at) =
            self.reusable.iter().position(|reusable| (reusable.writer, reusable.number) == (worker, number))
            && let Some(reusable) = self.reusable.remove(at)
        {
            self.used -= reusable.charge;
        }
    }
}

pub(super) fn charge(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

impl ValueMemory {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            ValueMemory::Bytes(bytes) => bytes.len() as u64,
            ValueMemory::Sealed(object) => object.bytes(),
            ValueMemory::Unsealed(unsealed, _) => unsealed.bytes(),
        }
    }

    pub(super) fn charge(&self) -> u64 {
        charge(self.bytes())
    }

    pub(super) fn is_file(&self) -> bool {
        !matches!(self, ValueMemory::Bytes(_))
    }
}
