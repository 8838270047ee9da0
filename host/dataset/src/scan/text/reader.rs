//! Reader of text files: record batches of byte ranges.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::column::{ColumnSpec, TextColumn};
use super::file::TextFile;
use super::inspector::value_count_error;
use super::json::{self, JsonKeys};
use super::options::TextOptions;
use super::record::{RECORD_BYTES_MAX, RawValue, RecordError, RecordStep};
use super::syntax::Syntax;
use crate::DatasetError;

/// Maximum bytes of one column in a batch. Long values reduce the rows of a batch.
const COLUMN_BYTES_MAX: usize = 16 << 20;

/// Partitions of text files with the same columns.
pub(in super::super) struct TextTable {
    schema: SchemaRef,
    options: Arc<TextOptions>,
    batch_rows: usize,
    parts: Vec<Arc<dyn PartitionStream>>,
}

impl TextTable {
    /// Creates a table with the columns `used` and no partitions.
    pub(in super::super) fn new(used: &Schema, options: &TextOptions, batch_rows: usize) -> TextTable {
        let fields: Vec<_> = used.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let (schema, options) = (Arc::new(Schema::new(fields)), Arc::new(options.clone()));
        TextTable { schema, options, batch_rows: batch_rows.max(1), parts: Vec::new() }
    }

    /// Adds a byte range of a file as the next partition. `folders` has the values of columns of folder names.
    pub(in super::super) fn push(
        &mut self,
        file: &Arc<TextFile>,
        range: Range<u64>,
        folders: &[(String, ScalarValue)],
    ) {
        let constant = |name: &str| folders.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let columns = self.schema.fields().iter().map(|field| {
            let is_declared = self.options.declared(field.name()).is_some();
            let (name, data_type) = (field.name().clone(), field.data_type().clone());
            let source = match constant(field.name()) {
                Some(value) => ColumnSource::Folder(value),
                None => ColumnSource::Column(file.columns.iter().position(|column| column == field.name())),
            };
            (ColumnSpec { name, data_type, is_declared }, source)
        });
        self.parts.push(Arc::new(TextPartition {
            file: Arc::clone(file),
            range,
            schema: Arc::clone(&self.schema),
            columns: columns.collect::<Vec<_>>().into(),
            options: Arc::clone(&self.options),
            batch_rows: self.batch_rows,
        }));
    }

