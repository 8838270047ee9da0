//! Inspection of files: formats by content, and schemas.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_schema::{Field, FieldRef, Schema, SchemaRef};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::execution::context::SessionState;
use futures::FutureExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};

use super::dataset_file::DatasetFile;
use super::encryption::is_encrypted;
use super::format::Format;
use super::inspected_file::{InspectedFile, named_twice};
use super::ipc::IpcBytes;
use super::reason::{reason_of, reason_of_panic};
use super::source::{ScanOptions, ScanSource};
use super::text;
use crate::DatasetError;

/// First bytes of an Arrow IPC file. The stream format, which can't be read in ranges, starts otherwise.
const ARROW_FILE_MAGIC: &[u8] = b"ARROW1";

/// Determines the format of `file` by its content, and its schema. Only columns that `source` uses are inspected
/// closely.
pub(super) async fn inspect(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    file: &DatasetFile,
    source: &ScanSource,
    options: &ScanOptions,
) -> Result<InspectedFile, DatasetError> {
    let fault = |reason: String| DatasetError::Read { file: file.name.clone(), line: None, reason };
    if file.format.is_text() {
        return text::inspect(store, file, source, options.morsel_bytes).await;
    }
    if file.meta.size == 0 {
        return Err(fault("the file is empty".to_owned()));
    }
    let mut format = file.format;
    if format == Format::ArrowFile {
        let head = store.get_range(&file.meta.location, 0..file.meta.size.min(8)).await;
        if !head.map_err(|e| fault(reason_of(&e)))?.starts_with(ARROW_FILE_MAGIC) {
            format = Format::ArrowStream;
        }
    }
    let encrypted = || is_encrypted(store.as_ref(), &file.meta.location, file.meta.size);
    let schema = AssertUnwindSafe(schema_of(state, store, file, format)).catch_unwind().await;
    let schema = schema.unwrap_or_else(|panic| Err(reason_of_panic(&*panic)));
    // A file with encrypted columns may have a plain footer. Remote files are not read again to check.
    let is_suspect = schema.is_err() || file.is_local;
    if format == Format::Parquet && is_suspect && encrypted().await {
        return Err(fault("it is encrypted, and encrypted files are not supported; decrypt it first".to_owned()));
    }
    let FooterFacts { schema, has_rows, rows, twice } = schema.map_err(fault)?;
    // Metadata of the writer (pandas, Spark) does not describe the rows, and would make equal schemas differ.
    let plain = |field: &FieldRef| field.as_ref().clone().with_metadata(Default::default());
    let fields: Vec<Field> = schema.fields().iter().map(plain).collect();
    let schema = Arc::new(Schema::new(fields));
    let problems = twice.into_iter().map(|name| (name.clone(), (None, named_twice(&name)))).collect();
    Ok(InspectedFile { format, schema, problems, evidence: HashMap::new(), has_rows, rows, text: None })
}

/// Checks the number of rows in a Parquet footer, by which DataFusion would leave out rows of a damaged file.
///
/// # Errors
/// Fails if the row groups have another number of rows.
fn check_footer(metadata: &ParquetMetaData) -> Result<(), String> {
    let stated = metadata.file_metadata().num_rows();
    let rows = metadata.row_groups().iter().fold(0i64, |rows, group| rows.saturating_add(group.num_rows()));
    match rows == stated {
        true => Ok(()),
        false => Err(format!("it is damaged: it states {stated} rows, and its row groups {rows}")),
    }
}

/// Properties from the metadata of a Parquet or Arrow file.
struct FooterFacts {
    schema: SchemaRef,
    has_rows: bool,
    /// Number of rows, if the file states it.
    rows: Option<u64>,
    /// Column names that occur once in the schema but several times in the file.
    twice: Vec<String>,
}

async fn schema_of(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    file: &DatasetFile,
    format: Format,
) -> Result<FooterFacts, String> {
    let damaged = |reason: String| format!("it is damaged, or not an Arrow file: {reason}");
    let bytes = IpcBytes { store: store.as_ref(), location: &file.meta.location, size: file.meta.size };
    let (mut has_rows, mut rows) = (true, None);
    match format {
        // DataFusion would read an invalid file as a stream, and interpret its first bytes as a length.
        Format::ArrowFile => {
            let (schema, has_rows) = bytes.schema_of_file().await.map_err(damaged)?;
            return Ok(FooterFacts { schema, has_rows, rows: None, twice: Vec::new() });
        }
        Format::ArrowStream => has_rows = bytes.check_stream().await.map_err(damaged)?,
        _ => {}
    }
    let schema = format.engine(state).infer_schema(state, store, std::slice::from_ref(&file.meta)).await;
    let schema = schema.map_err(|e| reason_of(&e))?;
    let mut twice = Vec::new();
    if format == Format::Parquet {
        // The footer was read above and is cached.
        let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
        let metadata = DFParquetMetadata::new(store.as_ref(), &file.meta)
            .with_file_metadata_cache(Some(cache))
            .with_page_index_policy(Some(PageIndexPolicy::Skip));
        let metadata = metadata.fetch_metadata().await.map_err(|e| reason_of(&e))?;
        check_footer(&metadata)?;
        has_rows = metadata.row_groups().iter().any(|group| group.num_rows() != 0);
        rows = u64::try_from(metadata.file_metadata().num_rows()).ok();
        // DataFusion merges columns of one name.
        let mut seen = HashSet::new();
        let columns = metadata.file_metadata().schema_descr().root_schema().get_fields();
        twice.extend(columns.iter().map(|column| column.name()).filter(|name| !seen.insert(*name)).map(str::to_owned));
    }
    Ok(FooterFacts { schema, has_rows, rows, twice })
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::{FileMetaData, ParquetMetaDataReader};

    use super::*;

    /// Random damage found footers that DataFusion reads as files without rows.
    #[test]
    fn footers_that_hide_rows_are_damaged() {
        let rows = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let rows = RecordBatch::try_from_iter([("x", rows as _)]).expect("rows");
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), None).expect("a writer");
        writer.write(&rows).expect("written");
        writer.close().expect("written");
        let mut reader = ParquetMetaDataReader::new();
        reader.try_parse(&bytes::Bytes::from(bytes)).expect("a footer");
        let metadata = reader.finish().expect("a footer");
        assert_eq!(check_footer(&metadata), Ok(()));
        let schema = metadata.file_metadata().schema_descr_ptr();
        let other = FileMetaData::new(1, 0, None, None, schema, None);
        let other = ParquetMetaData::new(other, metadata.row_groups().to_vec());
        let error = check_footer(&other).expect_err("no rows");
        assert_eq!(error, "it is damaged: it states 0 rows, and its row groups 3");
    }
}
