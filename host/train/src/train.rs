//! A job that trains: read, transform, group, train, score, rank, write.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use sandbar_core::{Code, Fault, FunctionKind};
use sandbar_dataset::{Grouper, Grouping, MemoryBudget, ParquetOutput, Partitions, Scan, WorkUnit};
use sandbar_functions::JobFunctions;
use sandbar_jobs::{JobProgress, Phase};
use sandbar_worker::Binding;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::error::TrainError;
use crate::failing_row::{FailingRowFinder, Unusable, chunk_seed};
use crate::input::UnitInput;
use crate::job::{Job, Metric, TrainSpec};
use crate::results::{self, Failure, Table};
use crate::runner::{JobMetadata, JobRunner, METADATA_KEY, transformed_schema};
use crate::stored_rows::How;
use crate::transform::{Collected, Made, Steps, Transform};
use crate::units::UnitScheduler;
use crate::{group_blocks, output, stored_rows};

/// Up to so many groups the output is sorted by file and key as a whole. More
/// come in the order in which the hash partitions are trained, sorted within
/// each.
const SORTED_GROUPS_MAX: usize = 200_000;
/// Failures that are kept with their words; the others are counted.
const FAILURES_MAX: usize = 10_000;
/// Partitions of rows for more than one unit are so many others apart, where there are as many: in memory at once they
/// would take most of what training takes.
const LARGE_APART: usize = 5;
/// Partitions that may have been trained, and wait to be written while one before them is still trained.
const PARTS_WAITING_MAX: usize = 64;
/// Failures that are told with the row of a file that they are about: it is looked for then.
const LOCATED_MAX: usize = 10;
/// The next is not looked for after so long.
const LOCATE_TIME_MAX: Duration = Duration::from_secs(20);

/// What came of a job that trains.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Rows read, those that the filter leaves out not counted.
    pub rows: u64,
    /// Rows behind the transforms.
    pub rows_transformed: u64,
    /// Rows that transforms left out.
    pub rows_dropped: u64,
    /// Groups found, skipped ones not counted.
    pub groups: u64,
    /// Models trained and written.
    pub models: u64,
    /// Groups, and models of groups, that failed.
    pub failed: u64,
    /// Groups with fewer rows than `min_rows`.
    pub skipped: u64,
    /// Groups that other nodes trained.
    pub elsewhere: u64,
    /// Seconds that building and compiling its functions took.
    pub build_seconds: f64,
    /// Seconds that all else took.
    pub seconds: f64,
    /// Most memory of all processes together, each at its peak.
    pub peak_memory_bytes: u64,
    /// The file with the models.
    pub output: String,
    /// Its length.
    pub bytes: u64,
    /// What failed, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Groups that have a model.
    #[serde(skip)]
    pub groups_written: u64,
    /// The first rows of the output.
    #[serde(skip)]
    pub preview: Option<RecordBatch>,
}

impl Summary {
    /// The models of the first `groups` groups, as a table, and of how many groups they are.
    pub fn table(&self, groups: usize) -> Option<(Table, usize)> {
        self.preview.as_ref().and_then(|rows| results::table(rows, groups))
    }
}

/// What the parts of a running job share.
struct Running {
    progress: Arc<JobProgress>,
    steps: Arc<Steps>,
    units: UnitScheduler,
    labels: Vec<String>,
    metric: Metric,
    seed: u64,
    /// Finds the rows that failures are about.
    finder: FailingRowFinder,
}

/// A job that trains, and what it trains.
#[derive(Clone, Copy)]
struct Training<'a> {
    job: &'a Job,
    train: &'a TrainSpec,
}

