//! The batch function `clean`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};

use crate::ids::location_ids;
use crate::instants::Instants;

/// Replacement for a missing value.
pub(crate) const MISSING: i64 = -1;
/// Rows per block: parsed or scaled times of a block stay in the cache.
const BLOCK_ROWS: usize = 512;

/// Returns the columns `pickup_location_id` and `dropoff_location_id` (int64) and `trip_duration` (f64, seconds),
/// without nulls.
///
/// # Errors
/// Names a column that is missing, has the wrong type, or has an unreadable value.
pub(crate) fn clean(batch: &RecordBatch) -> Result<RecordBatch, String> {
    let pickup_ids = location_ids(batch, "pickup_location_id")?;
    let dropoff_ids = location_ids(batch, "dropoff_location_id")?;
    let durations = Float64Array::new(trip_durations(batch)?, None);
    let field = |name, data_type| Field::new(name, data_type, false);
    let schema = Schema::new(vec![
        field("pickup_location_id", DataType::Int64),
        field("dropoff_location_id", DataType::Int64),
        field("trip_duration", DataType::Float64),
    ]);
    let columns: Vec<ArrayRef> = vec![Arc::new(pickup_ids), Arc::new(dropoff_ids), Arc::new(durations)];
    RecordBatch::try_new(Arc::new(schema), columns).map_err(|e| e.to_string())
}

/// Returns a column of the batch.
pub(crate) fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, String> {
    batch.column_by_name(name).ok_or_else(|| {
        let names: Vec<_> = batch.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
        format!("column `{name}` is missing; the batch has {}: select or rename it", names.join(", "))
    })
}

/// Writes `missing` into each null row.
pub(crate) fn fill_nulls<T: Copy>(values: &mut [T], nulls: Option<&NullBuffer>, missing: T) {
    let Some(nulls) = nulls.filter(|n| n.null_count() > 0) else { return };
    for (word, values) in nulls.inner().bit_chunks().iter_padded().zip(values.chunks_mut(64)) {
        let mut unset = !word;
        while (unset.trailing_zeros() as usize) < values.len() {
            values[unset.trailing_zeros() as usize] = missing;
            unset &= unset - 1;
        }
    }
}

fn trip_durations(batch: &RecordBatch) -> Result<ScalarBuffer<f64>, String> {
    let pickups = Instants::of(batch, "pickup_at")?;
    let dropoffs = Instants::of(batch, "dropoff_at")?;
    let rows = batch.num_rows();
    let per_second = pickups.per_second().max(dropoffs.per_second());
    let mut seconds = vec![0.0; rows];
    let (mut pickup_scratch, mut dropoff_scratch) = ([0; BLOCK_ROWS], [0; BLOCK_ROWS]);
    for (block, seconds) in seconds.chunks_mut(BLOCK_ROWS).enumerate() {
        let rows = block * BLOCK_ROWS..block * BLOCK_ROWS + seconds.len();
        let from = pickups.block(rows.clone(), per_second, &mut pickup_scratch)?;
        let to = dropoffs.block(rows, per_second, &mut dropoff_scratch)?;
        for ((seconds, from), to) in seconds.iter_mut().zip(from).zip(to) {
            *seconds = to.wrapping_sub(*from) as f64 / per_second as f64;
        }
    }
    fill_nulls(&mut seconds, pickups.nulls(), MISSING as f64);
    fill_nulls(&mut seconds, dropoffs.nulls(), MISSING as f64);
    Ok(seconds.into())
}
