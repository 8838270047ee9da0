//! Memory of dropped values that the workers which wrote it may write again.

use std::collections::VecDeque;

use sandbar_core::WorkerId;

use crate::UnsealedValue;

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

/// Memory that no process but its writer has had.
#[derive(Debug)]
pub(super) struct ReusableMemory {
    pub writer: WorkerId,
    /// The writer's number of the memory.
    pub number: u32,
    pub charge: u64,
    pub memory: UnsealedValue,
}

/// All memory that its writers may reuse, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ReusableMemories(VecDeque<ReusableMemory>);

impl ReusableMemories {
    /// Returns the bytes that all of it counts for.
    pub(super) fn charge(&self) -> u64 {
        self.0.iter().map(|reusable| reusable.charge).sum()
    }

    pub(super) fn add(&mut self, memory: ReusableMemory) {
        self.0.push_back(memory);
    }

    /// Removes memory that its writer has written again. Returns the bytes that it counted for.
    pub(super) fn take(&mut self, writer: WorkerId, number: u32) -> Option<u64> {
        let at = self.0.iter().position(|reusable| (reusable.writer, reusable.number) == (writer, number))?;
        Some(self.0.remove(at)?.charge)
    }

    /// Removes the oldest memory.
    pub(super) fn take_oldest(&mut self) -> Option<ReusableMemory> {
        self.0.pop_front()
    }

    /// Removes the memory of a dead worker. Returns the bytes that it counted for.
    pub(super) fn remove_worker(&mut self, worker: WorkerId) -> u64 {
        let removed = self.0.iter().filter(|reusable| reusable.writer == worker).map(|reusable| reusable.charge).sum();
        self.0.retain(|reusable| reusable.writer != worker);
        removed
    }
}
