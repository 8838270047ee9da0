//! The memory of one value.

use std::sync::Arc;

use sandbar_core::WorkerId;

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

/// Returns the bytes that a value of this length counts for in memory: whole pages.
pub(super) fn charge(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

impl ValueMemory {
    /// Returns the length of the value in bytes.
    pub fn bytes(&self) -> u64 {
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