impl JobRunner {
    /// Runs a job that trains.
    pub(crate) async fn run_training(
        &self,
        job: &Job,
        train: &TrainSpec,
        mut functions: JobFunctions,
        transforms: Vec<Transform>,
    ) -> Result<Summary, TrainError> {
        let training = Training { job, train };
        let (mut running, metadata) = self.prepare(training, &mut functions, transforms).await?;
        if let Some(remote) = &self.options.remote {
            running.units.spread_over(remote.trainers(metadata.open_components(&self.functions)?).await);
        }
        let running = Arc::new(running);
        let scan = Arc::new(self.open_scan(job, &running.steps, Some(columns_of(train))).await?);
        output::check_place(job, scan.files().iter().map(String::as_str))?;
        let (grouper, keys) = self.read(training, &running, &scan).await?;
        let text =
            serde_json::to_string(&metadata).map_err(|e| Fault::new(Code::Host, format!("the job's metadata: {e}")))?;
        let metadata = vec![(METADATA_KEY.to_owned(), text)];
        let mut summary = self.train(training, (&running, &scan), grouper, keys, metadata).await?;
        summary.rows = self.progress.rows();
        summary.rows_dropped = summary.rows.saturating_sub(summary.rows_transformed);
        summary.elsewhere = running.units.remote_groups();
        summary.output = job.output.path.clone();
        Ok(summary)
    }

    async fn prepare(
        &self,
        Training { job, train }: Training<'_>,
        functions: &mut JobFunctions,
        transforms: Vec<Transform>,
    ) -> Result<(Running, JobMetadata), TrainError> {
        let origins = transforms.iter().map(|transform| self.functions.keep(transform.callable()));
        let origins = origins.collect::<Result<Vec<_>, _>>()?;
        let (mut models, mut trainers) = (Vec::new(), BTreeMap::new());
        for (i, spec) in train.models.iter().enumerate() {
            let key = job.key(&format!("train.models[{i}].udf"));
            let callable = functions.bind(&key, &spec.udf, &[FunctionKind::Trainer], &spec.params).await?;
            trainers.insert(spec.label().to_owned(), self.functions.keep(&callable)?);
            models.push(callable.binding.on(job.device));
        }
        // Workers cut no rows of several keys.
        let behind = (train.group_by.len() <= 1).then(|| columns_of(train));
        let labels = train.models.iter().map(|m| m.label().to_owned()).collect();
        let units = UnitScheduler::new(self.pool.clone(), self.progress.clone(), models, train.seed);
        let running = Running {
            progress: self.progress.clone(),
            steps: Arc::new(Steps { transforms, pool: self.pool.clone(), behind }),
            units,
            labels,
            metric: train.metric,
            seed: train.seed,
            finder: FailingRowFinder::new(job, self.options.spill.clone(), train.seed),
        };
        Ok((running, JobMetadata { job: job.clone(), trainers, transforms: origins }))
    }

    /// Adds to the first failures the row of the file that they are about.
    async fn locate_failures(
        &self,
        Training { train, .. }: Training<'_>,
        running: &Running,
        scan: &Scan,
        summary: &mut Summary,
    ) {
        let columns: Vec<String> = train.features.iter().chain([&train.target]).cloned().collect();
        let since = Instant::now();
        for failure in summary.failures.iter_mut().take(LOCATED_MAX) {
            if since.elapsed() > LOCATE_TIME_MAX {
                return;
            }
            let Some(morsel) = failure.morsel.and_then(|morsel| usize::try_from(morsel).ok()) else { continue };
            let wanted = Unusable { columns: &columns, group: Some((train, &failure.group)) };
            if let Some(place) = running.finder.unusable(&running.steps, scan, morsel, wanted).await {
                failure.message =
                    failure.message.replacen(": fill them", &format!(" (the first: {place}): fill them"), 1);
            }
        }
    }

