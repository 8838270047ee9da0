//! Jobs that train models: read, transform, group, train, score, rank, write.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use sandbar_core::{Code, Fault, FunctionKind, TenantId};
use sandbar_dataset::{Grouper, Grouping, MemoryBudget, MetadataEntry, ParquetOutput, Partitions, Scan, WorkUnit};
use sandbar_functions::JobFunctions;
use sandbar_jobs::{JobProgress, Phase};
use sandbar_worker::Binding;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::call_input::UnitInput;
use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::failing_row::{FailingRowFinder, GroupKey, UnusableRows};
use crate::job::{Job, Metric, TrainSpec};
use crate::metadata::JobMetadata;
use crate::pipeline::{ChunkOutput, CollectBinding, CollectedRowGroup, Pipeline, chunk_seed, transformed_schema};
use crate::results::{self, GroupFailure, TextTable};
use crate::spawned::spawn;
use crate::stored_rows::RowGroupReadSpec;
use crate::transform::Transform;
use crate::units::UnitScheduler;
use crate::{group_blocks, output, stored_rows};

/// Maximum groups of an output that is sorted by file and key. The groups of a larger output are in the order in which
/// the hash partitions are trained, and sorted within each partition.
const SORTED_GROUPS_MAX: usize = 200_000;
/// Maximum failures that a summary lists; all are counted.
const FAILURES_MAX: usize = 10_000;
/// Number of small partitions between large ones, which have more rows than one unit. Large partitions that are in
/// memory at the same time would take most of the memory of a training.
const LARGE_PARTITION_DISTANCE: usize = 5;
/// Maximum trained partitions that wait for an earlier one before they are written.
const WAITING_PARTITIONS_MAX: usize = 64;
/// Maximum failures whose first row is searched for.
const LOCATED_FAILURES_MAX: usize = 10;
/// Duration after which no further row is searched for.
const LOCATE_TIME_MAX: Duration = Duration::from_secs(20);

/// Summary of a job that trains models.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TrainSummary {
    /// The tenant that submitted the job.
    pub tenant: TenantId,
    /// Rows that passed the filter.
    pub rows: u64,
    /// Rows after the transforms.
    pub rows_transformed: u64,
    /// Rows that the transforms dropped.
    pub rows_dropped: u64,
    /// Number of groups, without skipped ones.
    pub groups: u64,
    /// Number of trained models, which were written.
    pub models: u64,
    /// Number of failed groups and failed models of groups.
    pub failed: u64,
    /// Number of groups with fewer rows than `min_rows`.
    pub skipped: u64,
    /// Number of groups that other nodes trained.
    #[serde(rename = "elsewhere")]
    pub remote_groups: u64,
    /// Duration of building and compiling functions, in seconds.
    pub build_seconds: f64,
    /// Duration of everything else, in seconds.
    pub seconds: f64,
    /// Sum of the peak memory of all processes, in bytes.
    pub peak_memory_bytes: u64,
    /// Model file.
    pub output: String,
    /// Bytes of the model file.
    pub bytes: u64,
    /// First failures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<GroupFailure>,
    /// Number of groups that have a model.
    #[serde(skip)]
    pub groups_written: u64,
    /// First rows of the output.
    #[serde(skip)]
    pub preview: Option<RecordBatch>,
}

impl TrainSummary {
    /// Returns a table of the models of the first `groups` groups, and the number of groups in it.
    pub fn table(&self, groups: usize) -> Option<(TextTable, usize)> {
        self.preview.as_ref().and_then(|rows| results::format_table(rows, groups))
    }
}

/// Context of a training job, shared by its tasks.
struct TrainingContext {
    progress: Arc<JobProgress>,
    pipeline: Arc<Pipeline>,
    units: UnitScheduler,
    labels: Vec<String>,
    metric: Metric,
    seed: u64,
    /// Finder of the rows that failures are about.
    finder: FailingRowFinder,
}

/// A job with its training.
#[derive(Clone, Copy)]
struct Training<'a> {
    job: &'a Job,
    train: &'a TrainSpec,
}

