//! Limits of a value store, and its watermarks of memory and open files.

/// Limits of a value store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Bytes of memory.
    pub memory_bytes_max: u64,
    /// Number of open files.
    pub files_max: usize,
}

impl StoreLimits {
    /// Bytes of memory above which eviction starts.
    pub(super) fn memory_high(&self) -> u64 {
        self.memory_bytes_max / 5 * 4
    }

    /// Bytes of memory at which eviction stops.
    pub(super) fn memory_low(&self) -> u64 {
        self.memory_bytes_max / 10 * 7
    }

    /// Number of open files above which eviction starts.
    pub(super) fn files_high(&self) -> usize {
        self.files_max / 5 * 4
    }

    /// Number of open files at which eviction stops.
    pub(super) fn files_low(&self) -> usize {
        self.files_max / 10 * 7
    }

    /// Maximum bytes of memory that is kept for reuse.
    pub(super) fn reusable_max(&self) -> u64 {
        self.memory_bytes_max / 4
    }
}
