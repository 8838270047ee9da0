//! Row groups that workers read: what is decoded there, and given to a job's transform, does not pass through the node.

use std::fs::File;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use sandbar_core::{Code, Fault};
use sandbar_dataset::{DatasetError, RowGroup, RowGroupReader};
use sandbar_worker::{Payload, StoredReader, StoredRows};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// Rows of a batch: what a function takes of them and makes of them should fit a core's cache.
const BATCH_ROWS: usize = 16_384;
/// Blocks of a morsel wait for each other in the node: they may take so many bytes, before they are packed.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// How workers read a row group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct How {
    /// What the function gets.
    pub columns: Vec<Column>,
    /// Which columns its results stand beside, if they do.
    pub beside: Option<Vec<u32>>,
}

/// A column of a row group, as a function gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Column {
    /// Its place among those of the row group.
    pub at: u32,
    /// The function's name for it.
    pub name: String,
    pub nullable: bool,
}

/// A row group as an input.
pub(crate) fn payload(group: &RowGroup, how: &How) -> Result<Payload, Fault> {
    let how = postcard::to_stdvec(&(how, group.description())).map_err(|e| Fault::new(Code::Host, e.to_string()))?;
    let batches = group.rows().div_ceil(BATCH_ROWS as u64);
    Ok(Payload::Stored { file: Some(group.file().clone()), spec: how.into(), batches })
}

/// Whether workers may read these row groups for one morsel, of whose rows a function hands back so many bytes each, and
/// of which so many are kept.
pub(crate) fn is_within(groups: &[RowGroup], handed: u64, output_bytes_max: u64, kept: u64) -> bool {
    let rows = || groups.iter().map(RowGroup::rows);
    let most = rows().max().unwrap_or(0);
    most.saturating_mul(handed) <= output_bytes_max && rows().sum::<u64>().saturating_mul(kept) <= KEPT_BYTES_MAX
}

/// In a worker: what reads a row group.
pub fn reader(how: &[u8], file: File) -> Result<StoredReader, Fault> {
    let (how, description): (How, &[u8]) =
        postcard::from_bytes(how).map_err(|e| Fault::new(Code::Host, format!("how rows are stored: {e}")))?;
    let rows = RowGroupReader::new(Arc::new(file), description, BATCH_ROWS).map_err(damaged)?;
    let mut schema = None;
    Ok(Box::new(rows.map(move |batch| how.rows(&batch.map_err(damaged)?, &mut schema))))
}

impl How {
    fn rows(&self, batch: &RecordBatch, schema: &mut Option<SchemaRef>) -> Result<StoredRows, Fault> {
        let wrong = |e: String| Fault::new(Code::Input, e);
        let places: Vec<usize> = self.columns.iter().map(|column| column.at as usize).collect();
        let beside = |places: &Vec<u32>| batch.project(&places.iter().map(|at| *at as usize).collect::<Vec<_>>());
        let beside = self.beside.as_ref().map(beside).transpose().map_err(|e| wrong(e.to_string()))?;
        let own = batch.project(&places).map_err(|e| wrong(e.to_string()))?;
        let schema = schema.get_or_insert_with(|| {
            let field = |(column, field): (&Column, &Arc<Field>)| {
                Field::new(&column.name, field.data_type().clone(), column.nullable)
            };
            Arc::new(Schema::new(self.columns.iter().zip(own.schema_ref().fields()).map(field).collect::<Vec<_>>()))
        });
        let options = RecordBatchOptions::new().with_row_count(Some(own.num_rows()));
        let own = RecordBatch::try_new_with_options(schema.clone(), own.columns().to_vec(), &options);
        Ok(StoredRows { batch: own.map_err(|e| wrong(e.to_string()))?, beside })
    }
}

/// In a worker: what is wrong with a file whose name the node knows.
fn damaged(error: DatasetError) -> Fault {
    match error {
        DatasetError::Read { reason, .. } => Fault::new(Code::Input, reason),
        other => other.into(),
    }
}

/// What a fault of such a call is to the job, which reads `file`. None where calls of fewer rows may do better.
pub(crate) fn failed(fault: Fault, file: &str) -> Option<TrainError> {
    match fault.code {
        Code::OutputLimit | Code::MemoryLimit => None,
        Code::Input => {
            let (file, reason) = (file.to_owned(), fault.message);
            Some(DatasetError::Read { file, line: None, reason }.into())
        }
        _ => Some(fault.into()),
    }
}