impl JobExecution {
    /// Runs a job that trains models.
    pub(crate) async fn run_training(
        &self,
        job: &Job,
        train: &TrainSpec,
        mut functions: JobFunctions,
        transforms: Vec<Transform>,
    ) -> Result<TrainSummary, TrainError> {
        let training = Training { job, train };
        let (mut context, metadata) = self.prepare(training, &mut functions, transforms).await?;
        if let Some(remote) = &self.options.remote {
            context.units.set_remote(remote.trainers(metadata.open_components(&self.functions)?).await);
        }
        let context = Arc::new(context);
        let scan = Arc::new(self.open_scan(job, &context.pipeline, Some(training_columns(train))).await?);
        if self.sources.is_none() {
            output::check_writable_models(job, scan.files().iter().map(String::as_str))?;
        }
        let grouped = self.read(training, &context, &scan).await?;
        let mut summary = self.train(training, &context, &scan, grouped, metadata.encode()?).await?;
        summary.rows = self.progress.rows();
        summary.rows_dropped = summary.rows.saturating_sub(summary.rows_transformed);
        summary.remote_groups = context.units.remote_groups();
        summary.output = job.output.path.clone();
        Ok(summary)
    }

    async fn prepare(
        &self,
        Training { job, train }: Training<'_>,
        functions: &mut JobFunctions,
        transforms: Vec<Transform>,
    ) -> Result<(TrainingContext, JobMetadata), TrainError> {
        let origins = transforms.iter().map(|transform| self.functions.keep(&transform.bound));
        let origins = origins.collect::<Result<Vec<_>, _>>()?;
        let (mut models, mut trainers) = (Vec::new(), BTreeMap::new());
        for (i, spec) in train.models.iter().enumerate() {
            let key = job.key_label(&format!("train.models[{i}].udf"));
            let bound = functions.bind(&key, &spec.udf, &[FunctionKind::Trainer], &spec.params).await?;
            trainers.insert(spec.label().to_owned(), self.functions.keep(&bound)?);
            models.push(bound.binding.on(job.device));
        }
        // Workers write no blocks of rows with several keys.
        let collected_columns = (train.group_by.len() <= 1).then(|| training_columns(train));
        let labels = train.models.iter().map(|m| m.label().to_owned()).collect();
        let units = UnitScheduler::new(self.calls.clone(), self.progress.clone(), models, train.seed);
        let context = TrainingContext {
            progress: self.progress.clone(),
            pipeline: Pipeline::new(transforms, self.calls.clone(), collected_columns),
            units,
            labels,
            metric: train.metric,
            seed: train.seed,
            finder: self.failing_row_finder(job, train.seed)?,
        };
        Ok((context, JobMetadata { job: job.clone(), trainers, transforms: origins }))
    }

    /// Adds the location of the first unusable row to the first failures.
    async fn locate_failures(
        &self,
        Training { train, .. }: Training<'_>,
        context: &TrainingContext,
        scan: &Scan,
        summary: &mut TrainSummary,
    ) {
        let columns: Vec<String> = train.features.iter().chain([&train.target]).cloned().collect();
        let start = Instant::now();
        for failure in summary.failures.iter_mut().take(LOCATED_FAILURES_MAX) {
            if start.elapsed() > LOCATE_TIME_MAX {
                return;
            }
            let Some(morsel) = failure.morsel.and_then(|morsel| usize::try_from(morsel).ok()) else { continue };
            let unusable = UnusableRows { columns: &columns, group: Some(GroupKey { train, key: &failure.group }) };
            if let Some(row) = context.finder.locate_unusable(&context.pipeline, scan, morsel, unusable).await {
                failure.message =
                    failure.message.replacen(": fill them", &format!(" (the first: {row}): fill them"), 1);
            }
        }
    }

    /// Reads, transforms and groups all rows.
    async fn read(
        &self,
        training: Training<'_>,
        context: &Arc<TrainingContext>,
        scan: &Arc<Scan>,
    ) -> Result<GroupedRows, TrainError> {
        let morsels = scan.morsels().len();
        self.progress.enter(Phase::Reading, morsels as u64);
        // Decoding of the first rows overlaps with the start of the workers.
        let (sender, receiver) = watch::channel(None);
        let read_all = futures::stream::iter(0..morsels)
            .map(|morsel| {
                let read = read_morsel(context.clone(), scan.clone(), morsel, receiver.clone());
                async move { spawn(read).await? }
            })
            .buffer_unordered(self.morsels_at_once(scan))
            .try_collect::<()>();
        let start_grouping = async {
            let grouping = Arc::new(self.start_grouping(training, context, scan).await?);
            sender.send_replace(Some(grouping.clone()));
            Ok(grouping)
        };
        let (grouping, (), ()) = tokio::try_join!(start_grouping, read_all, self.check_params(training, context))?;
        let keys = key_schema(training.train, &grouping.schema);
        Ok(GroupedRows { grouper: grouping.grouper.clone(), keys })
    }

