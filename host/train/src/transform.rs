//! Transforms: what they need, and running them over a batch.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use sandbar_core::{Code, Fault, FunctionKind, Seed};
use sandbar_dataset::{BatchStream, RowGroup};
use sandbar_functions::{BoundFunction, JobFunctions, decode_schema, log_lines, without_each};
use sandbar_jobs::JobProgress;
use sandbar_worker::{Binding, CallRequest, CallWork, CollectSpec, CompletedCall, Payload, Pool, not_a_column};

use crate::error::TrainError;
use crate::input::BatchInput;
use crate::job::{Columns, TransformSpec};
use crate::runner::JobRunner;
use crate::stored_rows;
use crate::stored_rows::{Column, How};

/// Functions that can be transforms.
pub(crate) const TRANSFORMS: [FunctionKind; 2] = [FunctionKind::Scalar, FunctionKind::Batch];

/// Batches that a transform takes in one call, one after another: what a batch touches should fit the cache, and
/// a call should be worth its sandbox and the blocks of rows that are cut of it. With five, 522 models over the taxi
/// trips take 2 to 14 % longer, with twenty as long.
const CALL_BATCHES: usize = 10;
/// A call takes no more batches once its input has so many bytes.
const CALL_BYTES: usize = 8 << 20;

/// A transform, ready to run.
#[derive(Clone)]
pub(crate) struct Transform {
    callable: BoundFunction,
    /// Column of the input for each argument; none means all columns as they are.
    columns: Option<Vec<(String, String)>>,
    /// Types of a scalar function's arguments.
    types: Vec<DataType>,
    output: Option<String>,
    udf: String,
    progress: Arc<JobProgress>,
}

/// The columns that some step needs: these, or all there are.
pub(crate) type Needed = Option<Vec<String>>;

/// All transforms of a job, in their order, and the workers that run them.
pub(crate) struct Steps {
    pub transforms: Vec<Transform>,
    pub pool: Arc<Pool>,
    /// The columns that the rows behind the last transform need, if a worker may collect them. Those that a scalar
    /// function does not make are lent to its worker as well.
    pub behind: Option<Vec<String>>,
}

/// What the transforms make of a chunk.
pub(crate) enum Made {
    Batches(Vec<RecordBatch>),
    /// What a worker collected of the last one's batches.
    Blocks(Buffer),
}

/// The last transform, with what its batches are collected by.
pub(crate) struct Collected {
    pub binding: Arc<Binding>,
    /// The collector's argument.
    pub argument: u64,
}

