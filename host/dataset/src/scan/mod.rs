//! Reading of files as an ordered list of morsels.
//!
//! A *morsel* is a byte range of one file, about `morsel_bytes` long, that one thread reads from end to end. Morsels
//! depend on the files alone, not on the number of threads. Reading all morsels in order yields the rows in file order
//! and the same batches on every machine, which makes all later steps repeatable.

mod dataset_file;
mod encryption;
mod files;
mod filter;
mod format;
mod hive;
mod inference;
mod inspected_file;
mod inspection;
mod int96;
mod ipc;
mod local;
mod morsel;
mod plan;
mod reason;
mod row_group;
mod schema;
mod source;
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

use dataset_file::DatasetFile;
use filter::Filter;
use format::Format;
use hive::HivePartitions;
use inspected_file::InspectedFile;
use reason::reason_of;
use row_group::RowGroupPlanner;
use schema::MergedSchema;
use store::Stores;
use stream::MorselOrigin;
use text::TextFile;

use crate::DatasetError;

pub use files::{find_files, list_local_files};
pub use morsel::Morsel;
pub use row_group::{RowGroup, RowGroupReader};
pub(crate) use schema::plain as plain_type;
pub use source::{NamedFile, ScanOptions, ScanSource};
pub use stream::BatchStream;
pub use text::{TextOptionError, TextOptions, TextSpec};

/// Maximum files whose schemas are read concurrently.
const INSPECT_CONCURRENCY_MAX: usize = 32;
/// Divisor of the process's descriptor limit for files whose schemas are read concurrently.
const INSPECT_DESCRIPTORS: u64 = 8;

/// Files whose schemas are known, ready to be read.
pub struct Scan {
    schema: SchemaRef,
    names: Vec<String>,
    files: Vec<DatasetFile>,
    morsels: Vec<Morsel>,
    plans: Vec<(Arc<dyn ExecutionPlan>, Format)>,
    /// For each file the output columns that are 64-bit integers there but floats in the output, each with a file in
    /// which the column is floats.
    widened: Vec<Vec<(usize, usize)>>,
    stores: Stores,
    context: Arc<TaskContext>,
    batch_rows: usize,
    /// Planner of row groups that workers read, if the filter allows it.
    row_group_planner: Option<RowGroupPlanner>,
    /// Filter as given; empty without one.
    filter: Arc<str>,
    rows: Option<u64>,
    /// For each text column the first value that made it text: its file, its byte offset, and the value for a message.
    texts: HashMap<String, (Arc<TextFile>, u64, String)>,
}

impl Scan {
    /// Finds the files, reads their schemas, checks columns and filter, and plans the reads. Reads no rows of Parquet
    /// and Arrow files, the first rows of CSV files (more, if a used column has no value in these) and all rows of JSON
    /// files. URLs need a tokio runtime.
    pub async fn open(source: ScanSource, options: ScanOptions) -> Result<Scan, DatasetError> {
        let session = session(&options);
        let mut stores = Stores::new();
        let files = match &source.named {
            Some(named) => files::list_named(named, &stores)?,
            None => files::list(&source.paths, &mut stores).await?,
        };
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

    /// Returns the schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the names of the files, sorted: paths as given for local files, URLs for others.
    pub fn files(&self) -> &[String] {
        &self.names
    }

    /// Returns the stored bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.meta.size))
    }

    /// Returns the rows of all files before filtering, if all files state their number of rows.
    pub fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// Returns the stored bytes of the largest morsel. Reading it takes at least as much memory.
    pub fn morsel_bytes_max(&self) -> u64 {
        let bytes = |m: &Morsel| m.end_byte.min(self.files[m.file].meta.size).saturating_sub(m.first_byte);
        self.morsels.iter().map(bytes).max().unwrap_or(0)
    }

    /// Returns the morsels, in the order of files and of rows within them.
    pub fn morsels(&self) -> &[Morsel] {
        &self.morsels
    }

    /// Reads a morsel. The same morsel can be read again, and several can be read concurrently. The stream should be
    /// polled within a tokio runtime; without one, local files are read on the polling thread.
    ///
    /// # Panics
    ///
    /// If the morsel does not exist.
    pub fn read(&self, morsel: usize) -> Result<BatchStream, DatasetError> {
        let Morsel { file, plan, partition, .. } = self.morsels[morsel];
        let widened = self.widened[file].iter().map(|(column, other)| (*column, self.names[*other].clone())).collect();
        let (exec, _) = &self.plans[plan];
        let batches = exec.execute(partition, Arc::clone(&self.context));
        let batches = batches.map_err(|e| DatasetError::internal(reason_of(&e)))?;
        let origin = MorselOrigin { file: self.files[file].name.clone(), widened, filter: self.filter.clone() };
        Ok(BatchStream::new(Arc::clone(&self.schema), batches, origin, self.batch_rows))
    }

