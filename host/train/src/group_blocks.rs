//! Grouping of rows in workers.
//!
//! The worker that runs the last transform converts its output rows to blocks for the grouper. The node stores the
//! blocks until training, and does not decode them.

use std::fmt::Display;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use sandbar_core::{Code, Fault};
use sandbar_dataset::{BlockWriter, FinishedBlock, Grouper, Grouping};
use sandbar_worker::{Collect, CollectBuffer, PLAN_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// What a worker needs to write blocks.
#[derive(Serialize, Deserialize)]
struct BlockPlan {
    #[serde(with = "serde_bytes")]
    schema: Vec<u8>,
    keys: Vec<String>,
    features: Vec<String>,
    target: String,
    per_file: bool,
}

/// Encodes the plan for blocks of rows of `schema`. `None` if `grouper` accepts no blocks, or the plan is too large.
pub(crate) fn encode_plan(grouper: &Grouper, grouping: &Grouping, schema: &Schema) -> Option<Vec<u8>> {
    if !grouper.accepts_blocks() {
        return None;
    }
    let plan = BlockPlan {
        schema: sandbar_batch::encode_schema(schema).ok()?,
        keys: grouping.keys.clone(),
        features: grouping.features.clone(),
        target: grouping.target.clone(),
        per_file: grouping.per_file,
    };
    postcard::to_stdvec(&plan).ok().filter(|plan| plan.len() <= PLAN_BYTES_MAX)
}

/// Creates the collector of a call, in a worker. The rows of the call belong to the input file with index `file`.
///
/// # Errors
/// Fails if the plan is malformed.
pub fn create_block_collector(plan: &[u8], file: u64) -> Result<Box<dyn Collect>, Fault> {
    let invalid = |reason: String| Fault::new(Code::Host, format!("the plan of a block collector: {reason}"));
    let plan: BlockPlan = postcard::from_bytes(plan).map_err(|e| invalid(e.to_string()))?;
    let schema = Arc::new(sandbar_batch::decode_schema(&plan.schema).map_err(|e| invalid(e.to_string()))?);
    let BlockPlan { keys, features, target, per_file, .. } = plan;
    let grouping = Grouping { keys, features, target, per_file, ..Grouping::default() };
    let file = u32::try_from(file).map_err(|e| invalid(e.to_string()))?;
    let writer = BlockWriter::new(&grouping, &schema, file).map_err(|e| invalid(e.to_string()))?;
    Ok(Box::new(BlockCollector { writer, schema }))
}

struct BlockCollector {
    writer: BlockWriter,
    schema: SchemaRef,
}

impl Collect for BlockCollector {
    fn push(
        &mut self,
        batch: &RecordBatch,
        companions: Option<&RecordBatch>,
        to: &mut CollectBuffer,
    ) -> Result<(), Fault> {
        let Some(companions) = companions else {
            check_columns(batch, &self.schema)?;
            return self.writer.push(batch, |block| append(block, to));
        };
        let columns = companions.columns().iter().chain(batch.columns()).cloned().collect();
        let rows = RecordBatch::try_new(self.schema.clone(), columns).map_err(columns_differ)?;
        self.writer.push(&rows, |block| append(block, to))
    }

    fn finish(&mut self, to: &mut CollectBuffer) -> Result<(), Fault> {
        self.writer.flush().map_or(Ok(()), |block| append(block, to))
    }
}

fn append(block: FinishedBlock, to: &mut CollectBuffer) -> Result<(), Fault> {
    to.append(block.words(), |words| block.write(words))
}

/// Checks that a transform's output has the columns that the transform returned for no rows.
pub(crate) fn check_columns(batch: &RecordBatch, schema: &Schema) -> Result<(), Fault> {
    if batch.schema_ref().fields() == schema.fields() {
        return Ok(());
    }
    Err(columns_differ(format!("{} instead of {}", batch.schema_ref(), schema)))
}

fn columns_differ(difference: impl Display) -> Fault {
    Fault::new(Code::BadOutput, format!("the columns of a transform differ between batches: {difference}"))
}
