//! Measurement of a byte rate.

use std::sync::{Mutex, PoisonError};

use super::clock::{Instant, now, seconds_since};

/// Length of a measurement window, in seconds.
const WINDOW_S: f64 = 0.25;

/// A recent byte rate.
#[derive(Debug, Default)]
pub(crate) struct RateMeter(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    since: Instant,
    bytes: u64,
    /// Bytes a second in the previous window.
    before: f64,
}

impl RateMeter {
    /// Counts bytes.
    pub(crate) fn add(&self, bytes: u64) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = window.get_or_insert_with(|| Window { since: now(), bytes: 0, before: 0.0 });
        window.bytes += bytes;
        let seconds = seconds_since(window.since);
        if seconds >= WINDOW_S {
            *window = Window { since: now(), bytes: 0, before: window.bytes as f64 / seconds };
        }
    }

    /// Returns bytes a second in the last complete window, or zero if that is long ago.
    pub(crate) fn per_s(&self) -> u64 {
        let window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        window.as_ref().filter(|window| seconds_since(window.since) < 4.0 * WINDOW_S).map_or(0, |w| w.before as u64)
    }
}