    /// Returns the row groups of a morsel that may have rows that pass the filter, to be decoded by [`RowGroupReader`]s
    /// into batches of this scan's schema. Returns `None` if the morsel needs [`Scan::read`]: for conversions or a
    /// complex filter, for a page index or bloom filter that could exclude pages, if the file is not on this machine,
    /// or if a row group is large or damaged.
    ///
    /// # Panics
    ///
    /// If the morsel does not exist.
    pub async fn row_groups(&self, morsel: usize) -> Option<Vec<RowGroup>> {
        let Morsel { file, first_byte, end_byte, plan, .. } = self.morsels[morsel];
        let planner = self.row_group_planner.as_ref().filter(|_| self.widened[file].is_empty())?;
        let (_, format) = &self.plans[plan];
        let file = &self.files[file];
        let path = self.stores.path_of(file).filter(|_| *format == Format::Parquet)?;
        let store = self.stores.client(file.store).as_ref();
        planner.plan(store, &file.meta, &path, first_byte..end_byte, &self.context).await
    }

    /// Extends the error of a text column that must be numeric by the first value that made the column text.
    pub async fn explain(&self, error: DatasetError) -> DatasetError {
        let DatasetError::ColumnType { role, column, data_type, reason } = error else { return error };
        let text = self.texts.get(&column).filter(|_| data_type == DataType::Utf8.to_string());
        let Some((file, at, value)) = text else {
            return DatasetError::ColumnType { role, column, data_type, reason };
        };
        let place = file.place(*at).await;
        let why = format!(
            "{place} has {value}, which is not a number: if it stands for a missing value, add it to [input] \
             null_values; if it is a number in another notation, declare types = {{ {} = \"float64\" }}",
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
            // The plan covers text files of all formats; only the difference to Parquet matters.
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

    /// Returns the sum of a DataFusion metric over all plans.
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

/// Returns, for each text column with an inferred type, the first value that no other type holds.
fn text_evidence(
    output: &[FieldRef],
    inspected: &[Option<InspectedFile>],
) -> HashMap<String, (Arc<TextFile>, u64, String)> {
    let first = |name: &String| {
        inspected.iter().flatten().find_map(|of_file| {
            let first = of_file.evidence.get(name)?.text()?;
            Some((Arc::clone(of_file.text.as_ref()?), first.at, first.text.clone()))
        })
    };
    let of_text = output.iter().filter(|field| *field.data_type() == DataType::Utf8);
    of_text.filter_map(|field| Some((field.name().clone(), first(field.name())?))).collect()
}

/// Reads the schemas of the files and the columns of their folder names. Files that the filter rules out by their
/// folders are not opened, except for the first file.
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
    let of_first = inspection::inspect(state, stores.client(first.store), first, source, options).await?;
    let is_column = |name: &str| of_first.schema.index_of(name).is_ok();
    let folders = HivePartitions::parse(files, &source.text, is_column)?;
    let may_match = folders.may_match(state, source.filter_text(), files.len());
    let other = |at: usize| {
        let (file, may_match) = (&files[at], may_match[at]);
        async move {
            match may_match {
                true => inspection::inspect(state, stores.client(file.store), file, source, options).await.map(Some),
                false => Ok(None),
            }
        }
    };
    let others = (1..files.len()).map(other);
    let others: Vec<_> = futures::stream::iter(others).buffered(inspect_concurrency()).try_collect().await?;
    let has_rows = of_first.has_rows && may_match[0];
    let of_first = Some(InspectedFile { has_rows, ..of_first });
    Ok((folders, std::iter::once(of_first).chain(others).collect()))
}

/// Columns and filter of a [`ScanSource`], checked against the files.
struct ResolvedSource {
    /// Columns of the output.
    output: Vec<FieldRef>,
    /// Columns of the output, then columns that only the filter reads.
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
        let filter = source
            .filter_text()
            .map(|text| Filter::parse(state, text, merged.fields().cloned().collect()))
            .transpose()?;
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
                Some(_) => "no column is requested".to_owned(),
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
        // Row groups lack the columns of folder names.
        if self.used.iter().any(|field| folders.has(field.name())) {
            return None;
        }
        let filter = self.filter.as_ref().map(|filter| &filter.expr);
        RowGroupPlanner::new(state, Schema::new(self.used.clone()), self.output.len(), filter)
    }

    fn explain(&self, error: &datafusion::error::DataFusionError) -> DatasetError {
        let reason = reason_of(error);
        match self.filter {
            Some(_) => DatasetError::Filter { filter: self.filter_text.clone(), reason },
            None => DatasetError::Internal(reason),
        }
    }
}

/// Returns the number of files whose schemas are read concurrently: few if the process has few descriptors.
fn inspect_concurrency() -> usize {
    let share = getrlimit(Resource::Nofile).current.map(|files| files / INSPECT_DESCRIPTORS);
    let share = share.and_then(|share| usize::try_from(share).ok()).unwrap_or(INSPECT_CONCURRENCY_MAX);
    share.clamp(1, INSPECT_CONCURRENCY_MAX)
}

/// Creates a DataFusion session that keeps the order of files and rows.
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
