//! The taxi transform: typed columns and the trip's duration.

use sandbar_guest::prelude::*;

/// Seconds between two timestamps.
#[scalar]
pub fn duration(pickup_at: Timestamp, dropoff_at: Timestamp) -> f64 {
    (dropoff_at.micros() - pickup_at.micros()) as f64 / 1e6
}

/// The sum of two integers.
#[scalar]
pub fn add(a: i64, b: i64) -> i64 {
    a.wrapping_add(b)
}
