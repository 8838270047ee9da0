//! The clock that worker and node have in common.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock, which is the same in all of its processes.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
