//! Input formats: recognition by extension and content, and the schemas of files.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_schema::{Field, FieldRef, Schema, SchemaRef};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::execution::context::SessionState;
use futures::FutureExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parquet::file::metadata::PageIndexPolicy;

use super::encryption::is_encrypted;
use super::files::DatasetFile;
use super::inference::Evidence;
use super::ipc::IpcBytes;
use super::stream::{reason_of, reason_of_panic};
use super::text::{Compression, TextFile};
use super::{ScanOptions, ScanSource, text};
use crate::DatasetError;

/// First bytes of an Arrow IPC file. The stream format, which can't be read in ranges, starts otherwise.
const ARROW_FILE_MAGIC: &[u8] = b"ARROW1";

/// Extensions of archives, which are not read.
const ARCHIVES: [&str; 3] = ["zip", "tar", "7z"];

/// Format of an input file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Format {
    Parquet,
    /// Values separated by this byte, unless the job names another delimiter.
    Csv(u8),
    JsonLines,
    /// Arrow IPC file format.
    ArrowFile,
    /// Arrow IPC stream format.
    ArrowStream,
}

impl Format {
    /// Known extensions, for messages.
    pub(super) const EXTENSIONS: &str = ".parquet, .arrow, .feather, .ipc, and .csv, .tsv, .json, .jsonl, .ndjson, optionally followed by .gz, .zst, .bz2 or .xz";

    /// Returns format and compression of a file by its name, or the reason why the name is not supported.
    pub(super) fn of(name: &str) -> Result<(Format, Option<Compression>), String> {
        let base = name.rsplit(['/', '\\']).next().unwrap_or(name);
        let (rest, extension) = split(base);
        let unknown = || format!("its extension is not supported; supported extensions are {}", Format::EXTENSIONS);
        if ARCHIVES.contains(&extension.as_str()) {
            return Err(format!("archives (.{extension}) are not supported; unpack it"));
        }
        let Some(compression) = Compression::of(&extension) else {
            return Format::named(&extension).map(|format| (format, None)).ok_or_else(unknown);
        };
        match Format::named(&split(rest).1) {
            Some(format) if format.is_text() => Ok((format, Some(compression))),
            Some(_) => Err(format!("only text formats can be compressed as a whole (.{extension}); decompress it")),
            None => Err(unknown()),
        }
    }

    fn named(extension: &str) -> Option<Format> {
        match extension {
            "parquet" => Some(Format::Parquet),
            "csv" => Some(Format::Csv(b',')),
            "tsv" => Some(Format::Csv(b'\t')),
            "json" | "jsonl" | "ndjson" => Some(Format::JsonLines),
            "arrow" | "feather" | "ipc" => Some(Format::ArrowFile),
            _ => None,
        }
    }

    /// Returns whether a file of this name, found in a folder, belongs to the dataset. Archives of data files do: they
    /// can't be read, and must not be skipped silently.
    pub(super) fn is_data(name: &str) -> bool {
        let base = name.rsplit(['/', '\\']).next().unwrap_or(name);
        let (rest, extension) = split(base);
        let packed = ARCHIVES.contains(&extension.as_str()) || Compression::of(&extension).is_some();
        Format::named(&if packed { split(rest).1 } else { extension }).is_some()
    }

    /// Returns whether byte ranges of a file can be read independently.
    pub(super) fn splits(self) -> bool {
        self != Format::ArrowStream
    }

    /// Returns whether columns are matched by position instead of by name.
    pub(super) fn is_positional(self) -> bool {
        matches!(self, Format::ArrowFile | Format::ArrowStream)
    }

    /// Returns whether types are inferred from text rather than stored in the file.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Format::Csv(_) | Format::JsonLines)
    }

    /// Returns DataFusion's reader of a format other than text.
    pub(super) fn engine(self, state: &SessionState) -> Arc<dyn FileFormat> {
        match self {
            Format::Parquet => {
                let options = state.table_options().parquet.clone();
                Arc::new(ParquetFormat::default().with_options(options))
            }
            _ => Arc::new(ArrowFormat),
        }
    }
}

/// Splits a name into its stem and its extension in lower case.
fn split(name: &str) -> (&str, String) {
    let (rest, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    (rest, extension.to_ascii_lowercase())
}

/// Schema and other properties of a file, known before its rows are read.
#[derive(Debug)]
pub(super) struct InspectedFile {
    /// Format, by content.
    pub(super) format: Format,
    pub(super) schema: SchemaRef,
    /// Unusable columns, each with the reason and, if known, the line that shows it.
    pub(super) problems: HashMap<String, (Option<u64>, String)>,
    /// Observed values of text columns whose types are inferred.
    pub(super) evidence: HashMap<String, Evidence>,
    /// Whether the file has rows. Types of files without rows are ignored.
    pub(super) has_rows: bool,
    /// Number of rows, if the file states it.
    pub(super) rows: Option<u64>,
    /// Properties of a text file.
    pub(super) text: Option<Arc<TextFile>>,
}

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

/// Returns the message for a file with two columns of one name.
pub(super) fn named_twice(name: &str) -> String {
    format!("two of its columns are named `{name}`")
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
        has_rows = metadata.row_groups().iter().any(|group| group.num_rows() != 0);
        rows = u64::try_from(metadata.file_metadata().num_rows()).ok();
        // DataFusion merges columns of one name.
        let mut seen = HashSet::new();
        let columns = metadata.file_metadata().schema_descr().root_schema().get_fields();
        twice.extend(columns.iter().map(|column| column.name()).filter(|name| !seen.insert(*name)).map(str::to_owned));
    }
    Ok(FooterFacts { schema, has_rows, rows, twice })
}
