//! The pipeline of a job's transforms: chunks of batches pass through all transforms in order.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, Field, FieldRef, Schema, SchemaRef};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use sandbar_core::{Code, Fault, Seed};
use sandbar_dataset::{BatchStream, RowGroup};
use sandbar_functions::{log_lines, without_each};
use sandbar_worker::{Binding, CallRequest, CallWork, CollectSpec, CompletedCall, JobCalls, Payload, not_a_column};

use crate::call_input::BatchInput;
use crate::error::TrainError;
use crate::job::{Job, TransformSpec, with_hint};
use crate::stored_rows::{self, BytesPerRow, RowGroupReadSpec};
use crate::transform::{Transform, companion_columns};

/// Maximum batches of a call, which its sandbox processes one after another. A batch should fit the cache, and a call
/// should be worth its sandbox and the blocks that are cut from its output. Training 522 models on the taxi trips takes
/// 2 to 14 % longer with 5 batches, and as long with 20.
const CALL_BATCHES_MAX: usize = 10;
/// Input bytes of a call from which on it takes no more batches.
const CALL_BYTES: usize = 8 << 20;

/// All transforms of a job in order, with the calls that run them.
pub(crate) struct Pipeline {
    pub transforms: Vec<Transform>,
    pub calls: JobCalls,
    /// Columns of the last transform's output that later steps need, if a worker may collect that output. The worker of
    /// a scalar function receives those that the function does not produce as companion columns.
    collected_columns: Option<Vec<String>>,
}

/// Output of the transforms for a chunk.
pub(crate) enum ChunkOutput {
    Batches(Vec<RecordBatch>),
    /// Blocks that a worker collected from the last transform's output.
    Blocks(Buffer),
}

/// The last transform, bound to a collector of its output.
pub(crate) struct CollectBinding {
    pub binding: Arc<Binding>,
    /// Argument of the collector.
    pub argument: u64,
}

/// Output of a collected row group.
pub(crate) struct CollectedRowGroup {
    pub blocks: Buffer,
    /// Number of rows that the worker claims to have read.
    pub rows: u64,
}

/// A transform that refuses its parameters.
pub(crate) struct RefusedParameter {
    /// Index of the transform.
    transform: usize,
    /// The refused parameter, if a single one is to blame.
    name: Option<String>,
}

impl Pipeline {
    pub(crate) fn new(
        transforms: Vec<Transform>,
        calls: JobCalls,
        collected_columns: Option<Vec<String>>,
    ) -> Arc<Pipeline> {
        Arc::new(Pipeline { transforms, calls, collected_columns })
    }

