//! Physical plans of DataFusion for scans.
//!
//! Files of one format, store and schema share a plan, whose partitions are the morsels. The plan is built from its
//! nodes (scan, projection, filter) rather than from SQL, because the optimiser could repartition, reorder and steal
//! work.

use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::context::SessionState;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::expressions::{Column, cast};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use super::dataset_file::DatasetFile;
use super::filter::{self, Filter};
use super::format::Format;
use super::hive::HivePartitions;
use super::inspected_file::InspectedFile;
use super::morsel::Morsel;
use super::reason::reason_of;
use super::source::ScanOptions;
use super::text::{TextOptions, TextTable};
use crate::DatasetError;

/// Files that one plan reads.
pub(super) struct ScanGroup {
    format: Format,
    store: usize,
    /// Schema that the reader is given.
    schema: SchemaRef,
    files: Vec<usize>,
}

/// Inputs of planning.
pub(super) struct PlanInputs<'a> {
    pub(super) files: &'a [DatasetFile],
    /// Schemas and properties of the files.
    pub(super) inspected: &'a [Option<InspectedFile>],
    pub(super) folders: &'a HivePartitions,
    /// Columns to read, with the types that all files agree on.
    pub(super) used: &'a Schema,
    pub(super) options: &'a ScanOptions,
}

/// Groups the files that are not text by format, store and schema.
pub(super) fn scan_groups(inputs: &PlanInputs<'_>) -> Vec<ScanGroup> {
    let PlanInputs { files, inspected, folders, used, .. } = inputs;
    let in_files = used.fields().iter().filter(|field| !folders.has(field.name())).cloned().collect::<Vec<_>>();
    let in_files = Arc::new(Schema::new(in_files));
    let mut scan_groups: Vec<ScanGroup> = Vec::new();
    for (index, (file, of_file)) in files.iter().zip(*inspected).enumerate() {
        let Some(of_file) = of_file.as_ref().filter(|of_file| of_file.has_rows && !of_file.format.is_text()) else {
            continue;
        };
        let schema = if of_file.format.is_positional() {
            Arc::new(with_names(&of_file.schema, &in_files))
        } else {
            Arc::clone(&in_files)
        };
        let format = of_file.format;
        let fits = |l: &&mut ScanGroup| l.format == format && l.store == file.store && l.schema == schema;
        match scan_groups.iter_mut().rev().find(fits) {
            Some(group) => group.files.push(index),
            None => scan_groups.push(ScanGroup { format, store: file.store, schema, files: vec![index] }),
        }
    }
    scan_groups
}

