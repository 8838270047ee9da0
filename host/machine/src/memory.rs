//! Shares of the usable memory.

use crate::limits::usable_bytes;

/// Share of the usable memory for grouped rows before they spill.
const ROWS_SHARE: f64 = 0.4;
/// Share for objects of programs before they spill.
const OBJECTS_SHARE: f64 = 0.3;
/// Share for tasks, calls and small values of programs.
const TASKS_SHARE: f64 = 0.3;
/// Share for the stored bytes of morsels that are read concurrently. Decoded morsels are several times as large.
const READING_SHARE: f64 = 0.25;
/// Usable memory where the kernel does not report it.
const FALLBACK_BYTES: u64 = 1 << 30;
/// Approximate memory of the host and its workers, beside rows, while they read large row groups.
const READING_BYTES: u64 = 160 << 20;
/// Limit below which memory is scarce: about the heap of a host that groups millions of rows.
const LITTLE_BYTES: u64 = 512 << 20;

/// Returns whether the memory limit is so low that the process should return free memory to the kernel.
pub fn has_little_memory() -> bool {
    usable_bytes().is_some_and(|bytes| bytes < LITTLE_BYTES)
}

/// Returns the default memory for grouped rows before they spill, in bytes.
pub fn memory_for_rows() -> u64 {
    usable_bytes().map_or(FALLBACK_BYTES, rows_share)
}

/// Returns the share of rows, reduced where it would leave too little memory for reading files.
fn rows_share(usable_bytes: u64) -> u64 {
    let share = (usable_bytes as f64 * ROWS_SHARE) as u64;
    share.min(usable_bytes.saturating_sub(READING_BYTES).max(usable_bytes / 8))
}

/// Returns the default memory for objects of programs before they spill, in bytes.
pub fn memory_for_objects() -> u64 {
    share(OBJECTS_SHARE)
}

/// Returns the memory for the tasks, calls and small values of programs, in bytes. Beyond it, tasks can't be submitted.
pub fn memory_for_tasks() -> u64 {
    share(TASKS_SHARE)
}

/// Returns the number of morsels to read concurrently: one more than workers, or fewer if their stored bytes would exceed a
/// quarter of the usable memory.
pub fn morsels_at_once(workers: usize, morsel_bytes: u64) -> usize {
    at_once(share(READING_SHARE), workers, morsel_bytes)
}

fn at_once(bytes: u64, workers: usize, morsel_bytes: u64) -> usize {
    usize::try_from(bytes / morsel_bytes.max(1)).unwrap_or(usize::MAX).clamp(1, workers + 1)
}

fn share(share: f64) -> u64 {
    usable_bytes().map_or(FALLBACK_BYTES, |bytes| (bytes as f64 * share) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn low_memory_is_left_for_reading_files() {
        for (usable, rows) in [(100, 12), (160, 20), (200, 40), (260, 100), (300, 120), (1000, 400), (100_000, 40_000)]
        {
            assert_eq!(rows_share(usable * MIB) / MIB, rows, "{usable} MiB");
        }
    }

    #[test]
    fn low_memory_limits_concurrent_morsels() {
        for (mib, workers, morsel_mib, expected) in [
            (30, 2, 26, 1),
            (10, 2, 26, 1),
            (64, 2, 26, 2),
            (1000, 2, 26, 3),
            (1000, 16, 200, 5),
            (0, 1, 0, 1),
            (5, 1, 0, 2),
        ] {
            assert_eq!(at_once(mib * MIB, workers, morsel_mib * MIB), expected, "{mib} {workers} {morsel_mib}");
        }
    }
}