    /// Splits a stream of batches into chunks.
    pub(crate) fn chunks(self: &Arc<Pipeline>, batches: BatchStream) -> BoxStream<'static, Result<Chunk, TrainError>> {
        let pipeline = self.clone();
        let chunks = futures::stream::try_unfold(batches, move |mut batches| {
            let mut chunk = pipeline.chunk(CALL_BATCHES_MAX);
            async move {
                while chunk.batches < CALL_BATCHES_MAX
                    && chunk.input_bytes() < CALL_BYTES
                    && let Some(batch) = batches.try_next().await?
                {
                    chunk.push(batch)?;
                }
                Ok((chunk.batches > 0).then_some((chunk, batches)))
            }
        });
        chunks.boxed()
    }

    /// Returns the last transform's binding with a collection plan.
    pub(crate) fn bind_collector(&self, plan: Vec<u8>) -> Option<Arc<Binding>> {
        self.transforms.last()?.bound.binding.collecting(plan).ok()
    }

    /// Returns the columns that a collector sees of the last transform's output `schema`: all columns of a batch
    /// function, or the companion columns and the output column of a scalar function.
    pub(crate) fn collected_schema(&self, schema: &Schema) -> Option<Schema> {
        let last = self.transforms.last()?;
        let Some(output) = &last.output else { return Some(schema.clone()) };
        let mut columns = companion_columns(schema, self.collected_columns.as_ref()?, output)?;
        columns.push(schema.index_of(output).ok()?);
        schema.project(&columns).ok()
    }

    /// Returns how workers read row groups of `schema`, if there is one transform and its output can be collected.
    pub(crate) fn read_spec(&self, schema: &Schema) -> Option<RowGroupReadSpec> {
        let [only] = &self.transforms[..] else { return None };
        only.read_spec(schema, self.collected_columns.as_ref()?)
    }

    /// Returns whether the only transform's output for all these row groups, rows of `output`, can be collected at
    /// once.
    pub(crate) fn can_collect_row_groups(&self, groups: &[RowGroup], output: &Schema) -> bool {
        let ([only], Some(columns)) = (&self.transforms[..], &self.collected_columns) else { return false };
        let is_produced = |field: &&FieldRef| only.output.as_ref().is_none_or(|name| name == field.name());
        // The size of text and lists is unknown until they are produced.
        let bytes = |field: &FieldRef| field.data_type().primitive_width().unwrap_or(0) as u64;
        let bytes_per_row = BytesPerRow {
            output: output.fields().iter().filter(is_produced).map(bytes).sum(),
            collected: (size_of::<u64>() * columns.len()) as u64,
        };
        stored_rows::are_within_limits(groups, bytes_per_row, only.bound.binding.limits.output_bytes_max)
    }

    /// Runs the only transform on a row group that its worker reads, and collects the output.
    pub(crate) async fn collect_row_group(
        &self,
        payload: Payload,
        seed: u64,
        collect: &CollectBinding,
    ) -> Result<CollectedRowGroup, Fault> {
        let [only] = &self.transforms[..] else { return Err(Fault::new(Code::Host, "rows for no transform")) };
        let spec = CollectSpec { argument: collect.argument, beside: Vec::new() };
        let work = CallWork::Collect(payload, spec.into());
        let completed = self.call(only, collect.binding.clone(), step_seed(seed, 0), work).await?;
        let (blocks, rows) = completed.product.into_collected().map_err(|fault| fault.in_function(&only.udf))?;
        Ok(CollectedRowGroup { blocks, rows })
    }

    async fn call(
        &self,
        transform: &Transform,
        binding: Arc<Binding>,
        seed: u64,
        work: CallWork,
    ) -> Result<CompletedCall, Fault> {
        let response = self.calls.call(CallRequest { binding, seed, work }).await;
        log_lines(&transform.progress, &transform.udf, &response.log);
        response.result
    }

    /// Returns the pipeline without log output, for rows that are transformed again.
    pub(crate) fn without_logs(&self) -> Arc<Pipeline> {
        let transforms = self.transforms.iter().map(Transform::without_logs).collect();
        Pipeline::new(transforms, self.calls.clone(), None)
    }

    /// Returns whether errors of one of the transforms have this name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.transforms.iter().any(|transform| transform.udf == name)
    }

    /// Returns the columns of the transforms' output for rows of `schema`, by running them on no rows.
    pub(crate) async fn output_schema(self: &Arc<Pipeline>, schema: &SchemaRef, seed: u64) -> Result<SchemaRef, Fault> {
        let mut empty = self.chunk(1);
        empty.push(RecordBatch::new_empty(schema.clone()))?;
        let batches = empty.run(seed).await?;
        let missing = || Fault::new(Code::BadOutput, "the transforms give no batch");
        batches.first().map(RecordBatch::schema).ok_or_else(missing)
    }

    /// Returns the transform that fails with `fault` on no rows, and the parameter without which it does not.
    async fn find_refused_parameter(
        &self,
        specs: &[TransformSpec],
        schema: &SchemaRef,
        fault: &Fault,
    ) -> Option<RefusedParameter> {
        let failed = self.transforms.iter().position(|transform| fault.function.as_ref() == Some(&transform.udf))?;
        for (name, params) in without_each(&specs.get(failed)?.params) {
            let mut transforms = self.transforms.clone();
            let Binding { program, function, limits, name: label, .. } = &*transforms[failed].bound.binding;
            let other = Binding::new(program.clone(), *function, params, *limits, label.clone()).ok()?;
            transforms[failed].bound.binding = other;
            let other = Pipeline::new(transforms, self.calls.clone(), None);
            if other.output_schema(schema, 0).await.err().is_none_or(|other| other.message != fault.message) {
                return Some(RefusedParameter { transform: failed, name: Some(name.to_owned()) });
            }
        }
        Some(RefusedParameter { transform: failed, name: None })
    }

    /// Creates a chunk for about `expected_batches` batches.
    pub(crate) fn chunk(self: &Arc<Pipeline>, expected_batches: usize) -> Chunk {
        let input = match self.transforms.is_empty() {
            true => ChunkInput::Batches(Vec::new()),
            false => ChunkInput::Call(self.start_call(0, expected_batches)),
        };
        Chunk { input, batches: 0, rows: 0 }
    }

    fn start_call(self: &Arc<Pipeline>, step: usize, expected_batches: usize) -> TransformCall {
        TransformCall {
            pipeline: self.clone(),
            step,
            input: BatchInput::new(expected_batches),
            scalar_input: Vec::new(),
        }
    }
}

