//! Limits of commands about jobs.

use std::time::Duration;

/// Maximum time for a job to end after a stop request.
pub(crate) const END_TIME_MAX: Duration = Duration::from_secs(20);
/// Interval at which a job's end and its new log lines are polled.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of jobs that a filter by state searches.
pub(crate) const SCANNED_JOBS_MAX: usize = 10_000;
