//! Row groups that workers read themselves: the node neither decodes their rows nor passes them on.

use std::fs::File;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use sandbar_core::{Code, Fault};
use sandbar_dataset::{DatasetError, RowGroup, RowGroupReader};
use sandbar_worker::{Payload, StoredReader, StoredRows};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// Rows of a batch. The input and output of a function for one batch should fit a core's cache.
const BATCH_ROWS: usize = 16_384;
/// Maximum bytes of a morsel's blocks, which wait for each other in the node before they are packed.
const MORSEL_BYTES_MAX: u64 = 64 << 20;

/// How a worker reads a row group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowGroupReadSpec {
    /// Columns that the function receives.
    pub columns: Vec<StoredColumn>,
    /// Indices of the companion columns of a scalar function's output.
    pub companions: Option<Vec<u32>>,
}

/// A column of a row group, as a function receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredColumn {
    /// Index among the columns of the row group.
    pub index: u32,
    /// Name of the argument.
    pub name: String,
    pub nullable: bool,
}

/// Returns a row group as the input of a call.
pub(crate) fn payload(group: &RowGroup, spec: &RowGroupReadSpec) -> Result<Payload, Fault> {
    let encoded =
        postcard::to_stdvec(&(spec, group.description())).map_err(|e| Fault::new(Code::Host, e.to_string()))?;
    let batches = group.rows().div_ceil(BATCH_ROWS as u64);
    Ok(Payload::Stored { file: Some(group.file().clone()), spec: encoded.into(), batches })
}

/// Bytes for each row of a row group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BytesPerRow {
    /// Bytes that the function returns.
    pub output: u64,
    /// Bytes of the blocks that the node keeps.
    pub collected: u64,
}

/// Returns whether workers may read these row groups of one morsel: the output of each is within the limit of a call,
/// and all blocks fit the node.
pub(crate) fn are_within_limits(groups: &[RowGroup], bytes_per_row: BytesPerRow, output_bytes_max: u64) -> bool {
    let rows = || groups.iter().map(RowGroup::rows);
    let largest = rows().max().unwrap_or(0);
    largest.saturating_mul(bytes_per_row.output) <= output_bytes_max
        && rows().sum::<u64>().saturating_mul(bytes_per_row.collected) <= MORSEL_BYTES_MAX
}

/// Creates the reader of a row group, in a worker.
///
/// # Errors
/// Fails if `spec` or the row group is malformed.
pub fn create_row_group_reader(spec: &[u8], file: File) -> Result<StoredReader, Fault> {
    let (spec, description): (RowGroupReadSpec, &[u8]) =
        postcard::from_bytes(spec).map_err(|e| Fault::new(Code::Host, format!("the spec of a row group: {e}")))?;
    let batches = RowGroupReader::new(Arc::new(file), description, BATCH_ROWS).map_err(read_fault)?;
    let mut schema = None;
    Ok(Box::new(batches.map(move |batch| spec.select(&batch.map_err(read_fault)?, &mut schema))))
}

impl RowGroupReadSpec {
    /// Returns the arguments and companion columns of a batch. `schema` caches the schema of the arguments.
    fn select(&self, batch: &RecordBatch, schema: &mut Option<SchemaRef>) -> Result<StoredRows, Fault> {
        let fault = |e: ArrowError| Fault::new(Code::Input, e.to_string());
        let project = |indices: Vec<usize>| batch.project(&indices).map_err(fault);
        let companions = self.companions.as_ref().map(|indices| project(indices.iter().map(|i| *i as usize).collect()));
        let beside = companions.transpose()?;
        let arguments = project(self.columns.iter().map(|column| column.index as usize).collect())?;
        let schema = schema.get_or_insert_with(|| {
            let field = |(column, field): (&StoredColumn, &Arc<Field>)| {
                Field::new(&column.name, field.data_type().clone(), column.nullable)
            };
            let fields = self.columns.iter().zip(arguments.schema_ref().fields()).map(field);
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        });
        let options = RecordBatchOptions::new().with_row_count(Some(arguments.num_rows()));
        let batch = RecordBatch::try_new_with_options(schema.clone(), arguments.columns().to_vec(), &options);
        Ok(StoredRows { batch: batch.map_err(fault)?, beside })
    }
}

/// Converts a read error in a worker, which does not know the name of its file.
fn read_fault(error: DatasetError) -> Fault {
    match error {
        DatasetError::Read { reason, .. } => Fault::new(Code::Input, reason),
        other => other.into(),
    }
}

/// Converts a fault of such a call to an error of the job, which reads `file`. `None` if calls of fewer rows may
/// succeed.
pub(crate) fn job_error(fault: Fault, file: &str) -> Option<TrainError> {
    match fault.code {
        Code::OutputLimit | Code::MemoryLimit => None,
        Code::Input => {
            let (file, reason) = (file.to_owned(), fault.message);
            Some(DatasetError::Read { file, line: None, reason }.into())
        }
        _ => Some(fault.into()),
    }
}