impl Steps {
    /// The batches of a morsel, so many to a chunk, as they are read.
    pub(crate) fn chunks(self: &Arc<Steps>, batches: BatchStream) -> BoxStream<'static, Result<Chunk, TrainError>> {
        let steps = self.clone();
        let chunks = futures::stream::try_unfold(batches, move |mut batches| {
            let mut chunk = steps.chunk(CALL_BATCHES);
            async move {
                while chunk.batches < CALL_BATCHES
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

    /// The last transform, for workers that collect what comes of it by `plan`.
    pub(crate) fn collecting(&self, plan: Vec<u8>) -> Option<Arc<Binding>> {
        self.transforms.last()?.callable.binding.collecting(plan).ok()
    }

    /// What workers have of the columns behind the last transform, which are those of `schema`: all that a batch
    /// function hands back, or what a scalar function does behind the columns that it is put beside.
    pub(crate) fn collected_schema(&self, schema: &Schema) -> Option<Schema> {
        let last = self.transforms.last()?;
        let Some(output) = &last.output else { return Some(schema.clone()) };
        let mut columns = beside(schema, self.behind.as_ref()?, output)?;
        columns.push(schema.index_of(output).ok()?);
        schema.project(&columns).ok()
    }

    /// How workers read rows of `schema` for the transforms, if there is one, whose results they collect.
    pub(crate) fn stored(&self, schema: &Schema) -> Option<How> {
        let [only] = &self.transforms[..] else { return None };
        only.stored(schema, self.behind.as_ref()?)
    }

    /// Whether what the only transform makes of row groups, rows of `made`, can be collected at once.
    pub(crate) fn may_collect_stored(&self, groups: &[RowGroup], made: &Schema) -> bool {
        let ([only], Some(behind)) = (&self.transforms[..], &self.behind) else { return false };
        let is_handed = |field: &&FieldRef| only.output.as_ref().is_none_or(|output| output == field.name());
        // Of text and lists it turns out.
        let bytes = |field: &FieldRef| field.data_type().primitive_width().unwrap_or(0) as u64;
        let handed = made.fields().iter().filter(is_handed).map(bytes).sum();
        let output_bytes_max = only.callable().binding.limits.output_bytes_max;
        stored_rows::is_within(groups, handed, output_bytes_max, (size_of::<u64>() * behind.len()) as u64)
    }

    /// Has a worker read rows for the only transform, and collect what comes of it. Gives that, and how many rows the
    /// worker says it read.
    pub(crate) async fn collect_stored(
        &self,
        payload: Payload,
        seed: u64,
        collected: &Collected,
    ) -> Result<(Buffer, u64), Fault> {
        let [only] = &self.transforms[..] else { return Err(Fault::new(Code::Host, "rows for no transform")) };
        let to = CollectSpec { argument: collected.argument, beside: Vec::new() };
        let work = CallWork::Collect(payload, to.into());
        let completed = self.call(only, collected.binding.clone(), step_seed(seed, 0), work).await?;
        completed.product.into_collected().map_err(|fault| fault.of(&only.udf))
    }

    async fn call(
        &self,
        transform: &Transform,
        binding: Arc<Binding>,
        seed: u64,
        work: CallWork,
    ) -> Result<CompletedCall, Fault> {
        let called = self.pool.call(CallRequest { binding, seed, work }).await;
        log_lines(&transform.progress, &transform.udf, &called.log);
        called.result
    }

    /// The same, of whose logs nothing is told: for rows that are transformed again.
    pub(crate) fn unheard(&self) -> Arc<Steps> {
        let unheard = |transform: &Transform| Transform { progress: Arc::default(), ..transform.clone() };
        let transforms = self.transforms.iter().map(unheard).collect();
        Arc::new(Steps { transforms, pool: self.pool.clone(), behind: None })
    }

    /// Whether errors of one of the transforms have this name.
    pub(crate) fn has(&self, function: &str) -> bool {
        self.transforms.iter().any(|transform| transform.udf == function)
    }

    /// The columns of what the transforms make of rows of `schema`: of what they make of no rows.
    pub(crate) async fn schema(self: &Arc<Steps>, schema: &SchemaRef, seed: u64) -> Result<SchemaRef, Fault> {
        let mut empty = self.chunk(1);
        empty.push(RecordBatch::new_empty(schema.clone()))?;
        let made = empty.run(seed).await?;
        made.first().map(RecordBatch::schema).ok_or_else(|| Fault::new(Code::BadOutput, "the transforms give no batch"))
    }

    /// The transform that `fault` is of, over no rows, and the parameter without which it is another or none.
    pub(crate) async fn refused_parameter(
        &self,
        specs: &[TransformSpec],
        schema: &SchemaRef,
        fault: &Fault,
    ) -> Option<(usize, Option<String>)> {
        let at = self.transforms.iter().position(|transform| fault.function.as_ref() == Some(&transform.udf))?;
        for (name, params) in without_each(&specs.get(at)?.params) {
            let mut transforms = self.transforms.clone();
            let Binding { program, function, limits, name: label, .. } = &*transforms[at].callable.binding;
            let other = Binding::new(program.clone(), *function, params, *limits, label.clone()).ok()?;
            transforms[at].callable.binding = other;
            let others = Arc::new(Steps { transforms, pool: self.pool.clone(), behind: None });
            if others.schema(schema, 0).await.err().is_none_or(|other| other.message != fault.message) {
                return Some((at, Some(name.to_owned())));
            }
        }
        Some((at, None))
    }

    /// A chunk for so many batches, about.
    pub(crate) fn chunk(self: &Arc<Steps>, expected: usize) -> Chunk {
        let first =
            if self.transforms.is_empty() { First::None(Vec::new()) } else { First::Call(self.begin(0, expected)) };
        Chunk { first, batches: 0, rows: 0 }
    }

    fn begin(self: &Arc<Steps>, step: usize, expected: usize) -> Call {
        Call { steps: self.clone(), step, input: BatchInput::new(expected), beside: Vec::new() }
    }
}

/// Batches that go through all transforms together, in one call of each. The first transform's input is laid out while
/// they come.
pub(crate) struct Chunk {
    first: First,
    batches: usize,
    rows: usize,
}

enum First {
    Call(Call),
    /// There is no transform.
    None(Vec<RecordBatch>),
}

impl Chunk {
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), Fault> {
        self.batches += 1;
        self.rows += batch.num_rows();
        match &mut self.first {
            First::Call(call) => call.push(batch)?,
            First::None(batches) => batches.push(batch),
        }
        Ok(())
    }

    /// Bytes of its first transform's input.
    fn input_bytes(&self) -> usize {
        match &self.first {
            First::Call(call) => call.input.bytes(),
            First::None(_) => 0,
        }
    }

    /// The rows it has taken.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// What the transforms make of it; `seed` says which batches they are.
    pub(crate) async fn run(self, seed: u64) -> Result<Vec<RecordBatch>, Fault> {
        match self.collect(seed, None).await? {
            Made::Batches(batches) => Ok(batches),
            Made::Blocks(_) => Err(Fault::new(Code::Host, "batches were collected that nobody asked for")),
        }
    }

    /// The same, collected where it is made if `collected` says by what.
    pub(crate) async fn collect(self, seed: u64, collected: Option<&Collected>) -> Result<Made, Fault> {
        let mut call = match self.first {
            First::Call(call) => call,
            First::None(batches) => return Ok(Made::Batches(batches)),
        };
        let (steps, mut step) = (call.steps.clone(), 0);
        loop {
            let seed = step_seed(seed, step);
            let is_last = step + 1 == steps.transforms.len();
            if let Some(collected) = collected.filter(|_| is_last && call.can_be_collected()) {
                return Ok(Made::Blocks(call.collect(seed, collected).await?));
            }
            let batches = call.run(seed).await?;
            step += 1;
            if step == steps.transforms.len() {
                return Ok(Made::Batches(batches));
            }
            call = steps.begin(step, batches.len());
            batches.into_iter().try_for_each(|batch| call.push(batch))?;
        }
    }
}

impl Transform {
    /// A transform of a job. `key` says where its function is named.
    pub(crate) async fn bind(
        runner: &JobRunner,
        functions: &mut JobFunctions,
        key: &str,
        spec: &TransformSpec,
    ) -> Result<Transform, TrainError> {
        let callable = functions.bind(key, &spec.udf, &TRANSFORMS, &spec.params).await?;
        Transform::of(runner, callable, spec)
    }

    /// A transform whose function is known.
    pub(crate) fn of(
        runner: &JobRunner,
        callable: BoundFunction,
        spec: &TransformSpec,
    ) -> Result<Transform, TrainError> {
        let udf = callable.binding.name.clone();
        let arguments = decode_schema(&callable.function.arguments).map_err(|f| f.of(&udf))?;
        let scalar = callable.function.kind == FunctionKind::Scalar;
        let columns = columns(spec, &arguments, scalar).map_err(|e| TrainError::Invalid(format!("`{udf}`: {e}")))?;
        let types = arguments.fields().iter().map(|f| f.data_type().clone()).collect();
        let output = scalar.then(|| spec.output.clone().unwrap_or_else(|| callable.function.name.clone()));
        Ok(Transform { callable, columns, types, output, udf, progress: runner.progress.clone() })
    }

    pub(crate) fn callable(&self) -> &BoundFunction {
        &self.callable
    }

    /// The columns needed before this step, from those needed behind it.
    pub(crate) fn needs(&self, behind: Needed) -> Needed {
        let own = self.columns.as_ref().map(|c| c.iter().map(|(_, column)| column.clone()).collect::<Vec<_>>());
        match &self.output {
            None => own,
            Some(output) => {
                let mut all: Vec<String> = behind?.into_iter().filter(|c| c != output).collect();
                all.extend(own?);
                all.sort();
                all.dedup();
                Some(all)
            }
        }
    }

    /// How a worker reads rows of `schema` for it, if it can do so by itself.
    fn stored(&self, schema: &Schema, behind: &[String]) -> Option<How> {
        let beside = match &self.output {
            None => None,
            Some(output) => Some(beside(schema, behind, output)?.into_iter().map(|at| at as u32).collect()),
        };
        let column = |at: usize, name: &String, nullable| Column { at: at as u32, name: name.clone(), nullable };
        let Some(arguments) = &self.columns else {
            let all = schema.fields().iter().enumerate();
            return Some(How { columns: all.map(|(at, f)| column(at, f.name(), f.is_nullable())).collect(), beside });
        };
        let mut columns = Vec::with_capacity(arguments.len());
        for (i, (argument, name)) in arguments.iter().enumerate() {
            let (at, field) = schema.column_with_name(name)?;
            // The arguments of a scalar function are cast by the node.
            if self.output.is_some() && self.types.get(i).is_some_and(|wanted| wanted != field.data_type()) {
                return None;
            }
            columns.push(column(at, argument, true));
        }
        Some(How { columns, beside })
    }

    fn project(&self, batch: &RecordBatch) -> Result<RecordBatch, Fault> {
        let Some(columns) = &self.columns else { return Ok(batch.clone()) };
        let mut fields = Vec::with_capacity(columns.len());
        let mut arrays = Vec::with_capacity(columns.len());
        for (i, (argument, column)) in columns.iter().enumerate() {
            let Some(array) = batch.column_by_name(column) else {
                let there: Vec<_> = batch.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
                return Err(Fault::new(
                    Code::Columns,
                    format!("it needs column `{column}`; there are {}", there.join(", ")),
                ));
            };
            let wanted = self.types.get(i).filter(|t| self.output.is_some() && *t != array.data_type());
            let array = match wanted {
                None => array.clone(),
                Some(wanted) => {
                    cast_with_options(array, wanted, &CastOptions { safe: false, ..CastOptions::default() }).map_err(
                        |e| {
                            Fault::new(
                                Code::Columns,
                                format!(
                                    "column `{column}` has type {}, its argument `{argument}` is {wanted}: {e}",
                                    array.data_type()
                                ),
                            )
                        },
                    )?
                }
            };
            fields.push(Field::new(argument, array.data_type().clone(), true));
            arrays.push(array);
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))
    }
}

/// The seed of a step of those batches that `seed` is of.
fn step_seed(seed: u64, step: usize) -> u64 {
    Seed::new(seed).with(&(step as u64).to_le_bytes()).value()
}

/// A call of a transform.
struct Call {
    steps: Arc<Steps>,
    step: usize,
    input: BatchInput,
    /// The batches beside whose rows a scalar function's output is put.
    beside: Vec<RecordBatch>,
}

impl Call {
    fn push(&mut self, batch: RecordBatch) -> Result<(), Fault> {
        let transform = &self.steps.transforms[self.step];
        let beside = self.beside_of(transform, &batch);
        let laid =
            transform.project(&batch).and_then(|input| self.input.push(&self.steps.pool, &input, beside.as_ref()));
        laid.map_err(|fault| fault.of(&transform.udf))?;
        if transform.output.is_some() {
            self.beside.push(batch);
        }
        Ok(())
    }

