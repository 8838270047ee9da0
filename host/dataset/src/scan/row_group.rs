//! Row groups of Parquet files that worker processes decode.
//!
//! [`Scan::row_groups`](crate::Scan::row_groups) returns the row groups, each with a synthetic footer: that of a file with this row group and
//! the columns in use alone. [`RowGroupReader`] decodes one with nothing but its file and that footer. So files, which
//! may be damaged or malicious, are decoded behind a worker's walls, on the core that processes their rows.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow_arith::boolean::{and, is_not_null, is_null};
use arrow_array::{ArrayRef, BooleanArray, Datum, Float64Array, Int64Array, RecordBatch, Scalar};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use datafusion::common::ScalarValue;
use datafusion::common::utils::normalize_float_zero;
use datafusion::datasource::listing::FileRange;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, ParquetFileMetrics, RowGroupAccessPlanFilter};
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use datafusion::physical_expr::conjunction_opt;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
    RowGroupMetaData,
};
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::{SchemaDescriptor, Type};
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use serde::{Deserialize, Serialize};

use super::reason::{reason_of, reason_of_panic};
use super::{int96, plan};
use crate::DatasetError;

/// Maximum rows of a row group. [`Scan::read`](crate::Scan::read) reads morsels with larger ones.
const ROWS_MAX: u64 = 1 << 20;
/// Maximum bytes of a row group's description. [`Scan::read`](crate::Scan::read) reads morsels with larger ones.
const READ_SPEC_BYTES_MAX: usize = 32 << 10;
/// Bytes of a footer after the metadata: its length and a magic number.
const TAIL_BYTES: usize = 8;
/// Bytes to read for a page header; most are shorter.
const HEADER_BYTES: usize = 256;

/// Row group of a Parquet file.
#[derive(Debug)]
pub struct RowGroup {
    file: Arc<File>,
    rows: u64,
    description: Vec<u8>,
}

impl RowGroup {
    /// Returns the file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns the number of rows before filtering, as the file states it.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the input of [`RowGroupReader::new`].
    pub fn description(&self) -> &[u8] {
        &self.description
    }
}

#[derive(Serialize, Deserialize)]
struct RowGroupReadSpec {
    /// Metadata of a file with this row group and the columns in use alone.
    #[serde(with = "serde_bytes")]
    metadata: Vec<u8>,
    /// Bytes of the file.
    size: u64,
    /// Number of output columns. Further columns are used by the conditions alone.
    columns: usize,
    /// Conditions that a row must satisfy.
    conditions: Vec<Condition>,
}

/// Condition on one column, given by its index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Condition {
    IsNull(usize),
    IsNotNull(usize),
    Compare(usize, Comparison, NumberLiteral),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Number of the column's kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum NumberLiteral {
    Whole(i64),
    Float(f64),
}

/// Planner of row groups, for queries that a worker can run: projection and simple conditions.
pub(super) struct RowGroupPlanner {
    /// Output columns, then columns that only the conditions use.
    used: SchemaRef,
    columns: usize,
    conditions: Vec<Condition>,
    /// Predicate that prunes row groups by their statistics.
    prunes: Option<PruningPredicate>,
}

impl RowGroupPlanner {
    /// Returns `None` if the filter has parts other than conditions on one column each.
    pub(super) fn new(
        state: &SessionState,
        used: Schema,
        columns: usize,
        filter: Option<&Expr>,
    ) -> Option<RowGroupPlanner> {
        let parts = filter.map_or_else(Vec::new, split_conjunction);
        let conditions = parts.into_iter().map(|part| Condition::new(part, &used)).collect::<Option<_>>()?;
        let used = Arc::new(used);
        let prunes = filter.map_or(Ok(Vec::new()), |filter| plan::prunes(state, filter, &used)).ok()?;
        let prunes = conjunction_opt(prunes)
            .map(|all| PruningPredicateBuilder::new().with_file_schema(used.clone()).try_build(all));
        Some(RowGroupPlanner { conditions, columns, prunes: prunes.transpose().ok()?, used })
    }