    /// Checks the parameters of the trainers. A trainer without parameters in the job is checked only if it is the only
    /// one: among several, its refusal fails its own models alone.
    async fn check_params(
        &self,
        Training { job, train }: Training<'_>,
        context: &TrainingContext,
    ) -> Result<(), TrainError> {
        for (i, (spec, binding)) in train.models.iter().zip(context.units.models()).enumerate() {
            if !spec.params.is_empty() || train.models.len() == 1 {
                self.check_model_params(job, train, i, binding).await?;
            }
        }
        Ok(())
    }

    /// Creates the grouper for the transformed columns, which a worker determines by running the transforms on no rows.
    async fn start_grouping(
        &self,
        Training { job, train }: Training<'_>,
        context: &Arc<TrainingContext>,
        scan: &Scan,
    ) -> Result<GroupingContext, TrainError> {
        let schema = transformed_schema(job, &context.pipeline, scan.schema(), context.chunk_seed(0, 0)).await?;
        let grouping = grouping_spec(train);
        let bytes_max = usize::try_from(self.options.memory_bytes_max).unwrap_or(usize::MAX);
        let budget = MemoryBudget { bytes_max, spill_dir: self.options.spill.clone() };
        let grouper = match Grouper::new(grouping.clone(), &schema, scan.files().to_vec(), budget) {
            Ok(grouper) => grouper,
            Err(error) => return Err(scan.explain(error).await.into()),
        };
        let collected = context.pipeline.collected_schema(&schema);
        let plan = collected.and_then(|schema| group_blocks::encode_plan(&grouper, &grouping, &schema));
        let collector = plan.and_then(|plan| context.pipeline.bind_collector(plan));
        Ok(GroupingContext { grouper, collector, schema })
    }

    async fn train(
        &self,
        training: Training<'_>,
        context: &Arc<TrainingContext>,
        scan: &Scan,
        GroupedRows { grouper, keys }: GroupedRows,
        metadata: MetadataEntry,
    ) -> Result<TrainSummary, TrainError> {
        let path = self.sources.as_ref().map_or(Path::new(&training.job.output.path), |sources| &sources.output);
        let partitions = Arc::new(grouper.finish()?);
        let rows_transformed = (0..partitions.len()).map(|p| partitions.rows_of(p)).sum();
        self.progress.enter(Phase::Training, partitions.len() as u64);
        let mut writer = ModelWriter::new(path, &keys, metadata)?;
        let units_max = context.units.concurrency();
        let memory = Arc::new(Semaphore::new(units_max));
        let rows: Vec<u64> = (0..partitions.len()).map(|p| partitions.rows_of(p)).collect();
        let unit_rows = partitions.unit_rows();
        // A partition gets its memory before the next one starts, so that they get it in this order. The memory of a
        // partition counts in units of rows. A large partition leaves half of all units to others.
        let mut outputs = futures::stream::iter(training_order(&rows, unit_rows))
            .then(|p| {
                let memory = memory.clone();
                let units = (rows[p] / unit_rows).clamp(1, units_max as u64 / 2) as u32;
                async move { (p, memory.acquire_many_owned(units).await.ok()) }
            })
            .map(|(p, permit)| {
                let train = train_partition(context.clone(), partitions.clone(), p, permit);
                async move { spawn(train).await? }
            })
            .buffered(units_max + WAITING_PARTITIONS_MAX)
            .boxed();
        while let Some(output) = outputs.try_next().await? {
            self.progress.complete_part();
            writer.add(output)?;
        }
        self.locate_failures(training, context, scan, &mut writer.summary).await;
        if writer.summary.models == 0 && path.exists() {
            return Err(writer.no_model_error(path));
        }
        self.progress.enter(Phase::Writing, 1);
        Ok(TrainSummary { rows_transformed, ..writer.finish()? })
    }
}

/// Returns how the rows are grouped for training.
pub(crate) fn grouping_spec(train: &TrainSpec) -> Grouping {
    Grouping {
        keys: train.group_by.clone(),
        features: train.features.clone(),
        target: train.target.clone(),
        per_file: train.per_file,
        test: train.test,
        seed: train.seed,
        min_rows: train.min_rows,
        ..Grouping::default()
    }
}

/// Returns the columns that the training needs.
pub(crate) fn training_columns(train: &TrainSpec) -> Vec<String> {
    let mut columns: Vec<_> = train.group_by.iter().chain(&train.features).chain([&train.target]).cloned().collect();
    columns.sort();
    columns.dedup();
    columns
}

