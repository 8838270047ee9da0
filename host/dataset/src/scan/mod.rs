//! Reading files as an ordered list of morsels.
//!
//! A *morsel* is a byte range of one file, about `morsel_bytes` long, that one
//! thread reads from end to end. Morsels are chosen from the files
//! alone, never from the number of threads: whoever reads them all and keeps
//! their order has the rows in file order, and the same batches, on every
//! machine. That is what makes everything built on top repeatable.

mod encryption;
mod files;
mod filter;
mod format;
mod hive;
mod inference;
mod int96;
mod ipc;
mod local;
mod plan;
mod row_group;
mod schema;
mod store;
mod stream;
#[cfg(test)]
mod tests;
mod text;
mod types;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::execution::TaskContext;
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use futures::{StreamExt as _, TryStreamExt as _};
use rustix::process::{Resource, getrlimit};
use url::Url;

use files::DatasetFile;
use filter::Filter;
use schema::MergedSchema;
use store::Stores;
use stream::MorselOrigin;

use crate::DatasetError;
pub use files::find_files;
use format::{Format, InspectedFile};
use hive::HivePartitions;
use row_group::RowGroupPlanner;
pub use row_group::{RowGroup, RowGroupReader};
pub(crate) use schema::plain as plain_type;
pub use stream::BatchStream;
use text::TextFile;
pub use text::{TextOptions, TextSpec};

/// Files whose schema is read at the same time, at most.
const INSPECT_CONCURRENCY_MAX: usize = 32;
/// One of so many descriptors that this process may have is for a file whose schema is read.
const INSPECT_DESCRIPTORS: u64 = 8;

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct ScanSource {
    /// Files, folders (searched to any depth), globs (`*`, `?`, `[…]`, `**`)
    /// and URLs (`file`, `http`, `https`, `s3`, `gs`, `az`). The extension says
    /// the format: `.parquet`, `.csv`, `.tsv`, `.json`, `.jsonl`, `.ndjson`
    /// (objects one after another), `.arrow`, `.feather`, `.ipc`; that of text
    /// may be followed by `.gz`, `.zst`, `.bz2` or `.xz`.
    pub paths: Vec<String>,
    /// An SQL expression over the columns; rows for which it is not true are
    /// left out. Names keep their case, and are quoted (`"a b"`) where they
    /// are no plain names. A blank one is none.
    pub filter: Option<String>,
    /// The columns to read, in this order. `None` is all of them.
    pub columns: Option<Vec<String>>,
    /// What is said of files of text.
    pub text: TextOptions,
}

impl ScanSource {
    /// The filter, if there is one.
    fn filter_text(&self) -> Option<&str> {
        self.filter.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// Whether the column is asked for, or may be read by the filter: whether its text has the name in it.
    fn may_use(&self, column: &str) -> bool {
        let listed = self.columns.as_ref().is_none_or(|columns| columns.iter().any(|name| name == column));
        listed || self.filter.as_ref().is_some_and(|filter| filter.contains(&column.replace('"', "\"\"")))
    }
}

/// How to read.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Rows of a batch, about.
    pub batch_rows: usize,
    /// Bytes of a file that make a morsel, about.
    pub morsel_bytes: u64,
}

impl Default for ScanOptions {
    fn default() -> Self {
        ScanOptions { batch_rows: 16_384, morsel_bytes: 16 << 20 }
    }
}

/// A byte range of a file, the unit of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Morsel {
    /// Which of [`Scan::files`].
    pub file: usize,
    /// Where in the file it begins, about: records are not cut.
    pub first_byte: u64,
    /// Where it ends, about.
    pub end_byte: u64,
    plan: usize,
    partition: usize,
}

/// Files that were found and understood, ready to be read.
pub struct Scan {
    schema: SchemaRef,
    names: Vec<String>,
    files: Vec<DatasetFile>,
    morsels: Vec<Morsel>,
    plans: Vec<(Arc<dyn ExecutionPlan>, Format)>,
    /// For each file the columns of floats that are 64-bit integers there, and a file that made them floats.
    widened: Vec<Vec<(usize, usize)>>,
    stores: Stores,
    context: Arc<TaskContext>,
    batch_rows: usize,
    /// What others can read of row groups, where they can.
    row_group_planner: Option<RowGroupPlanner>,
    /// The filter as it was given, if there is one.
    filter: Arc<str>,
    rows: Option<u64>,
    /// The first value that made a column text: its file, its byte offset, and the value for a message.
    texts: HashMap<String, (Arc<TextFile>, u64, String)>,
}

