//! The formats that are read, known by the file's extension.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_schema::{Field, FieldRef, Schema, SchemaRef};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::execution::context::SessionState;
use futures::FutureExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _};

use super::Source;
use super::files::File;
use super::ipc::IpcBytes;
use super::lines::CsvBytes;
use super::stream::{reason_of, reason_of_panic};
use crate::DatasetError;

/// Rows of a CSV file that its types are inferred from, where these have a value of each column that is used. A value
/// further on that is of another type is an error there; in JSON it would be cut to the type, so all of a file is read.
const INFER_ROWS_MAX: usize = 10_000;

/// Bytes of a JSON file that are looked at for what it begins with.
const JSON_HEAD_BYTES: u64 = 1024;

/// Bytes that begin an Arrow IPC file. The stream format, which can't be cut
/// into ranges, begins otherwise.
const ARROW_FILE_MAGIC: &[u8] = b"ARROW1";

/// Extensions of compressed files.
const PACKED: [&str; 5] = ["gz", "bz2", "xz", "zst", "zip"];

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Format {
    Parquet,
    /// Values separated by this byte, the first line naming the columns.
    Csv(u8),
    JsonLines,
    /// Arrow's IPC file format.
    ArrowFile,
    /// Arrow's IPC stream format.
    ArrowStream,
}

impl Format {
    /// The extensions that are known, for messages.
    pub(super) const EXTENSIONS: &str = ".parquet, .csv, .tsv, .json, .jsonl, .ndjson, .arrow, .feather, .ipc";

    /// The format of a file of this name, or what is wrong with the name.
    pub(super) fn of(name: &str) -> Result<Format, String> {
        let base = name.rsplit(['/', '\\']).next().unwrap_or(name);
        let extension = base.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
        Ok(match extension.as_str() {
            "parquet" => Format::Parquet,
            "csv" => Format::Csv(b','),
            "tsv" => Format::Csv(b'\t'),
            "json" | "jsonl" | "ndjson" => Format::JsonLines,
            "arrow" | "feather" | "ipc" => Format::ArrowFile,
            packed if PACKED.contains(&packed) => {
                return Err(format!("compressed files (.{extension}) are not read; unpack it, or write Parquet"));
            }
            _ => return Err(format!("its extension names no format that is read; those are {}", Format::EXTENSIONS)),
        })
    }

    /// Whether a file of this name in a folder is one of the dataset: one that would be but for its compression can't be
    /// read, and is not to be missed in silence.
    pub(super) fn is_data(name: &str) -> bool {
        let unpacked = name.rsplit_once('.').filter(|(_, end)| PACKED.contains(&end.to_ascii_lowercase().as_str()));
        Format::of(unpacked.map_or(name, |(name, _)| name)).is_ok()
    }

    /// Whether a byte range of a file of this format can be read alone.
    pub(super) fn splits(self) -> bool {
        self != Format::ArrowStream
    }

    /// Whether columns are found by their position, not by their name.
    pub(super) fn is_positional(self) -> bool {
        matches!(self, Format::Csv(_) | Format::ArrowFile | Format::ArrowStream)
    }

    /// Whether types are inferred from text rather than written in the file.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Format::Csv(_) | Format::JsonLines)
    }

    /// DataFusion's reader of the format.
    pub(super) fn engine(self, state: &SessionState) -> Arc<dyn FileFormat> {
        self.engine_inferring(state, INFER_ROWS_MAX)
    }

    /// The same, with types of CSV from so many rows.
    fn engine_inferring(self, state: &SessionState, rows_max: usize) -> Arc<dyn FileFormat> {
        match self {
            Format::Parquet => {
                let options = state.table_options().parquet.clone();
                Arc::new(ParquetFormat::default().with_options(options))
            }
            Format::Csv(delimiter) => Arc::new(
                CsvFormat::default()
                    .with_has_header(true)
                    .with_delimiter(delimiter)
                    .with_newlines_in_values(false)
                    .with_schema_infer_max_rec(rows_max),
            ),
            Format::JsonLines => Arc::new(JsonFormat::default().with_schema_infer_max_rec(usize::MAX)),
            Format::ArrowFile | Format::ArrowStream => Arc::new(ArrowFormat),
        }
    }
}

/// The format of `file` as its content says, and its schema. `source` says which columns are used.
pub(super) async fn inspect(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    file: &File,
    source: &Source,
) -> Result<(Format, SchemaRef), DatasetError> {
    let fault = |reason: String| DatasetError::Read { file: file.name.clone(), line: None, reason };
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
    if format == Format::JsonLines {
        let head = store.get_range(&file.meta.location, 0..file.meta.size.min(JSON_HEAD_BYTES)).await;
        let head = head.map_err(|e| fault(reason_of(&e)))?;
        if head.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Err(fault("it holds an array; write one object a line, without brackets and commas".to_owned()));
        }
    }
    let infer = async |rows_max| {
        let schema = AssertUnwindSafe(schema_of(state, store, file, format, rows_max)).catch_unwind().await;
        schema.map_err(|panic| fault(reason_of_panic(&*panic)))?.map_err(fault)
    };
    let schema = match infer(INFER_ROWS_MAX).await {
        Ok(schema) => schema,
        Err(error) => return Err(ragged(store, file).await.unwrap_or(error)),
    };
    // Metadata of the writer (pandas, Spark) says nothing about the rows, and would make equal schemas differ.
    let plain = |field: &FieldRef| field.as_ref().clone().with_metadata(Default::default());
    let mut fields: Vec<_> = schema.fields().iter().map(plain).collect();
    let is_unknown = |field: &Field| field.data_type().is_null() && source.may_use(field.name());
    if matches!(format, Format::Csv(_)) && fields.iter().any(is_unknown) {
        // Read as null, the column would lose the values that come later.
        let whole = infer(usize::MAX).await?;
        let found = fields.iter_mut().zip(whole.fields()).filter(|(field, _)| field.data_type().is_null());
        found.for_each(|(field, whole)| field.set_data_type(whole.data_type().clone()));
    }
    Ok((format, Arc::new(Schema::new(fields))))
}

/// The schema of a file, of CSV from so many rows.
async fn schema_of(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    file: &File,
    format: Format,
    rows_max: usize,
) -> Result<SchemaRef, String> {
    let damaged = |reason: String| format!("it is damaged, or no Arrow file: {reason}");
    let bytes = IpcBytes { store: store.as_ref(), location: &file.meta.location, size: file.meta.size };
    match format {
        // The engine would try to read it as a stream if it could not as a file, and take the first bytes for a length.
        Format::ArrowFile => return bytes.schema_of_file().await.map_err(damaged),
        Format::ArrowStream => bytes.check_stream().await.map_err(damaged)?,
        _ => {}
    }
    let engine = format.engine_inferring(state, rows_max);
    let schema = engine.infer_schema(state, store, std::slice::from_ref(&file.meta)).await;
    schema.map_err(|e| reason_of(&e))
}

/// What is wrong with a CSV file whose lines have not the same number of values: the reader that infers types counts
/// lines from somewhere.
async fn ragged(store: &Arc<dyn ObjectStore>, file: &File) -> Option<DatasetError> {
    let Format::Csv(delimiter) = file.format else { return None };
    let csv = CsvBytes { store: store.as_ref(), location: &file.meta.location, size: file.meta.size, delimiter };
    let (line, reason) = csv.ragged().await?;
    Some(DatasetError::Read { file: file.name.clone(), line: Some(line), reason })
}