/// Returns the schema of a file whose columns are matched by position, with unique names: unused columns, whose names
/// may be duplicates, are renamed.
fn with_names(schema: &Schema, used: &Schema) -> Schema {
    let fields = schema.fields().iter().enumerate().map(|(number, field)| match used.index_of(field.name()) {
        Ok(_) => Arc::clone(field),
        Err(_) => Arc::new(field.as_ref().clone().with_name(format!("\0{number}"))),
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// Returns the morsels of text files and the table whose partitions they are. `plan` is the index of its plan.
pub(super) fn text_table(inputs: &PlanInputs<'_>, text: &TextOptions, plan: usize) -> (TextTable, Vec<Morsel>) {
    let PlanInputs { inspected, folders, used, options, .. } = inputs;
    let mut table = TextTable::new(used, text, options.batch_rows);
    let mut morsels = Vec::new();
    for (file, of_file) in inspected.iter().enumerate() {
        let Some(text) = of_file.as_ref().filter(|of_file| of_file.has_rows).and_then(|of_file| of_file.text.as_ref())
        else {
            continue;
        };
        let value = |field: &FieldRef| Some((field.name().clone(), folders.value(field.name(), file)?));
        let values: Vec<_> = folders.fields().iter().filter_map(value).collect();
        for (first_byte, end_byte) in &text.parts {
            let partition = table.len();
            morsels.push(Morsel { file, first_byte: *first_byte, end_byte: *end_byte, plan, partition });
            table.push(text, *first_byte..*end_byte, &values);
        }
    }
    (table, morsels)
}

impl ScanGroup {
    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(super) fn store(&self) -> usize {
        self.store
    }

    /// Returns the scan of this group's files and its morsels. `plan` is the index of its plan.
    pub(super) async fn plan(
        &self,
        state: &SessionState,
        prefix: &str,
        inputs: &PlanInputs<'_>,
        plan: usize,
    ) -> Result<(FileScanConfig, Vec<Morsel>), DatasetError> {
        let PlanInputs { files, folders, used, options, .. } = inputs;
        let in_folders = folders.fields().iter().filter(|field| used.index_of(field.name()).is_ok());
        let in_folders: Vec<FieldRef> = in_folders.cloned().collect();
        let mut groups = Vec::new();
        let mut morsels = Vec::new();
        for index in &self.files {
            let file = &files[*index];
            for (first_byte, end_byte) in ranges(file.meta.size, options.morsel_bytes, self.format.splits()) {
                let mut part = PartitionedFile::new_from_meta(file.meta.clone());
                let values = in_folders.iter().filter_map(|field| folders.value(field.name(), *index));
                part.partition_values = values.collect();
                if (first_byte, end_byte) != (0, file.meta.size) {
                    part = part.with_range(first_byte as i64, end_byte as i64);
                }
                morsels.push(Morsel { file: *index, first_byte, end_byte, plan, partition: groups.len() });
                groups.push(FileGroup::new(vec![part]));
            }
        }
        let engine = self.format.engine(state);
        let url = ObjectStoreUrl::parse(prefix).map_err(|e| DatasetError::internal(reason_of(&e)))?;
        let table = TableSchema::builder(Arc::clone(&self.schema)).with_table_partition_cols(in_folders).build();
        let source = engine.file_source(table);
        let config = FileScanConfigBuilder::new(url, source)
            .with_file_groups(groups)
            .with_batch_size(Some(options.batch_rows))
            // Otherwise partitions take files in the order in which they are polled.
            .with_preserve_order(true)
            .build();
        let scan =
            engine.create_physical_plan(state, config).await.map_err(|e| DatasetError::internal(reason_of(&e)))?;
        let scan = scan.downcast_ref::<DataSourceExec>();
        let config = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
        Ok((config.ok_or_else(|| DatasetError::internal("a scan that is no file scan"))?.clone(), morsels))
    }
}

/// Plans the scan of files other than text. Without `filter` the output is `columns`, in that order; otherwise it adds
/// the columns of the filter, and casts all to the types of `used`.
pub(super) fn scan(
    state: &SessionState,
    config: FileScanConfig,
    filter: Option<&Filter>,
    used: &Schema,
    columns: &[String],
) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
    let table = Arc::clone(config.file_source().table_schema().table_schema());
    let Some(filter) = filter else {
        let indices = columns.iter().map(|c| table.index_of(c)).collect::<Result<Vec<_>, _>>()?;
        return scan_of(config, indices);
    };
    // Pruning skips whole parts of a file; the filter node tests the rows. Its predicates have the types of `used`:
    // they don't apply to a file with others (Arrow, which has no statistics).
    let has_type =
        |name: &String| Ok(table.field_with_name(name)?.data_type() == used.field_with_name(name)?.data_type());
    let has_types = filter.columns.iter().map(has_type).collect::<datafusion::error::Result<Vec<bool>>>()?;
    let prunes = if has_types.into_iter().all(|has| has) { prunes(state, &filter.expr, &table)? } else { Vec::new() };
    let pushed = config.file_source().try_pushdown_filters(prunes, state.config_options())?;
    let config = match pushed.updated_node {
        Some(source) => FileScanConfigBuilder::from(config).with_source(source).build(),
        None => config,
    };
    let read: Vec<usize> = (0..table.fields().len())
        .filter(|i| columns.contains(table.field(*i).name()) || filter.columns.contains(table.field(*i).name()))
        .collect();
    cast_to(used, scan_of(config, read)?)
}

/// Adds filter and projection to a scan. The output is `columns`, in that order.
pub(super) fn finish(
    state: &SessionState,
    scan: Arc<dyn ExecutionPlan>,
    filter: Option<&Filter>,
    columns: &[String],
    batch_rows: usize,
) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
    let schema = scan.schema();
    let Some(filter) = filter else { return Ok(scan) };
    let predicate = state.create_physical_expr(filter.expr.clone(), &DFSchema::try_from(schema.as_ref().clone())?)?;
    let indices = columns.iter().map(|c| schema.index_of(c)).collect::<Result<Vec<_>, _>>()?;
    let predicate = filter::guarded(predicate)?;
    let filter = FilterExecBuilder::new(predicate, scan).apply_projection(Some(indices))?.with_batch_size(batch_rows);
    Ok(Arc::new(filter.build()?))
}

/// Returns the parts of a filter for which statistics of the columns of `table` can prune rows.
pub(super) fn prunes(
    state: &SessionState,
    filter: &Expr,
    table: &Schema,
) -> datafusion::error::Result<Vec<Arc<dyn PhysicalExpr>>> {
    let predicate = state.create_physical_expr(filter.clone(), &DFSchema::try_from(table.clone())?)?;
    Ok(split_conjunction(&predicate).into_iter().filter(|part| may_prune(part, table)).cloned().collect())
}

/// Returns whether statistics can prune rows for which `part` is not true. Those of floats ignore NaN, for which `f >
/// 5` is true.
fn may_prune(part: &Arc<dyn PhysicalExpr>, table: &Schema) -> bool {
    let ordered = |t: &DataType| !t.is_floating() && !t.is_nested();
    collect_columns(part).iter().all(|column| ordered(table.field(column.index()).data_type()))
}

/// Casts the columns of `scan` to their types in `used`.
fn cast_to(used: &Schema, scan: Arc<dyn ExecutionPlan>) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
    let schema = scan.schema();
    let agreed = |field: &FieldRef| Ok(used.field_with_name(field.name())?.data_type().clone());
    let agreed = schema.fields().iter().map(agreed).collect::<datafusion::error::Result<Vec<DataType>>>()?;
    if schema.fields().iter().zip(&agreed).all(|(field, agreed)| field.data_type() == agreed) {
        return Ok(scan);
    }
    let columns = schema.fields().iter().zip(agreed).enumerate().map(|(index, (field, agreed))| {
        let column = Arc::new(Column::new(field.name(), index));
        Ok(ProjectionExpr::new(cast(column, &schema, agreed)?, field.name()))
    });
    let columns = columns.collect::<datafusion::error::Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(columns, scan)?))
}

