//! Writing of Parquet files.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::atomic_file::AtomicFile;

/// Rows of a row group, which a file keeps in memory while it is written.
pub const GROUP_ROWS: usize = 1 << 20;

/// Rows generated at a time.
pub const BATCH_ROWS: usize = 1 << 16;

/// Dictionary encoding of columns.
#[derive(Clone, Copy)]
pub enum Dictionary {
    /// For columns with many repeated values.
    On,
    /// For columns of noise, where a dictionary only costs time.
    Off,
}

/// A Parquet file that is being written.
pub struct ParquetFile {
    writer: ArrowWriter<BufWriter<File>>,
    target: AtomicFile,
}

impl ParquetFile {
    /// Creates the file `path` under a temporary name.
    pub fn create(path: &Path, schema: SchemaRef, dictionary: Dictionary) -> io::Result<Self> {
        let properties = WriterProperties::builder()
            .set_writer_version(WriterVersion::PARQUET_1_0)
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(matches!(dictionary, Dictionary::On))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            // The default contains the library's version, which would change the bytes.
            .set_created_by("sandbar-data".to_owned())
            .build();
        let (target, file) = AtomicFile::create(path)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let writer = ArrowWriter::try_new(file, schema, Some(properties)).map_err(as_io)?;
        Ok(Self { writer, target })
    }

    /// Appends rows.
    pub fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.writer.write(batch).map_err(as_io)
    }

    /// Writes the footer. Committing the result gives the file its name.
    pub fn finish(self) -> io::Result<AtomicFile> {
        let buffered = self.writer.into_inner().map_err(as_io)?;
        buffered.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(self.target)
    }
}

/// Returns the underlying I/O error, if any, so that messages name causes such as a full disk.
fn as_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}
