//! Output of rows to one file, in any of the formats.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter as ArrowFileWriter;
use arrow_json::writer::{LineDelimited, Writer as JsonWriter};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use serde::{Deserialize, Serialize};

use super::csv::{self, CsvWriter};
use super::json;
use super::parquet::{GROUP_BYTES_MAX, cast_to_schema, io_error, parquet_schema, properties};
use crate::DatasetError;
use crate::scan::plain_type;

/// File format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputFormat {
    /// Parquet, compressed with zstd.
    Parquet,
    /// CSV with a header line. Text is quoted where necessary; a null is an empty cell.
    Csv,
    /// CSV with tabs as delimiters.
    Tsv,
    /// JSON lines: one object per row.
    Json,
    /// Arrow IPC file.
    Arrow,
}

impl OutputFormat {
    /// File extensions of all formats, for messages.
    pub const EXTENSIONS: &str = ".parquet, .csv, .tsv, .json, .jsonl, .ndjson, .arrow, .feather, .ipc";

    /// Returns the format that the extension of `path` names.
    pub fn from_path(path: &Path) -> Option<OutputFormat> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "parquet" => OutputFormat::Parquet,
            "csv" => OutputFormat::Csv,
            "tsv" => OutputFormat::Tsv,
            "json" | "jsonl" | "ndjson" => OutputFormat::Json,
            "arrow" | "feather" | "ipc" => OutputFormat::Arrow,
            _ => return None,
        })
    }

    /// Returns the extension of files of this format.
    pub(super) fn extension(self) -> &'static str {
        match self {
            OutputFormat::Parquet => "parquet",
            OutputFormat::Csv => "csv",
            OutputFormat::Tsv => "tsv",
            OutputFormat::Json => "jsonl",
            OutputFormat::Arrow => "arrow",
        }
    }

    /// Returns the schema of a file of rows of `schema`.
    ///
    /// # Errors
    /// If the format can't represent a column; the error names it.
    pub(super) fn schema(self, schema: &Schema) -> Result<SchemaRef, DatasetError> {
        if let (OutputFormat::Csv | OutputFormat::Tsv, Some(column)) = (self, csv::unsupported_column(schema)) {
            let data_type = schema.field_with_name(column).map_or(DataType::Null, |field| field.data_type().clone());
            return Err(DatasetError::ColumnType {
                role: "column".to_owned(),
                column: column.to_owned(),
                data_type: data_type.to_string(),
                reason: "which CSV can't represent; write Parquet, JSON lines or Arrow, or drop it in a transform"
                    .to_owned(),
            });
        }
        let plain = |field: &Arc<Field>| {
            let data_type = plain_type(field.data_type());
            Arc::new(field.as_ref().clone().with_data_type(data_type))
        };
        let plain = Arc::new(Schema::new(schema.fields().iter().map(plain).collect::<Vec<_>>()));
        Ok(if self == OutputFormat::Parquet { parquet_schema(plain) } else { plain })
    }
}

/// Writer of one file of rows.
pub(super) struct FileWriter {
    inner: FormatWriter,
    schema: SchemaRef,
}

enum FormatWriter {
    Parquet(ArrowWriter<File>),
    Csv(CsvWriter<BufWriter<File>>),
    Json(JsonWriter<BufWriter<File>, LineDelimited>),
    Arrow(ArrowFileWriter<BufWriter<File>>),
}

impl FileWriter {
    /// Starts writing `file`, whose `schema` comes from [`OutputFormat::schema`].
    pub(super) fn new(file: File, format: OutputFormat, schema: SchemaRef) -> io::Result<FileWriter> {
        let inner = match format {
            OutputFormat::Parquet => {
                let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties(Vec::new())));
                FormatWriter::Parquet(writer.map_err(io_error)?)
            }
            OutputFormat::Csv => FormatWriter::Csv(CsvWriter::new(BufWriter::new(file), b',', &schema)?),
            OutputFormat::Tsv => FormatWriter::Csv(CsvWriter::new(BufWriter::new(file), b'\t', &schema)?),
            OutputFormat::Json => FormatWriter::Json(json::writer(BufWriter::new(file))),
            OutputFormat::Arrow => {
                FormatWriter::Arrow(ArrowFileWriter::try_new(BufWriter::new(file), &schema).map_err(arrow_error)?)
            }
        };
        Ok(FileWriter { inner, schema })
    }

    /// Appends rows.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let batch = cast_to_schema(batch, &self.schema).map_err(arrow_error)?;
        match &mut self.inner {
            FormatWriter::Parquet(writer) => writer.write(&batch).map_err(io_error)?,
            FormatWriter::Csv(writer) => writer.write(&batch)?,
            FormatWriter::Json(writer) => writer.write(&batch).map_err(arrow_error)?,
            FormatWriter::Arrow(writer) => writer.write(&batch).map_err(arrow_error)?,
        }
        if self.held_bytes() > GROUP_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// Returns the bytes of the unfinished row group, which are in memory.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.inner {
            FormatWriter::Parquet(writer) => writer.in_progress_size(),
            _ => 0,
        }
    }

    /// Ends the current row group.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.inner {
            FormatWriter::Parquet(writer) => writer.flush().map_err(io_error),
            _ => Ok(()),
        }
    }

    /// Writes the rest. Returns the file and its length in bytes.
    pub(super) fn finish(self) -> io::Result<(File, u64)> {
        let buffered = |buffer: BufWriter<File>| buffer.into_inner().map_err(io::IntoInnerError::into_error);
        let file = match self.inner {
            FormatWriter::Parquet(writer) => writer.into_inner().map_err(io_error)?,
            FormatWriter::Csv(writer) => buffered(writer.into_inner())?,
            FormatWriter::Json(mut writer) => {
                writer.finish().map_err(arrow_error)?;
                buffered(writer.into_inner())?
            }
            FormatWriter::Arrow(mut writer) => {
                writer.finish().map_err(arrow_error)?;
                buffered(writer.into_inner().map_err(arrow_error)?)?
            }
        };
        (&file).flush()?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }
}

/// Returns the operating system's error if it is the cause, so that e.g. a full disk is reported as such.
fn arrow_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, source) => source,
        ArrowError::ExternalError(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}
