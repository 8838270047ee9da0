//! How our Parquet files are written.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::whole::Whole;

/// Rows of a row group: what one file holds in memory while it is written.
pub const GROUP_ROWS: usize = 1 << 20;

/// Rows made at a time.
pub const BATCH_ROWS: usize = 1 << 16;

/// Whether columns begin with a dictionary of their values.
#[derive(Clone, Copy)]
pub enum Dictionary {
    /// Columns with many repeated values.
    On,
    /// Columns of noise, for which building a dictionary is lost time.
    Off,
}

/// A file that was begun.
pub struct ParquetFile {
    writer: ArrowWriter<BufWriter<File>>,
    whole: Whole,
}

impl ParquetFile {
    /// Begins the file `path`.
    pub fn create(path: &Path, schema: SchemaRef, dictionary: Dictionary) -> io::Result<Self> {
        let properties = WriterProperties::builder()
            .set_writer_version(WriterVersion::PARQUET_1_0)
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(matches!(dictionary, Dictionary::On))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            // The default names the library's version, which is no part of the data.
            .set_created_by("sandbar-data".to_owned())
            .build();
        let (whole, file) = Whole::create(path)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let writer = ArrowWriter::try_new(file, schema, Some(properties)).map_err(as_io)?;
        Ok(Self { writer, whole })
    }

    /// Adds rows.
    pub fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.writer.write(batch).map_err(as_io)
    }

    /// Writes the rest. The result waits for its name.
    pub fn finish(self) -> io::Result<Whole> {
        let buffered = self.writer.into_inner().map_err(as_io)?;
        buffered.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(self.whole)
    }
}

/// The system's own error where there is one: a full disk is to be called so.
fn as_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}