    async fn read(
        &self,
        training: Training<'_>,
        running: &Arc<Running>,
        scan: &Arc<Scan>,
    ) -> Result<(Grouper, SchemaRef), TrainError> {
        let morsels = scan.morsels().len();
        self.progress.enter(Phase::Reading, morsels as u64);
        // The first rows are decoded while workers start.
        let (ready, wait) = watch::channel(None);
        let all = futures::stream::iter(0..morsels)
            .map(|morsel| {
                let read = read_morsel(running.clone(), scan.clone(), morsel, wait.clone());
                async move { tokio::spawn(read).await? }
            })
            .buffer_unordered(self.morsels_at_once(scan))
            .try_collect::<()>();
        let begun = async {
            let reading = Arc::new(self.reading(training, running, scan).await?);
            ready.send_replace(Some(reading.clone()));
            Ok(reading)
        };
        let (reading, (), ()) = tokio::try_join!(begun, all, self.check_params(training, running))?;
        Ok((reading.grouper.clone(), key_schema(training.train, &reading.schema)))
    }

    /// Has the trainers read their parameters. One of several that refuses though it gets none costs its own models.
    async fn check_params(&self, Training { job, train }: Training<'_>, running: &Running) -> Result<(), TrainError> {
        for (i, (spec, binding)) in train.models.iter().zip(running.units.models()).enumerate() {
            if !spec.params.is_empty() || train.models.len() == 1 {
                self.check_model_params(job, train, i, binding).await?;
            }
        }
        Ok(())
    }

    /// What reading takes: the schema behind the transforms, which is what they make of no rows.
    async fn reading(
        &self,
        Training { job, train }: Training<'_>,
        running: &Arc<Running>,
        scan: &Scan,
    ) -> Result<Reading, TrainError> {
        let schema = transformed_schema(job, &running.steps, scan, running.seed_of(0, 0)).await?;
        let grouping = grouping_of(train);
        let bytes_max = usize::try_from(self.options.memory_bytes_max).unwrap_or(usize::MAX);
        let budget = MemoryBudget { bytes_max, spill_dir: self.options.spill.clone() };
        let grouper = match Grouper::new(grouping.clone(), &schema, scan.files().to_vec(), budget) {
            Ok(grouper) => grouper,
            Err(error) => return Err(scan.explain(error).await.into()),
        };
        let collected = running.steps.collected_schema(&schema);
        let plan = collected.and_then(|schema| group_blocks::plan(&grouper, &grouping, &schema));
        Ok(Reading { grouper, collecting: plan.and_then(|plan| running.steps.collecting(plan)), schema })
    }

    async fn train(
        &self,
        training: Training<'_>,
        (running, scan): (&Arc<Running>, &Scan),
        grouper: Grouper,
        keys: SchemaRef,
        metadata: Vec<(String, String)>,
    ) -> Result<Summary, TrainError> {
        let output = Path::new(&training.job.output.path);
        let partitions = Arc::new(grouper.finish()?);
        let rows_transformed = (0..partitions.len()).map(|p| partitions.rows_of(p)).sum();
        self.progress.enter(Phase::Training, partitions.len() as u64);
        let mut sink = Sink::new(output, results::output_schema(&keys), keys.fields().len(), metadata)?;
        let in_memory_max = running.units.at_once();
        let in_memory = Arc::new(Semaphore::new(in_memory_max));
        let rows: Vec<u64> = (0..partitions.len()).map(|p| partitions.rows_of(p)).collect();
        let unit_rows = partitions.unit_rows();
        // Each has its memory before the next is begun: tasks that wait for it would have it in any order. One with rows
        // for several units counts as so many, and leaves half for others.
        let mut parts = futures::stream::iter(training_order(&rows, unit_rows))
            .then(|p| {
                let in_memory = in_memory.clone();
                let units = (rows[p] / unit_rows).clamp(1, in_memory_max as u64 / 2) as u32;
                async move { (p, in_memory.acquire_many_owned(units).await.ok()) }
            })
            .map(|(p, in_memory)| {
                let train = train_partition(running.clone(), partitions.clone(), p, in_memory);
                async move { tokio::spawn(train).await? }
            })
            .buffered(in_memory_max + PARTS_WAITING_MAX)
            .boxed();
        while let Some(part) = parts.try_next().await? {
            self.progress.complete_part();
            sink.take(part)?;
        }
        self.locate_failures(training, running, scan, &mut sink.summary).await;
        if sink.summary.models == 0 && output.exists() {
            return Err(sink.nothing_for(output));
        }
        self.progress.enter(Phase::Writing, 1);
        Ok(Summary { rows_transformed, ..sink.finish()? })
    }
}