fn scan_of(config: FileScanConfig, columns: Vec<usize>) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
    let config = FileScanConfigBuilder::from(config).with_projection_indices(Some(columns))?.build();
    Ok(DataSourceExec::from_data_source(config))
}

/// Splits a file into ranges of nearly equal length, of about `bytes_max` bytes at most. Depends on the file's size
/// alone.
fn ranges(size: u64, bytes_max: u64, splits: bool) -> Vec<(u64, u64)> {
    let parts = if splits { size.div_ceil(bytes_max.max(1)).max(1) } else { 1 };
    (0..parts).map(|i| (cut(size, i, parts), cut(size, i + 1, parts))).collect()
}

fn cut(size: u64, part: u64, parts: u64) -> u64 {
    (u128::from(size) * u128::from(part) / u128::from(parts)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_a_file_without_gaps() {
        for (size, bytes_max, splits, count) in [
            (0, 10, true, 1),
            (1, 10, true, 1),
            (10, 10, true, 1),
            (11, 10, true, 2),
            (101, 10, true, 11),
            (101, 10, false, 1),
        ] {
            let ranges = ranges(size, bytes_max, splits);
            assert_eq!(ranges.len(), count, "{size} {bytes_max}");
            assert_eq!((ranges[0].0, ranges[count - 1].1), (0, size));
            assert!(ranges.windows(2).all(|w| w[0].1 == w[1].0));
        }
    }
}
