//! Blocks of rows, cut by the workers whose transforms the rows come from: what
//! travels to the node is not looked at again before it is trained with.

use std::fmt::Display;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use sandbar_core::{Code, Fault};
use sandbar_dataset::{BlockWriter, FinishedBlock, Grouper, Grouping};
use sandbar_worker::{Collect, CollectBuffer, PLAN_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// What a worker has to know of a grouping.
#[derive(Serialize, Deserialize)]
struct BlockPlan {
    #[serde(with = "serde_bytes")]
    schema: Vec<u8>,
    keys: Vec<String>,
    features: Vec<String>,
    target: String,
    per_file: bool,
}

/// What workers need to cut rows of `schema` into blocks for `grouper`, if they can.
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

/// In a worker: what cuts the batches of a call, which are rows of the `file`th file.
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

/// Whether a batch that a transform made has the columns that it makes of no rows.
pub(crate) fn check_columns(batch: &RecordBatch, schema: &Schema) -> Result<(), Fault> {
    if batch.schema_ref().fields() == schema.fields() {
        return Ok(());
    }
    Err(columns_differ(format!("{} instead of {}", batch.schema_ref(), schema)))
}

fn columns_differ(difference: impl Display) -> Fault {
    Fault::new(Code::BadOutput, format!("a transform gives other columns for some rows than for others: {difference}"))
}
