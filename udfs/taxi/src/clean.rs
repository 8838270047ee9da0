//! The batch function `clean`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field, Schema};

use crate::columns::{MISSING, fill_nulls};
use crate::ids::location_ids;
use crate::instants::Instants;

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

fn trip_durations(batch: &RecordBatch) -> Result<ScalarBuffer<f64>, String> {
    let pickups = Instants::from_column(batch, "pickup_at")?;
    let dropoffs = Instants::from_column(batch, "dropoff_at")?;
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
