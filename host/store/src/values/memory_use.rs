//! The memory and the open files in use, and whether values must leave memory.

use rustc_hash::FxHashSet;

use super::limits::StoreLimits;
use super::memory::ValueMemory;
use super::value::ValueKey;

/// Memory and open files in use.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    /// Bytes of values in memory, of memory reserved for values that are being read, and of memory kept for reuse.
    bytes: u64,
    /// Values in memory.
    resident: FxHashSet<ValueKey>,
    /// Number of resident values that are files.
    files: usize,
    /// Whether memory or files exceeded the high watermark, and are still above the low one.
    is_draining: bool,
    /// Bytes in use below which evicting more is known to be impossible.
    stuck_at: Option<u64>,
}

impl MemoryUse {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn files(&self) -> usize {
        self.files
    }

    pub(super) fn resident(&self) -> impl Iterator<Item = &ValueKey> {
        self.resident.iter()
    }

    pub(super) fn is_resident(&self, key: ValueKey) -> bool {
        self.resident.contains(&key)
    }

    /// Counts bytes as in use.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Counts bytes as free.
    pub(super) fn release(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    /// Adds a value that is in memory now. Its bytes are reserved separately.
    pub(super) fn add(&mut self, key: ValueKey, memory: &ValueMemory) {
        self.resident.insert(key);
        self.files += usize::from(memory.is_file());
    }

    /// Removes a value that had this memory, if any. Its bytes are released separately.
    pub(super) fn remove(&mut self, key: ValueKey, memory: Option<&ValueMemory>) {
        self.resident.remove(&key);
        self.files -= usize::from(memory.is_some_and(ValueMemory::is_file));
    }

    /// Returns whether values should leave memory now: use exceeded a high watermark, is still above a low one, and
    /// there may be something to evict.
    pub(super) fn must_shrink(&mut self, limits: &StoreLimits) -> bool {
        self.is_draining |= self.bytes > limits.memory_high() || self.files > limits.files_high();
        self.is_draining &= self.bytes > limits.memory_low() || self.files > limits.files_low();
        self.is_draining && self.stuck_at.is_none_or(|at| self.bytes >= at)
    }

    /// Records that nothing can be evicted, until use has grown by a part of the limit.
    pub(super) fn set_stuck(&mut self, limits: &StoreLimits) {
        self.stuck_at = Some(self.bytes + limits.memory_bytes_max / 32);
    }

    /// Records that there may be something to evict again.
    pub(super) fn clear_stuck(&mut self) {
        self.stuck_at = None;
    }
}