impl Scan {
    /// Finds the files, reads their schemas, checks columns and filter, and
    /// plans. Reads no rows of Parquet and Arrow files, the first ones of CSV
    /// files (more, where these have no value of a column that is used) and all
    /// of JSON files. URLs need a tokio runtime.
    pub async fn open(source: ScanSource, options: ScanOptions) -> Result<Scan, DatasetError> {
        let session = session(&options);
        let mut stores = Stores::new();
        let files = files::list(&source.paths, &mut stores).await?;
        for (prefix, client) in stores.iter() {
            let url = Url::parse(prefix).map_err(DatasetError::internal)?;
            session.register_object_store(&url, Arc::clone(client));
        }
        let state = session.state();
        let (folders, inspected) = inspect(&state, &stores, &files, &source, &options).await?;
        let resolved = ResolvedSource::new(&state, &source, &files, &inspected, &folders)?;
        let mut scan = Scan {
            schema: Arc::new(Schema::new(resolved.output.clone())),
            names: files.iter().map(|f| f.name.clone()).collect(),
            files,
            morsels: Vec::new(),
            plans: Vec::new(),
            widened: schema::widened(&resolved.output, &inspected),
            stores,
            context: session.task_ctx(),
            batch_rows: options.batch_rows.max(1),
            row_group_planner: resolved.row_group_planner(&state, &folders),
            filter: resolved.filter_text.as_str().into(),
            rows: inspected
                .iter()
                .map(|of_file| of_file.as_ref()?.rows)
                .try_fold(0u64, |sum, rows| sum.checked_add(rows?)),
            texts: text_evidence(&resolved.output, &inspected),
        };
        scan.plan(&state, &resolved, &inspected, &folders, &source.text, &options).await?;
        Ok(scan)
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The names of the files, sorted: paths as given for local files, URLs for others.
    pub fn files(&self) -> &[String] {
        &self.names
    }

    /// Bytes of all files, as they are stored.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.meta.size))
    }

    /// Rows of all files, those that the filter leaves out too; known where all files say so without being read.
    pub fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// Stored bytes of the largest morsel. Reading it takes at least as much memory.
    pub fn morsel_bytes_max(&self) -> u64 {
        let bytes = |m: &Morsel| m.end_byte.min(self.files[m.file].meta.size).saturating_sub(m.first_byte);
        self.morsels.iter().map(bytes).max().unwrap_or(0)
    }

    /// The morsels, in the order of files and of rows within them.
    pub fn morsels(&self) -> &[Morsel] {
        &self.morsels
    }

    /// Reads a morsel. May be called again for the same one, and for several
    /// at once; the stream is to be polled where there is a tokio runtime
    /// (without one, local files are read on the polling thread).
    ///
    /// # Panics
    ///
    /// If there is no such morsel.
    pub fn read(&self, morsel: usize) -> Result<BatchStream, DatasetError> {
        let Morsel { file, plan, partition, .. } = self.morsels[morsel];
        let widened = self.widened[file].iter().map(|(column, other)| (*column, self.names[*other].clone())).collect();
        let (exec, _) = &self.plans[plan];
        let batches = exec.execute(partition, Arc::clone(&self.context));
        let batches = batches.map_err(|e| DatasetError::internal(stream::reason_of(&e)))?;
        let origin = MorselOrigin { file: self.files[file].name.clone(), widened, filter: self.filter.clone() };
        Ok(BatchStream::new(Arc::clone(&self.schema), batches, origin, self.batch_rows))
    }