    /// Returns the row groups of a byte range of a local file, to be decoded by [`RowGroupReader`]s. Returns `None` if
    /// the range needs DataFusion's reader: for a page index or bloom filter that could exclude pages, or if a row group
    /// is large or damaged.
    pub(super) async fn plan(
        &self,
        store: &dyn ObjectStore,
        meta: &ObjectMeta,
        path: &Path,
        bytes: Range<u64>,
        context: &TaskContext,
    ) -> Option<Vec<RowGroup>> {
        let metadata = DFParquetMetadata::new(store, meta)
            .with_file_metadata_cache(Some(context.runtime_env().cache_manager.get_file_metadata_cache()))
            .with_page_index_policy(Some(PageIndexPolicy::Skip));
        let metadata = metadata.fetch_metadata().await.ok()?;
        let bytes = FileRange { start: bytes.start.try_into().ok()?, end: bytes.end.try_into().ok()? };
        let groups = catch_unwind(AssertUnwindSafe(|| self.row_groups(&metadata, meta.size, &bytes))).ok()??;
        let file = Arc::new(File::open(path).ok()?);
        let group = |(rows, description)| RowGroup { file: Arc::clone(&file), rows, description };
        Some(groups.into_iter().map(group).collect())
    }

    /// Returns the row groups that DataFusion would read in a byte range of a file of `size` bytes, with their rows and
    /// descriptions. Returns `None` if DataFusion might read parts of a row group only, which needs more than
    /// statistics, or if a row group is large or damaged.
    fn row_groups(&self, metadata: &ParquetMetaData, size: u64, bytes: &FileRange) -> Option<Vec<(u64, Vec<u8>)>> {
        let kept = ProjectedColumns::new(metadata.file_metadata(), &self.used)?;
        let all = metadata.row_groups();
        // DataFusion's rule: a row group belongs to the range with its first page. So the first page must be within the
        // file.
        let first = |group: &RowGroupMetaData| Some(range(group.columns().first()?)?.start);
        if !all.iter().all(|group| first(group).is_some_and(|at| at < size)) {
            return None;
        }
        let mut in_range = RowGroupAccessPlanFilter::new(ParquetAccessPlan::new_all(all.len()));
        in_range.prune_by_range(all, bytes);
        let in_range: Vec<usize> = in_range.row_group_indexes().collect();
        let groups = in_range.iter().map(|at| kept.row_group(&all[*at], size)).collect::<Option<Vec<_>>>()?;
        let mut selected = RowGroupAccessPlanFilter::new(ParquetAccessPlan::new_all(groups.len()));
        if let Some(prunes) = &self.prunes {
            let metrics = ParquetFileMetrics::new(0, "", &ExecutionPlanMetricsSet::new());
            selected.prune_by_statistics(&self.used, &kept.schema, &groups, prunes, &metrics);
        }
        // Floats are not used for pruning.
        let may_prune = |condition: &&Condition| {
            let compares = matches!(condition, Condition::Compare(..));
            compares && !self.used.field(condition.column()).data_type().is_floating()
        };
        let mut described = Vec::new();
        for at in selected.row_group_indexes() {
            let is_fully_selected = selected.is_fully_matched().get(at).is_some_and(|all| *all);
            let finer = |condition: &Condition| is_indexed(all[in_range[at]].column(kept.leaves[condition.column()]));
            if !is_fully_selected && self.conditions.iter().filter(may_prune).any(finer) {
                return None;
            }
            let rows = u64::try_from(groups[at].num_rows()).ok().filter(|rows| *rows <= ROWS_MAX)?;
            if rows > 0 {
                let (columns, conditions) = (self.columns, self.conditions.clone());
                let description = RowGroupReadSpec { metadata: kept.footer(&groups[at])?, size, columns, conditions };
                let description = postcard::to_stdvec(&description).ok()?;
                described.push((rows, Some(description).filter(|bytes| bytes.len() <= READ_SPEC_BYTES_MAX)?));
            }
        }
        Some(described)
    }
}

/// Returns whether a column chunk has a page index or a bloom filter.
fn is_indexed(column: &ColumnChunkMetaData) -> bool {
    column.column_index_offset().is_some() || column.bloom_filter_offset().is_some()
}