/// How rows are grouped for training.
pub(crate) fn grouping_of(train: &TrainSpec) -> Grouping {
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

/// The columns that training takes.
pub(crate) fn columns_of(train: &TrainSpec) -> Vec<String> {
    let mut columns: Vec<_> = train.group_by.iter().chain(&train.features).chain([&train.target]).cloned().collect();
    columns.sort();
    columns.dedup();
    columns
}

/// What reading takes that is known once the first worker has answered.
struct Reading {
    grouper: Grouper,
    /// The last transform, where its worker cuts rows into blocks.
    collecting: Option<Arc<Binding>>,
    /// What the transforms make of rows.
    schema: SchemaRef,
}

/// Reads a morsel; `reading` will be known. What goes wrong with a row is told with its file.
async fn read_morsel(
    running: Arc<Running>,
    scan: Arc<Scan>,
    morsel: usize,
    reading: watch::Receiver<Option<Arc<Reading>>>,
) -> Result<(), TrainError> {
    match try_read_morsel(&running, &scan, morsel, reading).await {
        Ok(()) => Ok(()),
        Err(error) => Err(running.finder.explain(&running.steps, &scan, morsel, error).await),
    }
}

async fn try_read_morsel(
    running: &Arc<Running>,
    scan: &Arc<Scan>,
    morsel: usize,
    mut reading: watch::Receiver<Option<Arc<Reading>>>,
) -> Result<(), TrainError> {
    let blocks = match running.steps.stored(scan.schema()) {
        Some(how) => read_stored(running, scan, morsel, &how, &mut reading).await?,
        None => None,
    };
    if let Some(blocks) = blocks {
        let mut groups = known(&mut reading).await?.grouper.morsel(morsel as u64, scan.morsels()[morsel].file)?;
        blocks.into_iter().try_for_each(|blocks| groups.push_blocks(blocks))?;
        groups.finish()?;
    } else {
        read_batches(running, scan, morsel, &mut reading).await?;
    }
    running.progress.complete_part();
    Ok(())
}

/// What reading takes, once it is known. Without it the job has failed already, of something else.
async fn known(reading: &mut watch::Receiver<Option<Arc<Reading>>>) -> Result<Arc<Reading>, Fault> {
    let reading = reading.wait_for(Option::is_some).await.ok().and_then(|reading| reading.clone());
    reading.ok_or_else(|| Fault::new(Code::Host, "reading was stopped"))
}

impl Reading {
    /// The last transform for rows of a file, where workers cut them into blocks.
    fn collected(&self, file: usize) -> Option<Collected> {
        self.collecting.clone().map(|binding| Collected { binding, argument: file as u64 })
    }
}

/// Has workers read a morsel's row groups, which gives blocks of their rows; none where they can't, or make more of them
/// than a call may hand back. All or nothing: the morsel is then read anew.
async fn read_stored(
    running: &Arc<Running>,
    scan: &Arc<Scan>,
    morsel: usize,
    how: &How,
    reading: &mut watch::Receiver<Option<Arc<Reading>>>,
) -> Result<Option<Vec<Buffer>>, TrainError> {
    let Some(groups) = scan.row_groups(morsel).await else { return Ok(None) };
    let file = scan.morsels()[morsel].file;
    let reading = known(reading).await?;
    let Some(collected) = &reading.collected(file) else { return Ok(None) };
    if !running.steps.may_collect_stored(&groups, &reading.schema) {
        return Ok(None);
    }
    let payloads = groups.iter().map(|group| stored_rows::payload(group, how)).collect::<Result<Vec<_>, _>>()?;
    // The next waits in the queue for the worker that takes it.
    let made: Result<Vec<(Buffer, u64)>, Fault> = futures::stream::iter(payloads.into_iter().enumerate())
        .map(|(number, payload)| async move {
            let seed = running.seed_of(morsel as u64, number as u64);
            running.steps.collect_stored(payload, seed, collected).await
        })
        .buffered(2)
        .try_collect()
        .await;
    match made {
        Ok(made) => {
            for (group, (_, rows)) in groups.iter().zip(&made) {
                running.progress.add_rows(group.rows().min(*rows));
            }
            Ok(Some(made.into_iter().map(|(blocks, _)| blocks).collect()))
        }
        Err(fault) => stored_rows::failed(fault, &scan.files()[file]).map_or(Ok(None), Err),
    }
}

/// Reads a morsel in batches, and gives them to the transforms.
async fn read_batches(
    running: &Arc<Running>,
    scan: &Arc<Scan>,
    morsel: usize,
    reading: &mut watch::Receiver<Option<Arc<Reading>>>,
) -> Result<(), TrainError> {
    let mut chunks = Box::pin(running.steps.chunks(scan.read(morsel)?).peekable());
    chunks.as_mut().peek().await;
    let reading = known(reading).await?;
    let file = scan.morsels()[morsel].file;
    let mut groups = reading.grouper.morsel(morsel as u64, file)?;
    let collected = reading.collected(file);
    let collected = collected.as_ref();
    // Two calls at a time: one transforms while batches for the next are decoded.
    let mut made = chunks
        .enumerate()
        .map(|(number, chunk)| async move {
            let chunk = chunk?;
            running.progress.add_rows(chunk.rows() as u64);
            Ok::<_, TrainError>(chunk.collect(running.seed_of(morsel as u64, number as u64), collected).await?)
        })
        .buffered(2);
    while let Some(made) = made.try_next().await? {
        match made {
            Made::Blocks(blocks) => groups.push_blocks(blocks)?,
            Made::Batches(batches) => {
                for batch in batches {
                    group_blocks::same_columns(&batch, &reading.schema)?;
                    groups.push(&batch)?;
                }
            }
        }
    }
    Ok(groups.finish()?)
}

impl Running {
    /// The seed of a chunk of a morsel.
    fn seed_of(&self, morsel: u64, chunk: u64) -> u64 {
        chunk_seed(self.seed, morsel, chunk)
    }
}

/// The order in which partitions of so many rows are trained. The largest first, so that none of them is left over when
/// all others are done, but those that are `large` apart from each other.
fn training_order(rows: &[u64], large: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|p| Reverse(rows[*p]));
    let mut others = order.split_off(order.partition_point(|p| rows[*p] > large)).into_iter();
    let mut spread = Vec::with_capacity(rows.len());
    for p in order {
        spread.push(p);
        spread.extend(others.by_ref().take(LARGE_APART));
    }
    spread.extend(others);
    spread
}