    /// The columns that a worker puts beside what comes of `batch`.
    fn beside_of(&self, transform: &Transform, batch: &RecordBatch) -> Option<RecordBatch> {
        let behind = self.steps.behind.as_ref().filter(|_| self.step + 1 == self.steps.transforms.len())?;
        batch.project(&beside(batch.schema_ref(), behind, transform.output.as_ref()?)?).ok()
    }

    /// Whether its worker has all that it takes to collect what comes of it.
    fn can_be_collected(&self) -> bool {
        self.steps.transforms[self.step].output.is_none() || self.input.beside().is_some()
    }

    /// Runs it in a worker, which collects what comes of it.
    async fn collect(self, seed: u64, collected: &Collected) -> Result<Buffer, Fault> {
        let transform = &self.steps.transforms[self.step];
        let beside = self.input.beside().map_or_else(Vec::new, <[_]>::to_vec);
        let payload = self.input.finish().map_err(|fault| fault.of(&transform.udf))?;
        let work = CallWork::Collect(payload, CollectSpec { argument: collected.argument, beside }.into());
        let completed = self.steps.call(transform, collected.binding.clone(), seed, work).await?;
        Ok(completed.product.into_collected().map_err(|fault| fault.of(&transform.udf))?.0)
    }

    /// Runs it in a worker. Gives one batch at least.
    async fn run(self, seed: u64) -> Result<Vec<RecordBatch>, Fault> {
        let Call { steps, step, input, beside } = self;
        let transform = &steps.transforms[step];
        let work = CallWork::Process(input.finish().map_err(|fault| fault.of(&transform.udf))?);
        let out = steps.call(transform, transform.callable.binding.clone(), seed, work).await?.product;
        let out = out.into_batches().map_err(|fault| fault.of(&transform.udf))?;
        let wrong = |what: String| Fault::new(Code::BadOutput, what).of(&transform.udf);
        let Some(first) = out.first() else { return Err(wrong("it returned no batch".into())) };
        if let Some(other) = out.iter().find(|b| b.schema_ref() != first.schema_ref()) {
            return Err(wrong(format!("its batches differ: {} and {}", first.schema_ref(), other.schema_ref())));
        }
        let Some(name) = &transform.output else { return Ok(out) };
        let (rows, columns) = (rows_of(&out), first.num_columns());
        if rows != rows_of(&beside) || columns != 1 {
            return Err(not_a_column(columns, rows, rows_of(&beside)).of(&transform.udf));
        }
        let out = cut_like(out, &beside);
        let with_own = |out: Vec<RecordBatch>| beside.iter().zip(out).map(|(b, o)| with_column(b, name, &o)).collect();
        out.and_then(with_own).map_err(|e| wrong(e.to_string()))
    }
}

/// The columns of `schema` that are `behind` a scalar function which makes `output`, and not made by it: if all of them
/// are of a type that can be of a row in a block.
fn beside(schema: &Schema, behind: &[String], output: &String) -> Option<Vec<usize>> {
    let is_word = |t: &DataType| t.primitive_width().is_some_and(|bytes| bytes <= size_of::<u64>());
    let place = |name: &String| {
        let (place, field) = schema.column_with_name(name)?;
        (is_word(field.data_type()) || *field.data_type() == DataType::Boolean).then_some(place)
    };
    behind.iter().filter(|name| *name != output).map(place).collect()
}

fn columns(spec: &TransformSpec, arguments: &Schema, scalar: bool) -> Result<Option<Vec<(String, String)>>, String> {
    let names: Vec<String> = arguments.fields().iter().map(|f| f.name().clone()).collect();
    match &spec.columns {
        None if names.is_empty() => Ok(None),
        None => Ok(Some(names.iter().map(|n| (n.clone(), n.clone())).collect())),
        Some(Columns::Names(columns)) if scalar || columns.len() == names.len() => {
            if columns.len() != names.len() {
                return Err(format!(
                    "it takes {} columns ({}), `columns` names {}",
                    names.len(),
                    names.join(", "),
                    columns.len()
                ));
            }
            Ok(Some(names.into_iter().zip(columns.iter().cloned()).collect()))
        }
        Some(Columns::Names(columns)) => Ok(Some(columns.iter().map(|c| (c.clone(), c.clone())).collect())),
        Some(Columns::ByArgument(map)) => {
            if let Some(unknown) = map.keys().find(|k| !names.is_empty() && !names.contains(k)) {
                return Err(format!("it has no argument `{unknown}`; its arguments are {}", names.join(", ")));
            }
            let names = if names.is_empty() { map.keys().cloned().collect() } else { names };
            Ok(Some(names.into_iter().map(|n| (n.clone(), map.get(&n).cloned().unwrap_or(n))).collect()))
        }
    }
}

fn rows_of(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// The rows of `out`, as many in each batch as `like` has. There are as many of them.
fn cut_like(out: Vec<RecordBatch>, like: &[RecordBatch]) -> Result<Vec<RecordBatch>, arrow_schema::ArrowError> {
    if out.iter().map(RecordBatch::num_rows).eq(like.iter().map(RecordBatch::num_rows)) {
        return Ok(out);
    }
    let joined = arrow_select::concat::concat_batches(out[0].schema_ref(), &out)?;
    let mut end = 0;
    let cut = like.iter().map(|batch| {
        end += batch.num_rows();
        joined.slice(end - batch.num_rows(), batch.num_rows())
    });
    Ok(cut.collect())
}

/// `batch` with one more column, or another of that name.
fn with_column(batch: &RecordBatch, name: &str, column: &RecordBatch) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let mut fields: Vec<_> = batch.schema_ref().fields().iter().cloned().collect();
    let mut arrays = batch.columns().to_vec();
    let added = column.column(0).clone();
    let field = Arc::new(Field::new(name, added.data_type().clone(), true));
    match fields.iter().position(|f| f.name() == name) {
        Some(at) => {
            fields[at] = field;
            arrays[at] = added;
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
    fn what_stands_beside_a_result_fits_a_block() {
        let types = [DataType::Int64, DataType::Boolean, DataType::Utf8, DataType::Decimal128(20, 2), DataType::Date32];
        let field = |(i, t): (usize, DataType)| Field::new(i.to_string(), t, true);
        let schema = Schema::new(types.into_iter().enumerate().map(field).collect::<Vec<_>>());
        for (behind, output, places) in [
            (&["0", "1", "4"][..], "y", Some(vec![0, 1, 4])),
            (&["4", "0"], "0", Some(vec![4])),
            (&["y"], "y", Some(vec![])),
            (&["0", "2"], "2", Some(vec![0])),
            (&["0", "2"], "y", None),
            (&["0", "3"], "y", None),
            (&["0", "gone"], "y", None),
        ] {
            let names: Vec<String> = behind.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(beside(&schema, &names, &output.to_owned()), places, "{behind:?} beside {output}");
        }
    }

    #[test]
    fn rows_are_cut_as_they_came() {
        for (out, like) in [
            (&[3, 2][..], &[3, 2][..]),
            (&[5], &[3, 2]),
            (&[1, 2, 1, 1], &[3, 2]),
            (&[2, 3], &[3, 2]),
            (&[0, 5], &[2, 0, 3]),
            (&[0], &[0]),
            (&[0], &[0, 0]),
        ] {
            assert_eq!(cut_like(batches(out), &batches(like)).unwrap(), batches(like), "{out:?} as {like:?}");
        }
    }
}
