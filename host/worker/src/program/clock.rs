//! The clock that workers and node share.

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of the machine's monotonic clock, which is the same in all processes.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