/// Context of grouping. It is known once a worker has run the transforms on no rows.
struct GroupingContext {
    grouper: Grouper,
    /// Last transform, bound to the collector of blocks; `None` if the node groups the rows.
    collector: Option<Arc<Binding>>,
    /// Columns after the transforms.
    schema: SchemaRef,
}

/// Receiver of the grouping context.
type GroupingReceiver = watch::Receiver<Option<Arc<GroupingContext>>>;

/// All rows of a job, by group.
struct GroupedRows {
    grouper: Grouper,
    /// Columns of the group keys.
    keys: SchemaRef,
}

/// Reads, transforms and groups a morsel. Errors about a row name its file and number.
async fn read_morsel(
    context: Arc<TrainingContext>,
    scan: Arc<Scan>,
    morsel: usize,
    grouping: GroupingReceiver,
) -> Result<(), TrainError> {
    match try_read_morsel(&context, &scan, morsel, grouping).await {
        Ok(()) => Ok(()),
        Err(error) => Err(context.finder.explain(&context.pipeline, &scan, morsel, error).await),
    }
}

async fn try_read_morsel(
    context: &Arc<TrainingContext>,
    scan: &Arc<Scan>,
    morsel: usize,
    mut grouping: GroupingReceiver,
) -> Result<(), TrainError> {
    let blocks = match context.pipeline.read_spec(scan.schema()) {
        Some(spec) => read_row_groups(context, scan, morsel, &spec, &mut grouping).await?,
        None => None,
    };
    if let Some(blocks) = blocks {
        let grouping = grouping_context(&mut grouping).await?;
        let mut groups = grouping.grouper.morsel(morsel as u64, scan.morsels()[morsel].file)?;
        blocks.into_iter().try_for_each(|blocks| groups.push_blocks(blocks))?;
        groups.finish()?;
    } else {
        read_batches(context, scan, morsel, &mut grouping).await?;
    }
    context.progress.complete_part();
    Ok(())
}

/// Waits for the grouping context. If it never arrives, the job has already failed with another error.
async fn grouping_context(receiver: &mut GroupingReceiver) -> Result<Arc<GroupingContext>, Fault> {
    let grouping = receiver.wait_for(Option::is_some).await.ok().and_then(|grouping| grouping.clone());
    grouping.ok_or_else(|| Fault::new(Code::Host, "reading was stopped"))
}

impl GroupingContext {
    /// Returns the last transform for rows of a file, bound to the collector of blocks, if workers group rows.
    fn collect_binding(&self, file: usize) -> Option<CollectBinding> {
        self.collector.clone().map(|binding| CollectBinding { binding, argument: file as u64 })
    }
}

/// Lets workers read and group the row groups of a morsel. Returns their blocks, or `None` if workers can't read them
/// or a limit of the calls is exceeded. The whole morsel is then read by the node.
async fn read_row_groups(
    context: &Arc<TrainingContext>,
    scan: &Arc<Scan>,
    morsel: usize,
    spec: &RowGroupReadSpec,
    grouping: &mut GroupingReceiver,
) -> Result<Option<Vec<Buffer>>, TrainError> {
    let Some(row_groups) = scan.row_groups(morsel).await else { return Ok(None) };
    let file = scan.morsels()[morsel].file;
    let grouping = grouping_context(grouping).await?;
    let Some(collect) = &grouping.collect_binding(file) else { return Ok(None) };
    if !context.pipeline.can_collect_row_groups(&row_groups, &grouping.schema) {
        return Ok(None);
    }
    let payloads = row_groups.iter().map(|group| stored_rows::payload(group, spec)).collect::<Result<Vec<_>, _>>()?;
    // The second call waits in the queue for the next free worker.
    let collected: Result<Vec<CollectedRowGroup>, Fault> = futures::stream::iter(payloads.into_iter().enumerate())
        .map(|(number, payload)| async move {
            let seed = context.chunk_seed(morsel as u64, number as u64);
            context.pipeline.collect_row_group(payload, seed, collect).await
        })
        .buffered(2)
        .try_collect()
        .await;
    match collected {
        Ok(collected) => {
            for (group, collected) in row_groups.iter().zip(&collected) {
                context.progress.add_rows(group.rows().min(collected.rows));
            }
            Ok(Some(collected.into_iter().map(|collected| collected.blocks).collect()))
        }
        Err(fault) => stored_rows::job_error(fault, &scan.files()[file]).map_or(Ok(None), Err),
    }
}