impl Condition {
    fn new(part: &Expr, used: &Schema) -> Option<Condition> {
        let named = |expr: &Expr| match expr {
            Expr::Column(column) => used.index_of(&column.name).ok(),
            _ => None,
        };
        // A column cast to a wider type compares with a literal that both types hold like the column itself.
        let column = |expr: &Expr| match expr {
            Expr::Cast(Cast { expr, field }) => {
                named(expr).filter(|column_index| widens(used.field(*column_index).data_type(), field.data_type()))
            }
            other => named(other),
        };
        match part {
            Expr::IsNull(column_index) => Some(Condition::IsNull(column(column_index)?)),
            Expr::IsNotNull(column_index) => Some(Condition::IsNotNull(column(column_index)?)),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (column_index, comparison, literal) = match (column(left), column(right)) {
                    (Some(column_index), None) => (column_index, Comparison::new(*op)?, right),
                    (None, Some(column_index)) => (column_index, Comparison::new(op.swap()?)?, left),
                    _ => return None,
                };
                let Expr::Literal(literal, _) = &**literal else { return None };
                Some(Condition::Compare(
                    column_index,
                    comparison,
                    NumberLiteral::new(literal, used.field(column_index).data_type())?,
                ))
            }
            _ => None,
        }
    }

    fn column(&self) -> usize {
        match self {
            Condition::IsNull(column_index)
            | Condition::IsNotNull(column_index)
            | Condition::Compare(column_index, ..) => *column_index,
        }
    }

    /// Evaluates the condition for each row of its column.
    fn evaluate(&self, column: &ArrayRef) -> Result<BooleanArray, ArrowError> {
        match self {
            Condition::IsNull(_) => is_null(column),
            Condition::IsNotNull(_) => is_not_null(column),
            Condition::Compare(_, comparison, number) => {
                // Floats are compared as in DataFusion: in total order, but with equal zeros.
                let number = Scalar::new(normalize_float_zero(&number.to_scalar(column.data_type())?.into_inner()));
                comparison.evaluate(&normalize_float_zero(column), &number)
            }
        }
    }
}

/// Returns whether type `to` represents each number of type `from` exactly.
fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    match (from, to) {
        (Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32, Int64) | (UInt8 | UInt16 | UInt32, UInt64) => true,
        (Int8 | Int16 | UInt8 | UInt16, Int32) | (UInt8 | UInt16, UInt32) | (Int8 | UInt8, Int16) => true,
        (Float16 | Float32, Float64) | (Float16, Float32) | (UInt8, UInt16) => true,
        _ => from == to,
    }
}

impl Comparison {
    fn new(operator: Operator) -> Option<Comparison> {
        match operator {
            Operator::Eq => Some(Comparison::Equal),
            Operator::NotEq => Some(Comparison::NotEqual),
            Operator::Lt => Some(Comparison::Less),
            Operator::LtEq => Some(Comparison::LessOrEqual),
            Operator::Gt => Some(Comparison::Greater),
            Operator::GtEq => Some(Comparison::GreaterOrEqual),
            _ => None,
        }
    }

    fn evaluate(self, column: &dyn Datum, number: &dyn Datum) -> Result<BooleanArray, ArrowError> {
        use arrow_ord::cmp::{eq, gt, gt_eq, lt, lt_eq, neq};
        match self {
            Comparison::Equal => eq(column, number),
            Comparison::NotEqual => neq(column, number),
            Comparison::Less => lt(column, number),
            Comparison::LessOrEqual => lt_eq(column, number),
            Comparison::Greater => gt(column, number),
            Comparison::GreaterOrEqual => gt_eq(column, number),
        }
    }
}

impl NumberLiteral {
    /// Converts a literal, if it and the column are both integers or both floats and `data_type` represents the
    /// literal.
    fn new(literal: &ScalarValue, data_type: &DataType) -> Option<NumberLiteral> {
        let number = match literal.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(whole))) if literal.data_type().is_integer() && data_type.is_integer() => {
                NumberLiteral::Whole(whole)
            }
            _ => match literal {
                ScalarValue::Float64(Some(float)) if data_type.is_floating() => NumberLiteral::Float(*float),
                _ => return None,
            },
        };
        let same = number.to_scalar(data_type).and_then(|scalar| {
            let (scalar, _) = scalar.get();
            let back = arrow_cast::cast(scalar, &literal.data_type())?;
            Ok(ScalarValue::try_from_array(&back, 0).is_ok_and(|back| back == *literal))
        });
        same.is_ok_and(|same| same).then_some(number)
    }

    /// Converts the number to a value of `data_type`.
    fn to_scalar(self, data_type: &DataType) -> Result<Scalar<ArrayRef>, ArrowError> {
        let number: ArrayRef = match self {
            NumberLiteral::Whole(whole) => Arc::new(Int64Array::from(vec![whole])),
            NumberLiteral::Float(float) => Arc::new(Float64Array::from(vec![float])),
        };
        let options = arrow_cast::CastOptions { safe: false, ..Default::default() };
        Ok(Scalar::new(arrow_cast::cast_with_options(&number, data_type, &options)?))
    }
}

/// Columns of a file that are read.
struct ProjectedColumns {
    /// Indices of the columns among the file's leaf columns.
    leaves: Vec<usize>,
    schema: Arc<SchemaDescriptor>,
    version: i32,
}

