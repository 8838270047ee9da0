//! The formats that are read, known by the file's extension.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::execution::context::SessionState;
use futures::FutureExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _};

use super::files::File;
use super::stream::{reason_of, reason_of_panic};
use crate::DatasetError;

/// Rows of a CSV or JSON file that its types are inferred from.
pub(super) const INFER_ROWS_MAX: usize = 10_000;

/// Bytes that begin an Arrow IPC file. The stream format, which can't be cut
/// into ranges, begins otherwise.
const ARROW_FILE_MAGIC: &[u8] = b"ARROW1";

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
            "gz" | "bz2" | "xz" | "zst" | "zip" => {
                return Err(format!("compressed files (.{extension}) are not read; unpack it, or write Parquet"));
            }
            _ => return Err(format!("its extension names no format that is read; those are {}", Format::EXTENSIONS)),
        })
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
                    .with_schema_infer_max_rec(INFER_ROWS_MAX),
            ),
            Format::JsonLines => Arc::new(JsonFormat::default().with_schema_infer_max_rec(INFER_ROWS_MAX)),
            Format::ArrowFile | Format::ArrowStream => Arc::new(ArrowFormat),
        }
    }
}

/// The format of `file` as its content says, and its schema.
pub(super) async fn inspect(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    file: &File,
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
    let engine = format.engine(state);
    let schema =
        AssertUnwindSafe(engine.infer_schema(state, store, std::slice::from_ref(&file.meta))).catch_unwind().await;
    let schema = schema.map_err(|panic| fault(reason_of_panic(&*panic)))?.map_err(|e| fault(reason_of(&e)))?;
    // Metadata of the writer (pandas, Spark) says nothing about the rows, and would make equal schemas differ.
    let fields: Vec<_> = schema.fields().iter().map(|f| f.as_ref().clone().with_metadata(Default::default())).collect();
    Ok((format, Arc::new(Schema::new(fields))))
}
