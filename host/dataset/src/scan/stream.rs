//! Batch stream of a morsel, with errors that name the file and the line.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::cast::AsArray as _;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use super::filter::FilterFailure;
use super::reason::{reason_of, reason_of_panic};
use super::text::TextError;
use crate::DatasetError;

/// Floats represent every integer below this one exactly.
const EXACT_INT_MAX: f64 = (1_u64 << 53) as f64;

/// Batches of one morsel, in file order.
pub struct BatchStream {
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch, DatasetError>>,
}

impl BatchStream {
    /// Returns the schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn new(
        schema: SchemaRef,
        batches: SendableRecordBatchStream,
        origin: MorselOrigin,
        batch_rows: usize,
    ) -> BatchStream {
        let target = Arc::clone(&schema);
        let file = origin.file.clone();
        let conformed = batches.map(move |batch| match batch {
            Ok(batch) => {
                let batch = conform(batch, &target, &origin).and_then(|batch| origin.check_widened(batch));
                batch.map(|batch| split_batch(batch, batch_rows))
            }
            Err(error) => Err(origin.explain(&error)),
        });
        let flat = conformed.flat_map(|result| {
            let (split_batch, error) = match result {
                Ok(split_batch) => (split_batch, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            futures::stream::iter(split_batch.into_iter().map(Ok).chain(error.map(Err)))
        });
        // Some damage to a Parquet or Arrow file makes its reader panic; that must not end this process.
        let guarded = AssertUnwindSafe(flat).catch_unwind().map(move |caught| match caught {
            Ok(result) => result,
            Err(panic) => Err(DatasetError::Read { file: file.clone(), line: None, reason: reason_of_panic(&*panic) }),
        });
        BatchStream { schema, batches: guarded.boxed() }
    }
}

impl Stream for BatchStream {
    type Item = Result<RecordBatch, DatasetError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.poll_next_unpin(cx)
    }
}

/// Casts a batch to the scan's schema.
fn conform(batch: RecordBatch, schema: &SchemaRef, origin: &MorselOrigin) -> Result<RecordBatch, DatasetError> {
    if batch.schema_ref() == schema {
        return Ok(batch);
    }
    let rows = batch.num_rows();
    let options = CastOptions { safe: false, ..Default::default() };
    let column = |(array, field): (&ArrayRef, &arrow_schema::FieldRef)| -> Result<ArrayRef, DatasetError> {
        if array.data_type() == field.data_type() {
            return Ok(Arc::clone(array));
        }
        cast_with_options(array, field.data_type(), &options).map_err(|e| DatasetError::Read {
            file: origin.file.clone(),
            line: None,
            reason: format!("column `{}` does not fit {}: {e}", field.name(), field.data_type()),
        })
    };
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(DatasetError::internal)
}

/// Splits a batch that is far larger than requested, and drops an empty one.
fn split_batch(batch: RecordBatch, batch_rows: usize) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    if rows <= batch_rows * 2 {
        return if rows == 0 { Vec::new() } else { vec![batch] };
    }
    (0..rows).step_by(batch_rows).map(|at| batch.slice(at, batch_rows.min(rows - at))).collect()
}

/// Origin of a morsel, for error messages.
pub(super) struct MorselOrigin {
    pub(super) file: String,
    /// Columns of floats that are 64-bit integers in this file, each with a file in which they are floats.
    pub(super) widened: Vec<(usize, String)>,
    /// Filter as given.
    pub(super) filter: Arc<str>,
}

impl MorselOrigin {
    /// Rejects integers from 2^53 on in widened columns: the conversion to floats may have changed them.
    fn check_widened(&self, batch: RecordBatch) -> Result<RecordBatch, DatasetError> {
        for (index, other) in &self.widened {
            let values = batch.column(*index).as_primitive::<Float64Type>();
            if let Some(value) = values.iter().flatten().find(|value| value.abs() >= EXACT_INT_MAX) {
                let reason = format!(
                    "column `{}` has an integer of about {value:e} here and floats in {other}, which represent all \
                     integers only below 2^53; write the column with one type in all files",
                    batch.schema_ref().field(*index).name()
                );
                return Err(DatasetError::Read { file: self.file.clone(), line: None, reason });
            }
        }
        Ok(batch)
    }

    fn explain(&self, error: &DataFusionError) -> DatasetError {
        let mut cause: &(dyn Error + 'static) = error;
        loop {
            if let Some(TextError { file, line, reason }) = cause.downcast_ref() {
                return DatasetError::Read { file: file.clone(), line: *line, reason: reason.clone() };
            }
            if let Some(FilterFailure { row, .. }) = cause.downcast_ref() {
                return self.filter_failed(row, &reason_of(error));
            }
            match cause.source() {
                Some(inner) => cause = inner,
                None => break,
            }
        }
        DatasetError::Read { file: self.file.clone(), line: None, reason: reason_of(error) }
    }

    fn filter_failed(&self, row: &str, reason: &str) -> DatasetError {
        let remedy = if reason.contains(" cast ") { "; TRY_CAST gives null where a value can't be cast" } else { "" };
        let row = if row.is_empty() { "a row".to_owned() } else { format!("the row with {row}") };
        let reason = format!("it has no value for {row} of {}: {reason}{remedy}", self.file);
        DatasetError::Filter { filter: self.filter.to_string(), reason }
    }
}