/// Reads a morsel in the node, and transforms its batches in workers.
async fn read_batches(
    context: &Arc<TrainingContext>,
    scan: &Arc<Scan>,
    morsel: usize,
    grouping: &mut GroupingReceiver,
) -> Result<(), TrainError> {
    let mut chunks = Box::pin(context.pipeline.chunks(scan.read(morsel)?).peekable());
    chunks.as_mut().peek().await;
    let grouping = grouping_context(grouping).await?;
    let file = scan.morsels()[morsel].file;
    let mut groups = grouping.grouper.morsel(morsel as u64, file)?;
    let collect = grouping.collect_binding(file);
    let collect = collect.as_ref();
    // One call transforms while the batches of the next are decoded.
    let mut outputs = chunks
        .enumerate()
        .map(|(number, chunk)| async move {
            let chunk = chunk?;
            context.progress.add_rows(chunk.rows() as u64);
            let seed = context.chunk_seed(morsel as u64, number as u64);
            Ok::<_, TrainError>(chunk.run_collecting(seed, collect).await?)
        })
        .buffered(2);
    while let Some(output) = outputs.try_next().await? {
        match output {
            ChunkOutput::Blocks(blocks) => groups.push_blocks(blocks)?,
            ChunkOutput::Batches(batches) => {
                for batch in batches {
                    group_blocks::check_columns(&batch, &grouping.schema)?;
                    groups.push(&batch)?;
                }
            }
        }
    }
    Ok(groups.finish()?)
}

impl TrainingContext {
    /// Returns the seed of a chunk of a morsel.
    fn chunk_seed(&self, morsel: u64, chunk: u64) -> u64 {
        chunk_seed(self.seed, morsel, chunk)
    }
}

/// Returns the order in which partitions with these numbers of rows are trained: the largest first, so that none is
/// left over at the end, but with small partitions between those of more than `unit_rows` rows.
fn training_order(rows: &[u64], unit_rows: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|p| Reverse(rows[*p]));
    let mut small = order.split_off(order.partition_point(|p| rows[*p] > unit_rows)).into_iter();
    let mut spread = Vec::with_capacity(rows.len());
    for p in order {
        spread.push(p);
        spread.extend(small.by_ref().take(LARGE_PARTITION_DISTANCE));
    }
    spread.extend(small);
    spread
}

/// Output of a partition.
#[derive(Default)]
struct PartitionOutput {
    rows: Vec<RecordBatch>,
    groups: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<GroupFailure>,
}

/// Trains a partition. `_memory` is held while its units are in memory.
async fn train_partition(
    context: Arc<TrainingContext>,
    partitions: Arc<Partitions>,
    p: usize,
    _memory: Option<OwnedSemaphorePermit>,
) -> Result<PartitionOutput, TrainError> {
    let calls = context.pipeline.calls.clone();
    let units = tokio::task::spawn_blocking(move || {
        partitions.units(p, |shape| Ok::<_, TrainError>(UnitInput::reserve(&calls, partitions.schema(), shape)?))
    });
    let units = units.await??;
    let mut output = PartitionOutput::default();
    let concurrency = context.units.concurrency();
    let mut trained = futures::stream::iter(units).map(|unit| train_unit(&context, unit)).buffered(concurrency);
    while let Some(TrainedUnit { unit, rows, failures }) = trained.try_next().await? {
        output.groups += (unit.groups.len() + unit.failed.len()) as u64;
        output.skipped += unit.skipped as u64;
        output.failed += failures.len() as u64;
        let capacity = FAILURES_MAX - output.failures.len().min(FAILURES_MAX);
        output.failures.extend(failures.into_iter().take(capacity));
        output.rows.extend(rows);
    }
    Ok(output)
}

/// The results of a unit.
struct TrainedUnit {
    unit: WorkUnit<()>,
    /// Rows of the output, if there are any.
    rows: Option<RecordBatch>,
    failures: Vec<GroupFailure>,
}