/// The output of a part of the groups.
#[derive(Default)]
struct Part {
    rows: Vec<RecordBatch>,
    groups: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<Failure>,
}

/// Trains a partition, whose units are in memory while it has `in_memory`.
async fn train_partition(
    running: Arc<Running>,
    partitions: Arc<Partitions>,
    p: usize,
    _in_memory: Option<OwnedSemaphorePermit>,
) -> Result<Part, TrainError> {
    let pool = running.steps.pool.clone();
    let units = tokio::task::spawn_blocking(move || {
        partitions.units(p, |shape| Ok::<_, TrainError>(UnitInput::reserve(&pool, partitions.schema(), shape)?))
    });
    let units = units.await??;
    let mut part = Part::default();
    let mut done =
        futures::stream::iter(units).map(|unit| train_unit(&running, unit)).buffered(running.units.at_once());
    while let Some((unit, rows, failures)) = done.try_next().await? {
        part.groups += (unit.groups.len() + unit.failed.len()) as u64;
        part.skipped += unit.skipped as u64;
        part.failed += failures.len() as u64;
        part.failures.extend(failures.into_iter().take(FAILURES_MAX - part.failures.len().min(FAILURES_MAX)));
        part.rows.extend(rows);
    }
    Ok(part)
}

async fn train_unit(
    running: &Running,
    unit: WorkUnit<UnitInput>,
) -> Result<(WorkUnit<()>, Option<RecordBatch>, Vec<Failure>), TrainError> {
    let (unit, memory) = unit.split();
    if unit.groups.is_empty() {
        let failures = results::failures(&unit, &running.labels, &[]);
        return Ok((unit, None, failures));
    }
    let (payload, groups) = memory.lend(&unit.groups)?;
    let fitted = running.units.fit(&payload, &groups, unit.shape).await?;
    let failures = results::failures(&unit, &running.labels, &fitted);
    let any = fitted.iter().any(|f| f.faults.len() < unit.groups.len());
    let rows = any.then(|| results::rows(&unit, &running.labels, &fitted, running.metric)).transpose()?;
    Ok((unit, rows, failures))
}