impl ProjectedColumns {
    /// Finds the columns of `selected`, in that order. Returns `None` unless each is one leaf column of exactly that
    /// type.
    fn new(metadata: &FileMetaData, selected: &Schema) -> Option<ProjectedColumns> {
        let all = metadata.schema_descr();
        let leaf = |name: &str| (0..all.num_columns()).find(|leaf| all.column(*leaf).path().parts() == [name]);
        let leaves = selected.fields().iter().map(|field| leaf(field.name())).collect::<Option<Vec<_>>>()?;
        let fields = leaves.iter().map(|leaf| all.column(*leaf).self_type_ptr()).collect();
        let root = Type::group_type_builder(all.root_schema().name()).with_fields(fields).build().ok()?;
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(root)));
        let read = int96::schema_of(&schema).ok()?;
        let fits = |(read, selected): (&arrow_schema::FieldRef, &arrow_schema::FieldRef)| {
            read.data_type() == selected.data_type() && (selected.is_nullable() || !read.is_nullable())
        };
        let fit =
            read.fields().len() == selected.fields().len() && read.fields().iter().zip(selected.fields()).all(fits);
        fit.then(|| ProjectedColumns { leaves, schema, version: metadata.version() })
    }

    /// Returns a row group with these columns alone, if they lie within the `size` bytes of the file.
    fn row_group(&self, group: &RowGroupMetaData, size: u64) -> Option<RowGroupMetaData> {
        let column = |(leaf, descriptor): (&usize, &_)| {
            let stored = group.columns().get(*leaf).filter(|stored| stored.file_path().is_none())?;
            range(stored).filter(|range| range.end <= size)?;
            let mut column = ColumnChunkMetaData::builder(Arc::clone(descriptor))
                .set_encodings_mask(*stored.encodings_mask())
                .set_compression_codec(stored.compression_codec())
                .set_num_values(stored.num_values())
                .set_total_compressed_size(stored.compressed_size())
                .set_total_uncompressed_size(stored.uncompressed_size())
                .set_dictionary_page_offset(stored.dictionary_page_offset())
                .set_data_page_offset(stored.data_page_offset());
            if let Some(statistics) = stored.statistics() {
                column = column.set_statistics(statistics.clone());
            }
            column.build().ok()
        };
        let columns = self.leaves.iter().zip(self.schema.columns()).map(column).collect::<Option<Vec<_>>>()?;
        let only = RowGroupMetaData::builder(Arc::clone(&self.schema))
            .set_num_rows(group.num_rows())
            .set_total_byte_size(group.total_byte_size())
            .set_column_metadata(columns);
        only.build().ok()
    }

    /// Encodes the metadata of a file with this row group alone.
    fn footer(&self, group: &RowGroupMetaData) -> Option<Vec<u8>> {
        let mut group = group.clone().into_builder();
        // Statistics are not needed for decoding, and can be long.
        let bare = |column: ColumnChunkMetaData| column.into_builder().clear_statistics().build();
        let columns = group.take_columns().into_iter().map(bare).collect::<Result<_, _>>().ok()?;
        let group = group.set_column_metadata(columns).build().ok()?;
        let file = FileMetaData::new(self.version, group.num_rows(), None, None, Arc::clone(&self.schema), None);
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &ParquetMetaData::new(file, vec![group])).finish().ok()?;
        footer.truncate(footer.len().checked_sub(TAIL_BYTES)?);
        Some(footer)
    }
}

/// Returns the byte range of a column chunk.
fn range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let data = u64::try_from(column.data_page_offset()).ok()?;
    let start = column.dictionary_page_offset().map_or(Some(data), |at| u64::try_from(at).ok())?;
    let end = start.checked_add(u64::try_from(column.compressed_size()).ok()?)?;
    (start..=end).contains(&data).then_some(start..end)
}

/// Decodes a [`RowGroup`] from an untrusted description and an untrusted file. The only system call it needs reads the
/// file at an offset.
pub struct RowGroupReader {
    reader: ParquetRecordBatchReader,
    columns: Vec<usize>,
    conditions: Vec<Condition>,
    /// Rows not yet decoded.
    left: usize,
}