    /// Adds to the error of a text column that has to be a number the first value that made the column text.
    pub async fn explain(&self, error: DatasetError) -> DatasetError {
        let DatasetError::ColumnType { role, column, data_type, reason } = error else { return error };
        let text = self.texts.get(&column).filter(|_| data_type == DataType::Utf8.to_string());
        let Some((file, at, value)) = text else {
            return DatasetError::ColumnType { role, column, data_type, reason };
        };
        let place = file.place(*at).await;
        let why = format!(
            "{place} has {value}, which is no number: if it stands for one that is missing, name it in [input] \
             null_values; a number that is written in a way of its own is read by types = {{ {} = \"float64\" }}",
            text::key(&column)
        );
        DatasetError::ColumnType { role, column, data_type, reason: format!("{reason}; {why}") }
    }

    async fn plan(
        &mut self,
        state: &SessionState,
        resolved: &ResolvedSource,
        inspected: &[Option<InspectedFile>],
        folders: &HivePartitions,
        text: &TextOptions,
        options: &ScanOptions,
    ) -> Result<(), DatasetError> {
        let used = Schema::new(resolved.used.clone());
        let (filter, columns) = (resolved.filter.as_ref(), resolved.columns());
        let inputs = plan::PlanInputs { files: &self.files, inspected, folders, used: &used, options };
        let (table, morsels) = plan::text_table(&inputs, text, self.plans.len());
        if !morsels.is_empty() {
            let exec = plan::finish(state, table.plan()?, filter, &columns, self.batch_rows);
            // Where files are of several formats, which of those of text says nothing.
            self.plans.push((exec.map_err(|e| resolved.explain(&e))?, Format::JsonLines));
            self.morsels.extend(morsels);
        }
        for group in plan::scan_groups(&inputs) {
            let prefix = self.stores.prefix(group.store());
            let (config, morsels) = group.plan(state, prefix, &inputs, self.plans.len()).await?;
            let exec = plan::scan(state, config, filter, &used, &columns)
                .and_then(|scan| plan::finish(state, scan, filter, &columns, self.batch_rows));
            self.plans.push((exec.map_err(|e| resolved.explain(&e))?, group.format()));
            self.morsels.extend(morsels);
        }
        self.morsels.sort_by_key(|m| (m.file, m.first_byte));
        Ok(())
    }

    /// What DataFusion counted while it read, by the counter's name.
    #[cfg(test)]
    pub(crate) fn counted(&self, name: &str) -> usize {
        use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
        let mut sum = 0;
        for (plan, _) in &self.plans {
            let visited = plan.apply(|node| {
                sum += node.metrics().and_then(|m| m.sum_by_name(name)).map_or(0, |v| v.as_usize());
                Ok(TreeNodeRecursion::Continue)
            });
            visited.expect("the closure does not fail");
        }
        sum
    }
}

/// The first value of each text column that no other type holds, where types were inferred from values.
fn text_evidence(
    output: &[FieldRef],
    inspected: &[Option<InspectedFile>],
) -> HashMap<String, (Arc<TextFile>, u64, String)> {
    let first = |name: &String| {
        inspected.iter().flatten().find_map(|of_file| {
            let (at, value) = of_file.evidence.get(name)?.text()?;
            Some((Arc::clone(of_file.text.as_ref()?), *at, value.clone()))
        })
    };
    let of_text = output.iter().filter(|field| *field.data_type() == DataType::Utf8);
    of_text.filter_map(|field| Some((field.name().clone(), first(field.name())?))).collect()
}

/// What the files say of themselves, and their folders. A file that the folders rule out by the filter is not opened, but
/// for the first one.
async fn inspect(
    state: &SessionState,
    stores: &Stores,
    files: &[DatasetFile],
    source: &ScanSource,
    options: &ScanOptions,
) -> Result<(HivePartitions, Vec<Option<InspectedFile>>), DatasetError> {
    let Some(first) = files.first() else { return Ok(Default::default()) };
    if files.iter().all(|file| file.meta.size == 0) {
        let reason = "the file is empty".to_owned();
        return Err(DatasetError::Read { file: first.name.clone(), line: None, reason });
    }
    let of_first = format::inspect(state, stores.client(first.store), first, source, options).await?;
    let is_column = |name: &str| of_first.schema.index_of(name).is_ok();
    let folders = HivePartitions::of(files, &source.text, is_column)?;
    let may_match = folders.may_match(state, source.filter_text(), files.len());
    let others = files.iter().zip(&may_match).skip(1).map(|(file, may_match)| async move {
        match may_match {
            true => format::inspect(state, stores.client(file.store), file, source, options).await.map(Some),
            false => Ok(None),
        }
    });
    let others: Vec<_> = futures::stream::iter(others).buffered(inspect_concurrency()).try_collect().await?;
    let has_rows = of_first.has_rows && may_match[0];
    let of_first = Some(InspectedFile { has_rows, ..of_first });
    Ok((folders, std::iter::once(of_first).chain(others).collect()))
}