async fn train_unit(context: &TrainingContext, unit: WorkUnit<UnitInput>) -> Result<TrainedUnit, TrainError> {
    let (unit, memory) = unit.split();
    if unit.groups.is_empty() {
        let failures = results::unit_failures(&unit, &context.labels, &[]);
        return Ok(TrainedUnit { unit, rows: None, failures });
    }
    let (payload, groups) = memory.lend(&unit.groups)?;
    let fitted = context.units.fit(&payload, &groups, unit.shape).await?;
    let failures = results::unit_failures(&unit, &context.labels, &fitted);
    let has_models = fitted.iter().any(|f| f.faults.len() < unit.groups.len());
    let rows = has_models.then(|| results::output_rows(&unit, &context.labels, &fitted, context.metric)).transpose()?;
    Ok(TrainedUnit { unit, rows, failures })
}

/// Writer of the output. Buffers and sorts the rows of a small output; writes those of a large one as they arrive.
struct ModelWriter {
    file: ParquetOutput,
    /// Number of key columns.
    keys: usize,
    buffered: Option<Vec<RecordBatch>>,
    preview: Option<RecordBatch>,
    summary: TrainSummary,
}

/// Rows of a summary's preview.
const PREVIEW_ROWS: usize = 60;

impl ModelWriter {
    fn new(output: &Path, keys: &Schema, metadata: MetadataEntry) -> Result<ModelWriter, TrainError> {
        let file = ParquetOutput::create(output, Arc::new(results::output_schema(keys)), vec![metadata])?;
        let (keys, summary) = (keys.fields().len(), TrainSummary::default());
        Ok(ModelWriter { file, keys, buffered: Some(Vec::new()), preview: None, summary })
    }

    fn add(&mut self, output: PartitionOutput) -> Result<(), TrainError> {
        self.summary.groups += output.groups;
        self.summary.failed += output.failed;
        self.summary.skipped += output.skipped;
        let capacity = FAILURES_MAX - self.summary.failures.len().min(FAILURES_MAX);
        self.summary.failures.extend(output.failures.into_iter().take(capacity));
        for rows in output.rows {
            self.summary.models += rows.num_rows() as u64;
            self.summary.groups_written += results::count_groups(&rows);
            match &mut self.buffered {
                Some(buffered) => buffered.push(rows),
                None => self.write(&rows)?,
            }
        }
        if self.summary.groups as usize > SORTED_GROUPS_MAX {
            for rows in self.buffered.take().into_iter().flatten() {
                self.write(&rows)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, rows: &RecordBatch) -> Result<(), TrainError> {
        self.preview.get_or_insert_with(|| rows.slice(0, rows.num_rows().min(PREVIEW_ROWS)));
        Ok(self.file.write(rows)?)
    }

    /// Returns the error for a job without models, which leaves `output` unchanged.
    fn no_model_error(&self, output: &Path) -> TrainError {
        let TrainSummary { groups, failed, skipped, failures, .. } = &self.summary;
        let first = failures.first().map(|f| format!(" (the first: {}: {} [{}])", f.group, f.message, f.code));
        let first = first.unwrap_or_default();
        let reason = format!(
            "{groups} groups, {failed} failures{first}, {skipped} groups skipped for fewer than `min_rows` rows"
        );
        TrainError::NoModel { reason, output: output.to_owned() }
    }

    fn finish(mut self) -> Result<TrainSummary, TrainError> {
        if let Some(buffered) = self.buffered.take().filter(|buffered| !buffered.is_empty()) {
            // By file and key, then rank.
            let sorted = results::sort_rows(&buffered, (0..self.keys).chain([self.keys + 1]))?;
            self.write(&sorted)?;
        }
        self.summary.bytes = self.file.finish()?;
        self.summary.preview = self.preview;
        Ok(self.summary)
    }
}

/// Returns the key columns of groups, as in units.
fn key_schema(train: &TrainSpec, schema: &SchemaRef) -> SchemaRef {
    let file = train.per_file.then(|| Arc::new(Field::new("file", DataType::Utf8, false)));
    let keys = train.group_by.iter().filter_map(|key| schema.field_with_name(key).ok().map(|f| Arc::new(f.clone())));
    Arc::new(Schema::new(file.into_iter().chain(keys).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_partitions_are_trained_first_and_apart() {
        for (rows, expected) in [
            (&[][..], &[][..]),
            (&[11], &[0]),
            (&[1, 3, 2], &[1, 2, 0]),
            (&[12, 3, 11, 13], &[3, 1, 0, 2]),
            (&[20, 9, 8, 7, 6, 5, 4, 3, 21], &[8, 1, 2, 3, 4, 5, 0, 6, 7]),
            (&[20, 10, 10, 30], &[3, 1, 2, 0]),
        ] {
            assert_eq!(training_order(rows, 10), expected, "{rows:?}");
        }
    }
}
