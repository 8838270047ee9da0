//! The only source of time of transfers: tokio's clock, which tests and simulations can pause and advance.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Awaits a future with a timeout; `None` on timeout.
pub(crate) async fn within_ms<T>(ms: u64, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(ms), future).await.ok()
}

/// Returns whole milliseconds since an instant.
pub(crate) fn ms_since(then: Instant) -> u64 {
    u64::try_from(now().saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
}

/// Returns seconds since an instant.
pub(crate) fn seconds_since(then: Instant) -> f64 {
    now().saturating_duration_since(then).as_secs_f64()
}
