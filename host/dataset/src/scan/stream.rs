//! The batches of a morsel, with errors that name the file and the line.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::DatasetError;

/// Bytes read at a time when lines are counted.
const COUNT_BYTES: u64 = 8 << 20;

/// Characters of a reader's message that are passed on. It may quote a row.
const REASON_CHARS_MAX: usize = 400;

/// The batches of one morsel, in file order.
pub struct BatchStream {
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch, DatasetError>>,
}

impl BatchStream {
    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn new(
        schema: SchemaRef,
        batches: SendableRecordBatchStream,
        origin: Origin,
        batch_rows: usize,
    ) -> BatchStream {
        let target = Arc::clone(&schema);
        let origin = Arc::new(origin);
        let file = origin.file.clone();
        let conformed = batches.then(move |batch| {
            let (target, origin) = (Arc::clone(&target), Arc::clone(&origin));
            async move {
                match batch {
                    Ok(batch) => conform(batch, &target, &origin).map(|batch| pieces(batch, batch_rows)),
                    Err(error) => Err(origin.explain(&error).await),
                }
            }
        });
        let flat = conformed.flat_map(|result| {
            let (pieces, error) = match result {
                Ok(pieces) => (pieces, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            futures::stream::iter(pieces.into_iter().map(Ok).chain(error.map(Err)))
        });
        // Some damage to a Parquet or Arrow file makes its reader panic, which is no reason for us to.
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

/// Gives a batch the schema that was promised.
fn conform(batch: RecordBatch, schema: &SchemaRef, origin: &Origin) -> Result<RecordBatch, DatasetError> {
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

/// Cuts a batch that is far larger than was asked for; an empty one vanishes.
fn pieces(batch: RecordBatch, batch_rows: usize) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    if rows <= batch_rows * 2 {
        return if rows == 0 { Vec::new() } else { vec![batch] };
    }
    (0..rows).step_by(batch_rows).map(|at| batch.slice(at, batch_rows.min(rows - at))).collect()
}

/// Where a morsel comes from, for messages.
pub(super) struct Origin {
    pub(super) file: String,
    pub(super) location: ObjectPath,
    pub(super) store: Arc<dyn ObjectStore>,
    /// Where the morsel begins, in formats whose errors count lines from there.
    pub(super) lines_from: Option<u64>,
}

impl Origin {
    async fn explain(&self, error: &DataFusionError) -> DatasetError {
        let reason = reason_of(error);
        let Some((from, (written, within))) = self.lines_from.zip(line_in(&reason)) else {
            return DatasetError::Read { file: self.file.clone(), line: None, reason };
        };
        let line = self.lines_before(from).await.map(|before| before + within);
        let unknown = "an unknown line".to_owned();
        let right = line.map_or(unknown, |line| format!("line {line}"));
        DatasetError::Read {
            file: self.file.clone(),
            line,
            reason: reason.replacen(&format!("line {written}"), &right, 1),
        }
    }

    /// Lines that begin before the first line of a morsel beginning at `from`:
    /// the reader begins with the first line that begins there or later.
    async fn lines_before(&self, from: u64) -> Option<u64> {
        let mut lines = 0;
        let mut last = b'\n';
        let mut at = 0;
        while at < from {
            let end = from.min(at + COUNT_BYTES);
            let bytes = self.store.get_range(&self.location, at..end).await.ok()?;
            lines += bytes.iter().filter(|b| **b == b'\n').count() as u64;
            last = *bytes.last()?;
            at = end;
        }
        Some(lines + u64::from(last != b'\n'))
    }
}

/// The number of a line in arrow-csv's message as it stands there, and what it
/// means: rows that don't parse are counted from 0, others from 1.
fn line_in(reason: &str) -> Option<(u64, u64)> {
    let (at, first) = match reason.find("at line ") {
        Some(at) => (at + 8, 0),
        None => (reason.find("for line ")? + 9, 1),
    };
    let line: u64 = reason[at..].split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some((line, line + 1 - first))
}

/// What engines put before a message to say which of them it is from.
const PREFIXES: [&str; 12] = [
    "Arrow error: ",
    "Csv error: ",
    "Error during planning: ",
    "Execution error: ",
    "External: ",
    "Invalid argument error: ",
    "Json error: ",
    "Object Store error: ",
    "Parquet error: ",
    "Parser error: ",
    "Schema error: ",
    "SQL error: ",
];

/// The innermost cause of an error, in one line of bounded length.
pub(super) fn reason_of(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = text.as_str();
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        text = rest;
    }
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// What a panic in a reader says.
pub(super) fn reason_of_panic(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it is damaged, and the reader gave up: {}", words.unwrap_or("no reason given"))
}
