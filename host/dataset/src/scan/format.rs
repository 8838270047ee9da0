//! Input formats, by extension.

use std::sync::Arc;

use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::execution::context::SessionState;

use super::text::Compression;

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
    pub(super) fn from_name(name: &str) -> Result<(Format, Option<Compression>), String> {
        let base = name.rsplit(['/', '\\']).next().unwrap_or(name);
        let (rest, extension) = split(base);
        let unknown = || format!("its extension is not supported; supported extensions are {}", Format::EXTENSIONS);
        if ARCHIVES.contains(&extension.as_str()) {
            return Err(format!("archives (.{extension}) are not supported; unpack it"));
        }
        let Some(compression) = Compression::from_extension(&extension) else {
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
        let packed = ARCHIVES.contains(&extension.as_str()) || Compression::from_extension(&extension).is_some();
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