/// Returns the columns after the job's transforms. If a transform refuses its parameters, the error names the
/// parameter.
pub(crate) async fn transformed_schema(
    job: &Job,
    pipeline: &Arc<Pipeline>,
    input: &SchemaRef,
    seed: u64,
) -> Result<SchemaRef, TrainError> {
    let fault = match pipeline.output_schema(input, seed).await {
        Ok(schema) => return Ok(schema),
        Err(fault) => fault,
    };
    let refused = match fault.code {
        Code::Refused => pipeline.find_refused_parameter(&job.transform, input, &fault).await,
        _ => None,
    };
    let has_params = |index: usize| job.transform.get(index).is_some_and(|spec| !spec.params.is_empty());
    let refused = refused.filter(|refused| has_params(refused.transform) || refused.name.is_some());
    let Some(RefusedParameter { transform, name }) = refused else { return Err(fault.into()) };
    let name = name.map_or_else(String::new, |name| format!(".{name}"));
    let key = job.key_label(&format!("transform[{transform}].params{name}"));
    Err(Fault { message: format!("{key}: {}", with_hint(&fault.message)), ..fault }.into())
}

/// Returns the seed of a chunk of a morsel.
pub(crate) fn chunk_seed(seed: u64, morsel: u64, chunk: u64) -> u64 {
    Seed::new(seed).with(&[morsel.to_le_bytes(), chunk.to_le_bytes()].concat()).value()
}

/// Returns the seed of a step for the chunk with this seed.
fn step_seed(seed: u64, step: usize) -> u64 {
    Seed::new(seed).with(&(step as u64).to_le_bytes()).value()
}

/// Batches that pass through all transforms together, in one call of each.
pub(crate) struct Chunk {
    input: ChunkInput,
    batches: usize,
    rows: usize,
}

enum ChunkInput {
    /// Call of the first transform. Its input is written as batches arrive.
    Call(TransformCall),
    /// Batches of a pipeline without transforms.
    Batches(Vec<RecordBatch>),
}

impl Chunk {
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), Fault> {
        self.batches += 1;
        self.rows += batch.num_rows();
        match &mut self.input {
            ChunkInput::Call(call) => call.push(batch)?,
            ChunkInput::Batches(batches) => batches.push(batch),
        }
        Ok(())
    }

    /// Returns the bytes of the first transform's input.
    fn input_bytes(&self) -> usize {
        match &self.input {
            ChunkInput::Call(call) => call.input.bytes(),
            ChunkInput::Batches(_) => 0,
        }
    }

    /// Returns the number of input rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Runs the transforms. Returns at least one batch if there are transforms.
    pub(crate) async fn run(self, seed: u64) -> Result<Vec<RecordBatch>, Fault> {
        match self.run_collecting(seed, None).await? {
            ChunkOutput::Batches(batches) => Ok(batches),
            ChunkOutput::Blocks(_) => Err(Fault::new(Code::Host, "a call without a collector returned blocks")),
        }
    }

    /// Runs the transforms. The last one's worker collects its output if `collect` is given and the worker has all
    /// columns.
    pub(crate) async fn run_collecting(
        self,
        seed: u64,
        collect: Option<&CollectBinding>,
    ) -> Result<ChunkOutput, Fault> {
        let mut call = match self.input {
            ChunkInput::Call(call) => call,
            ChunkInput::Batches(batches) => return Ok(ChunkOutput::Batches(batches)),
        };
        let (pipeline, mut step) = (call.pipeline.clone(), 0);
        loop {
            let seed = step_seed(seed, step);
            let is_last = step + 1 == pipeline.transforms.len();
            if let Some(collect) = collect.filter(|_| is_last && call.can_be_collected()) {
                return Ok(ChunkOutput::Blocks(call.run_collecting(seed, collect).await?));
            }
            let batches = call.run(seed).await?;
            step += 1;
            if step == pipeline.transforms.len() {
                return Ok(ChunkOutput::Batches(batches));
            }
            call = pipeline.start_call(step, batches.len());
            batches.into_iter().try_for_each(|batch| call.push(batch))?;
        }
    }
}

/// A call of a transform.
struct TransformCall {
    pipeline: Arc<Pipeline>,
    step: usize,
    input: BatchInput,
    /// Input batches of a scalar function, which its output column is added to.
    scalar_input: Vec<RecordBatch>,
}

impl TransformCall {
    fn push(&mut self, batch: RecordBatch) -> Result<(), Fault> {
        let transform = &self.pipeline.transforms[self.step];
        let companions = self.companions(transform, &batch);
        let pushed = transform
            .project(&batch)
            .and_then(|input| self.input.push(&self.pipeline.calls, &input, companions.as_ref()));
        pushed.map_err(|fault| fault.in_function(&transform.udf))?;
        if transform.output.is_some() {
            self.scalar_input.push(batch);
        }
        Ok(())
    }

    /// Returns the companion columns of `batch`, if the worker may collect the output of this call.
    fn companions(&self, transform: &Transform, batch: &RecordBatch) -> Option<RecordBatch> {
        let is_last = self.step + 1 == self.pipeline.transforms.len();
        let columns = self.pipeline.collected_columns.as_ref().filter(|_| is_last)?;
        batch.project(&companion_columns(batch.schema_ref(), columns, transform.output.as_ref()?)?).ok()
    }

