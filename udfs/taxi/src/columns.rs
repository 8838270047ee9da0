//! Columns of a batch, and their nulls.

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::NullBuffer;

/// Replacement for a missing value.
pub(crate) const MISSING: i64 = -1;

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
