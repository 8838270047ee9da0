//! The taxi transform: typed columns and the duration of each trip.

mod clean;
mod columns;
mod ids;
mod instants;

#[cfg(test)]
mod tests;

use sandbar_guest::prelude::*;

/// Seconds between two timestamps.
#[scalar]
pub fn duration(pickup_at: Timestamp, dropoff_at: Timestamp) -> f64 {
    dropoff_at.micros().wrapping_sub(pickup_at.micros()) as f64 / 1e6
}

/// The sum of two integers.
#[scalar]
pub fn add(a: i64, b: i64) -> i64 {
    a.wrapping_add(b)
}

/// Location ids as integers and the trip's duration in seconds; -1 for missing values.
#[batch(columns("pickup_at", "dropoff_at", "pickup_location_id", "dropoff_location_id"))]
pub fn clean(batch: RecordBatch) -> Result<RecordBatch, String> {
    clean::clean(&batch)
}