/// What was asked for, checked against the files.
struct ResolvedSource {
    /// The columns that come out.
    output: Vec<FieldRef>,
    /// These and those that the filter reads.
    used: Vec<FieldRef>,
    filter: Option<Filter>,
    filter_text: String,
}

impl ResolvedSource {
    fn new(
        state: &SessionState,
        source: &ScanSource,
        files: &[DatasetFile],
        inspected: &[Option<InspectedFile>],
        folders: &HivePartitions,
    ) -> Result<ResolvedSource, DatasetError> {
        let merged = MergedSchema::new(files, inspected, folders, &source.text)?;
        let filter = source.filter_text().map(|text| Filter::parse(state, text, &merged)).transpose()?;
        let is_kept = |file: usize| inspected[file].as_ref().is_some_and(|inspected| inspected.has_rows);
        let filter = filter.and_then(|filter| filter.without(|part| folders.decides(state, part, is_kept)));
        let mut names: Vec<&str> = match &source.columns {
            Some(columns) => columns.iter().map(String::as_str).collect(),
            None => merged.names().collect(),
        };
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        if names.is_empty() {
            let reason = match source.columns {
                Some(_) => "no column is asked for".to_owned(),
                None => format!("{} has no columns", files.first().map_or("the input", |file| file.name.as_str())),
            };
            return Err(DatasetError::Columns(reason));
        }
        let column = |name: &str, role: &str| merged.column(name, role, files, inspected).cloned();
        let output = names.iter().map(|name| column(name, "column")).collect::<Result<Vec<_>, _>>()?;
        let mut used = output.clone();
        if let Some(filter) = &filter {
            let mut extra: Vec<&String> = filter.columns.iter().filter(|name| !seen.contains(name.as_str())).collect();
            extra.sort();
            for name in extra {
                used.push(column(name, "column of the filter")?);
            }
        }
        Ok(ResolvedSource { output, used, filter, filter_text: source.filter_text().unwrap_or_default().to_owned() })
    }

    fn columns(&self) -> Vec<String> {
        self.output.iter().map(|field| field.name().clone()).collect()
    }

    fn row_group_planner(&self, state: &SessionState, folders: &HivePartitions) -> Option<RowGroupPlanner> {
        // Row groups have no values of folders.
        if self.used.iter().any(|field| folders.has(field.name())) {
            return None;
        }
        let filter = self.filter.as_ref().map(|filter| &filter.expr);
        RowGroupPlanner::new(state, Schema::new(self.used.clone()), self.output.len(), filter)
    }

    fn explain(&self, error: &datafusion::error::DataFusionError) -> DatasetError {
        let reason = stream::reason_of(error);
        match self.filter {
            Some(_) => DatasetError::Filter { filter: self.filter_text.clone(), reason },
            None => DatasetError::Internal(reason),
        }
    }
}

/// Files whose schema is read at the same time: few where the process may open few.
fn inspect_concurrency() -> usize {
    let share = getrlimit(Resource::Nofile).current.map(|files| files / INSPECT_DESCRIPTORS);
    let share = share.and_then(|share| usize::try_from(share).ok()).unwrap_or(INSPECT_CONCURRENCY_MAX);
    share.clamp(1, INSPECT_CONCURRENCY_MAX)
}

/// A DataFusion session that leaves the order of files and rows alone.
fn session(options: &ScanOptions) -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(1).with_batch_size(options.batch_rows.max(1));
    let settings = config.options_mut();
    settings.execution.enable_file_stream_work_stealing = false;
    settings.execution.collect_statistics = false;
    settings.execution.parquet.schema_force_view_types = false;
    settings.execution.parquet.coerce_int96 = Some(int96::SETTING.to_owned());
    settings.sql_parser.enable_ident_normalization = false;
    SessionContext::new_with_config(config)
}