    /// Returns the number of partitions.
    pub(in super::super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the plan of the partitions.
    pub(in super::super) fn plan(self) -> Result<Arc<dyn ExecutionPlan>, DatasetError> {
        let exec = StreamingTableExec::try_new(self.schema, self.parts, None, [], false, None);
        Ok(Arc::new(exec.map_err(DatasetError::internal)?))
    }
}

/// Source of a column's values.
#[derive(Debug, Clone)]
enum ColumnSource {
    /// Column of the file, by index; JSON values are found by name.
    Column(Option<usize>),
    /// Constant value of a folder name.
    Folder(ScalarValue),
}

#[derive(Debug)]
struct TextPartition {
    file: Arc<TextFile>,
    range: Range<u64>,
    schema: SchemaRef,
    columns: Arc<[(ColumnSpec, ColumnSource)]>,
    options: Arc<TextOptions>,
    batch_rows: usize,
}

impl PartitionStream for TextPartition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let keys = JsonKeys::new(self.columns.iter().map(|(spec, _)| spec.name.clone()));
        let reader = PartitionReader {
            chunks: self.file.bytes.chunks(self.range.start, self.range.end),
            keys,
            buffer: Vec::new(),
            // If ranges can't be read independently, the reader starts at the beginning of the file.
            base: if self.file.bytes.len().is_some() { self.range.start } else { 0 },
            at: 0,
            is_end: false,
            file: Arc::clone(&self.file),
            schema: Arc::clone(&self.schema),
            columns: Arc::clone(&self.columns),
            options: Arc::clone(&self.options),
            batch_rows: self.batch_rows,
        };
        let batches = futures::stream::try_unfold(reader, |mut reader| async move {
            let batch = reader.next().await.map_err(|error| DataFusionError::External(Box::new(error)))?;
            Ok(batch.map(|batch| (batch, reader)))
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}

/// Error while reading a text file. It passes through DataFusion unchanged.
#[derive(Debug)]
pub(in super::super) struct TextError {
    pub(in super::super) file: String,
    pub(in super::super) line: Option<u64>,
    pub(in super::super) reason: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for TextError {}

/// Reader of one partition.
struct PartitionReader {
    file: Arc<TextFile>,
    chunks: BoxStream<'static, Result<Bytes, String>>,
    schema: SchemaRef,
    columns: Arc<[(ColumnSpec, ColumnSource)]>,
    keys: JsonKeys,
    options: Arc<TextOptions>,
    batch_rows: usize,
    /// Bytes read but not yet split completely.
    buffer: Vec<u8>,
    /// Offset of the buffer in the file.
    base: u64,
    /// Bytes of the buffer that are done.
    at: usize,
    is_end: bool,
}

/// Rows of the next batch.
struct PendingRows {
    columns: Vec<TextColumn>,
    /// Start of each row in the file.
    begin: Vec<u64>,
}

impl PartitionReader {
    async fn next(&mut self) -> Result<Option<RecordBatch>, TextError> {
        let columns = self.columns.iter().map(|_| TextColumn::new(self.batch_rows.min(1 << 16))).collect();
        let mut rows = PendingRows { columns, begin: Vec::new() };
        loop {
            let buffer = std::mem::take(&mut self.buffer);
            let filled = self.fill(&buffer, &mut rows);
            self.buffer = buffer;
            match filled {
                Ok(true) => break,
                Ok(false) => self.read().await?,
                Err((at, reason)) => return Err(self.error(at, reason).await),
            }
        }
        if rows.begin.is_empty() {
            return Ok(None);
        }
        match self.batch(rows) {
            Ok(batch) => Ok(Some(batch)),
            Err((at, reason)) => Err(self.error(at, reason).await),
        }
    }

    /// Reads the next chunk.
    async fn read(&mut self) -> Result<(), TextError> {
        self.buffer.drain(..self.at);
        (self.base, self.at) = (self.base + self.at as u64, 0);
        if self.buffer.len() > RECORD_BYTES_MAX {
            let reason =
                format!("the record that starts in the line does not end within {} MiB", RECORD_BYTES_MAX >> 20);
            return Err(self.error(self.base, reason).await);
        }
        match self.chunks.next().await.transpose() {
            Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
            Ok(None) => self.is_end = true,
            Err(reason) => return Err(TextError { file: self.file.name.clone(), line: None, reason }),
        }
        Ok(())
    }

    /// Adds rows from the buffer. Returns whether the batch is complete.
    fn fill(&mut self, buffer: &[u8], rows: &mut PendingRows) -> Result<bool, (u64, String)> {
        let mut values = Vec::new();
        while rows.begin.len() < self.batch_rows {
            let step = match self.file.syntax {
                Syntax::Csv(csv) => csv.record(buffer, self.at, self.is_end, &mut values),
                Syntax::Json => json::record(&mut self.keys, buffer, self.at, self.is_end, &mut values),
            };
            match step.map_err(|RecordError { at, reason }| (self.base + at as u64, reason))? {
                RecordStep::End => return Ok(true),
                RecordStep::More(from) => {
                    self.at = from;
                    return Ok(false);
                }
                RecordStep::Record { start, end } => {
                    self.at = end;
                    let here = self.base + start as u64;
                    // The header is skipped here, if the file is read from its beginning.
                    if here >= self.file.first {
                        self.row(&values, rows, here).map_err(|reason| (here, reason))?;
                    }
                }
            }
            if rows.columns.iter().any(|column| column.bytes() > COLUMN_BYTES_MAX) {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn row(&self, values: &[RawValue<'_>], rows: &mut PendingRows, here: u64) -> Result<(), String> {
        if let Syntax::Csv(_) = self.file.syntax {
            value_count_error(values.len(), self.file.columns.len()).map_or(Ok(()), Err)?;
        }
        for (number, ((spec, source), column)) in self.columns.iter().zip(&mut rows.columns).enumerate() {
            let value = match (source, self.file.syntax) {
                (ColumnSource::Folder(_), _) => RawValue::Absent,
                (ColumnSource::Column(Some(at)), Syntax::Csv(_)) => values[*at],
                (ColumnSource::Column(_), _) => values.get(number).copied().unwrap_or(RawValue::Absent),
            };
            let pushed = column.push(value, self.file.syntax, &self.options);
            pushed.map_err(|reason| format!("column `{}` {reason}", spec.name))?;
        }
        rows.begin.push(here);
        Ok(())
    }

    fn batch(&self, rows: PendingRows) -> Result<RecordBatch, (u64, String)> {
        let PendingRows { columns, begin } = rows;
        let all = columns.into_iter().zip(self.columns.iter()).map(|(column, (spec, source))| match source {
            ColumnSource::Folder(value) => {
                let array = value.to_array_of_size(begin.len());
                array.map_err(|e| (self.base, super::super::reason::reason_of(&e)))
            }
            ColumnSource::Column(_) => column.finish(spec).map_err(|fault| (begin[fault.row], fault.reason)),
        });
        let all = all.collect::<Result<Vec<ArrayRef>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(begin.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), all, &options)
            .map_err(|e| (self.base, super::super::reason::reason_of(&e)))
    }

    /// Returns an error that names the line at `at`.
    fn error(&self, at: u64, reason: String) -> impl Future<Output = TextError> + Send + use<> {
        let file = Arc::clone(&self.file);
        async move {
            let line = file.bytes.line_of(at, |byte| file.syntax.skips(byte)).await;
            TextError { file: file.name.clone(), line, reason }
        }
    }
}