    /// Returns whether the worker has all columns that a collector needs.
    fn can_be_collected(&self) -> bool {
        self.pipeline.transforms[self.step].output.is_none() || self.input.companions().is_some()
    }

    /// Runs the call in a worker, which collects the output.
    async fn run_collecting(self, seed: u64, collect: &CollectBinding) -> Result<Buffer, Fault> {
        let transform = &self.pipeline.transforms[self.step];
        let beside = self.input.companions().map_or_else(Vec::new, <[_]>::to_vec);
        let payload = self.input.finish().map_err(|fault| fault.in_function(&transform.udf))?;
        let work = CallWork::Collect(payload, CollectSpec { argument: collect.argument, beside }.into());
        let completed = self.pipeline.call(transform, collect.binding.clone(), seed, work).await?;
        Ok(completed.product.into_collected().map_err(|fault| fault.in_function(&transform.udf))?.0)
    }

    /// Runs the call in a worker. Returns at least one batch.
    async fn run(self, seed: u64) -> Result<Vec<RecordBatch>, Fault> {
        let TransformCall { pipeline, step, input, scalar_input } = self;
        let transform = &pipeline.transforms[step];
        let work = CallWork::Process(input.finish().map_err(|fault| fault.in_function(&transform.udf))?);
        let completed = pipeline.call(transform, transform.bound.binding.clone(), seed, work).await?;
        let output = completed.product.into_batches().map_err(|fault| fault.in_function(&transform.udf))?;
        let invalid = |reason: String| Fault::new(Code::BadOutput, reason).in_function(&transform.udf);
        let Some(first) = output.first() else { return Err(invalid("it returned no batch".into())) };
        if let Some(other) = output.iter().find(|b| b.schema_ref() != first.schema_ref()) {
            return Err(invalid(format!("its batches differ: {} and {}", first.schema_ref(), other.schema_ref())));
        }
        let Some(name) = &transform.output else { return Ok(output) };
        let (rows, columns) = (count_rows(&output), first.num_columns());
        if rows != count_rows(&scalar_input) || columns != 1 {
            return Err(not_a_column(columns, rows, count_rows(&scalar_input)).in_function(&transform.udf));
        }
        let columns = split_like(output, &scalar_input).map_err(|e| invalid(e.to_string()))?;
        let batches = scalar_input.iter().zip(columns).map(|(batch, column)| with_column(batch, name, &column));
        batches.collect::<Result<_, _>>().map_err(|e| invalid(e.to_string()))
    }
}

fn count_rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// Splits the rows of `output` into batches of the sizes of `like`, whose row counts add up to the same total.
fn split_like(output: Vec<RecordBatch>, like: &[RecordBatch]) -> Result<Vec<RecordBatch>, ArrowError> {
    if output.iter().map(RecordBatch::num_rows).eq(like.iter().map(RecordBatch::num_rows)) {
        return Ok(output);
    }
    let joined = arrow_select::concat::concat_batches(output[0].schema_ref(), &output)?;
    let mut end = 0;
    let split = like.iter().map(|batch| {
        end += batch.num_rows();
        joined.slice(end - batch.num_rows(), batch.num_rows())
    });
    Ok(split.collect())
}

/// Adds a column to `batch`, or replaces the column of that name.
fn with_column(batch: &RecordBatch, name: &str, column: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let mut fields: Vec<_> = batch.schema_ref().fields().iter().cloned().collect();
    let mut arrays = batch.columns().to_vec();
    let added = column.column(0).clone();
    let field = Arc::new(Field::new(name, added.data_type().clone(), true));
    match fields.iter().position(|f| f.name() == name) {
        Some(index) => {
            fields[index] = field;
            arrays[index] = added;
        }
        None => {
            fields.push(field);
            arrays.push(added);
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array};

    use super::*;

    fn batches(rows: &[usize]) -> Vec<RecordBatch> {
        let mut next = 0..;
        let batch = |rows: &usize| {
            let column = Arc::new(Int64Array::from_iter_values(next.by_ref().take(*rows))) as ArrayRef;
            RecordBatch::try_from_iter([("x", column)]).unwrap()
        };
        rows.iter().map(batch).collect()
    }

    #[test]
    fn output_is_split_like_the_input() {
        for (output, like) in [
            (&[3, 2][..], &[3, 2][..]),
            (&[5], &[3, 2]),
            (&[1, 2, 1, 1], &[3, 2]),
            (&[2, 3], &[3, 2]),
            (&[0, 5], &[2, 0, 3]),
            (&[0], &[0]),
            (&[0], &[0, 0]),
        ] {
            assert_eq!(split_like(batches(output), &batches(like)).unwrap(), batches(like), "{output:?} as {like:?}");
        }
    }
}