/// Where the rows of the output go: kept and sorted while they are few, written
/// as they come once they are many.
struct Sink {
    writer: ParquetOutput,
    keys: usize,
    kept: Option<Vec<RecordBatch>>,
    kept_rows: usize,
    preview: Option<RecordBatch>,
    summary: Summary,
}

const PREVIEW_ROWS: usize = 60;

impl Sink {
    fn new(output: &Path, schema: Schema, keys: usize, metadata: Vec<(String, String)>) -> Result<Sink, TrainError> {
        let writer = ParquetOutput::create(output, Arc::new(schema), metadata)?;
        Ok(Sink { writer, keys, kept: Some(Vec::new()), kept_rows: 0, preview: None, summary: Summary::default() })
    }

    fn take(&mut self, part: Part) -> Result<(), TrainError> {
        self.summary.groups += part.groups;
        self.summary.failed += part.failed;
        self.summary.skipped += part.skipped;
        let room = FAILURES_MAX - self.summary.failures.len().min(FAILURES_MAX);
        self.summary.failures.extend(part.failures.into_iter().take(room));
        for rows in part.rows {
            self.summary.models += rows.num_rows() as u64;
            self.summary.groups_written += results::groups(&rows);
            self.kept_rows += rows.num_rows();
            match &mut self.kept {
                Some(kept) => kept.push(rows),
                None => self.write(&rows)?,
            }
        }
        if self.summary.groups as usize > SORTED_GROUPS_MAX {
            for rows in self.kept.take().into_iter().flatten() {
                self.write(&rows)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, rows: &RecordBatch) -> Result<(), TrainError> {
        self.preview.get_or_insert_with(|| rows.slice(0, rows.num_rows().min(PREVIEW_ROWS)));
        Ok(self.writer.write(rows)?)
    }

    /// Why there is nothing to replace `output` with.
    fn nothing_for(&self, output: &Path) -> TrainError {
        let Summary { groups, failed, skipped, failures, .. } = &self.summary;
        let first = failures.first().map(|f| format!(" (the first: {}: {} [{}])", f.group, f.message, f.code));
        let first = first.unwrap_or_default();
        let reason = format!(
            "{groups} groups, {failed} failures{first}, {skipped} groups skipped for fewer than `min_rows` rows"
        );
        TrainError::NoModel { reason, output: output.to_owned() }
    }

    fn finish(mut self) -> Result<Summary, TrainError> {
        if let Some(kept) = self.kept.take().filter(|kept| !kept.is_empty()) {
            // By file and key, then rank.
            let sorted = results::sorted(&kept, (0..self.keys).chain([self.keys + 1]))?;
            self.write(&sorted)?;
        }
        self.summary.bytes = self.writer.finish()?;
        self.summary.preview = self.preview;
        Ok(self.summary)
    }
}

/// The columns that name a group, as units have them.
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