impl RowGroupReader {
    /// Creates a reader of batches of at most `batch_rows` rows. A batch is empty if the conditions exclude all its
    /// rows.
    ///
    /// # Errors
    /// If the description is invalid.
    pub fn new(file: Arc<File>, description: &[u8], batch_rows: usize) -> Result<RowGroupReader, DatasetError> {
        let described = postcard::from_bytes(description).map_err(|e| damaged(e.to_string()))?;
        let RowGroupReadSpec { metadata, size, columns, conditions } = described;
        catch_damage(|| {
            let wrong = |reason: &str| ParquetError::General(reason.to_owned());
            let metadata = Arc::new(ParquetMetaDataReader::decode_metadata(&metadata)?);
            let of_file = metadata.file_metadata();
            let left = usize::try_from(of_file.num_rows()).ok().filter(|rows| *rows as u64 <= ROWS_MAX);
            let left = left.ok_or_else(|| wrong("it has too many rows"))?;
            let available = of_file.schema_descr().num_columns();
            if columns > available || conditions.iter().any(|condition| condition.column() >= available) {
                return Err(wrong("it has fewer columns than are used"));
            }
            let schema = Arc::new(int96::schema_of(of_file.schema_descr())?);
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true).with_schema(schema);
            let metadata = ArrowReaderMetadata::try_new(metadata, options)?;
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(PageReader { file, size }, metadata);
            let reader = builder.with_batch_size(batch_rows).build()?;
            Ok(RowGroupReader { reader, columns: (0..columns).collect(), conditions, left })
        })
    }

    /// Decodes the next batch, before the conditions apply.
    fn decode(&mut self) -> Result<Option<RecordBatch>, DatasetError> {
        let next = catch_damage(|| Ok(self.reader.next().transpose()?))?;
        let rows = next.as_ref().map_or(0, RecordBatch::num_rows);
        if rows > self.left || (next.is_none() && self.left > 0) {
            self.left = 0;
            return Err(damaged("the number of rows in a row group differs from its footer".to_owned()));
        }
        self.left -= rows;
        Ok(next)
    }

    /// Returns the output columns of the rows that satisfy the conditions.
    fn conform(&self, batch: &RecordBatch) -> Result<RecordBatch, ParquetError> {
        let mut selected: Option<BooleanArray> = None;
        for condition in &self.conditions {
            let true_of = condition.evaluate(batch.column(condition.column()))?;
            selected = Some(match selected {
                Some(selected) => and(&selected, &true_of)?,
                None => true_of,
            });
        }
        let columns = batch.project(&self.columns)?;
        match selected.filter(|selected| selected.true_count() < batch.num_rows()) {
            Some(selected) => Ok(filter_record_batch(&columns, &selected)?),
            None => Ok(columns),
        }
    }
}

impl Iterator for RowGroupReader {
    type Item = Result<RecordBatch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let decoded = self.decode().transpose()?;
        Some(decoded.and_then(|batch| catch_damage(|| self.conform(&batch))))
    }
}

/// Reads a file page by page, so that a page is in the cache of the core that decodes it.
struct PageReader {
    file: Arc<File>,
    size: u64,
}

impl Length for PageReader {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for PageReader {
    type T = PageHeaderReader;

    fn get_read(&self, start: u64) -> Result<PageHeaderReader, ParquetError> {
        Ok(PageHeaderReader { file: Arc::clone(&self.file), at: start, read: [0; HEADER_BYTES], taken: 0, filled: 0 })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // A read beyond the file must not allocate.
        if start.checked_add(length as u64).is_none_or(|end| end > self.size) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} of a file of {}", self.size)));
        }
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let at = start + bytes.len() as u64;
            match pread(&*self.file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(ParquetError::EOF(format!("the file ends at {at}, of {} bytes", self.size))),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(ParquetError::External(Box::new(io::Error::from(e)))),
            }
        }
        // The capacity may be larger than requested.
        bytes.truncate(length);
        Ok(bytes.into())
    }
}

/// Reader of a page header.
struct PageHeaderReader {
    file: Arc<File>,
    at: u64,
    read: [u8; HEADER_BYTES],
    taken: usize,
    filled: usize,
}

impl Read for PageHeaderReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, self.file.read_at(&mut self.read, self.at)?);
            self.at += self.filled as u64;
        }
        let bytes = to.len().min(self.filled - self.taken);
        to[..bytes].copy_from_slice(&self.read[self.taken..][..bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}

/// Turns panics of the Parquet reader, which damage can cause, into errors.
fn catch_damage<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DatasetError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|e| damaged(reason_of(&e))),
        Err(panic) => Err(damaged(reason_of_panic(&*panic))),
    }
}

fn damaged(reason: String) -> DatasetError {
    DatasetError::Read { file: "a row group".to_owned(), line: None, reason }
}
