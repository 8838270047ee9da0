//! The only place where time comes from: tokio's clock, which a test or a simulation can pause and move on.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// What the future gives, or nothing when it takes longer.
pub(crate) async fn within_ms<T>(ms: u64, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(ms), future).await.ok()
}

/// Whole milliseconds since then.
pub(crate) fn ms_since(then: Instant) -> u64 {
    u64::try_from(now().saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since then.
pub(crate) fn seconds_since(then: Instant) -> f64 {
    now().saturating_duration_since(then).as_secs_f64()
}
