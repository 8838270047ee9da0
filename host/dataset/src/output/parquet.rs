//! Atomic output of Parquet files.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use tempfile::TempPath;

use super::temporary::{folder_of, temporary_file};
use crate::DatasetError;

/// Maximum rows of a row group.
const GROUP_ROWS_MAX: usize = 1 << 20;

/// Approximate maximum bytes of an unfinished row group, which a file of wide rows holds in memory.
pub(super) const GROUP_BYTES_MAX: usize = 256 << 20;

/// Metadata key under which parquet-rs stores the Arrow schema.
const ARROW_SCHEMA: &str = "ARROW:schema";

/// Key and value in the footer of a Parquet file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataEntry {
    /// Key of the entry.
    pub key: String,
    /// Its value; empty if the file has none.
    pub value: String,
}

/// Parquet file that is being written. It has a temporary name in the same folder until it is finished, and is removed
/// when dropped before.
pub struct ParquetOutput {
    writer: ArrowWriter<File>,
    schema: SchemaRef,
    temporary: TempPath,
    path: PathBuf,
}

impl ParquetOutput {
    /// Starts writing the file `path`, and creates its parent folders. `metadata` is written to the footer.
    pub fn create(
        path: impl Into<PathBuf>,
        schema: SchemaRef,
        metadata: Vec<MetadataEntry>,
    ) -> Result<ParquetOutput, DatasetError> {
        let path = path.into();
        let fail = |source| DatasetError::write(&path, source);
        check_replaceable(&path).map_err(fail)?;
        let folder = folder_of(&path);
        fs::create_dir_all(folder).map_err(fail)?;
        let (file, temporary) = temporary_file(folder).map_err(fail)?;
        let metadata = metadata.into_iter().map(|entry| KeyValue::new(entry.key, entry.value)).collect();
        let schema = parquet_schema(schema);
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties(metadata)));
        let writer = writer.map_err(|e| fail(io_error(e)))?;
        Ok(ParquetOutput { writer, schema, temporary, path })
    }

    /// Checks that a file can be created at `path`. Creates no folders and leaves no file.
    pub fn probe(path: &Path) -> Result<(), DatasetError> {
        let fail = |source| DatasetError::write(path, source);
        check_replaceable(path).map_err(fail)?;
        let folder = path.ancestors().skip(1).find(|folder| folder.exists());
        temporary_file(folder.unwrap_or(Path::new("."))).map(drop).map_err(fail)
    }

    /// Appends rows.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let batch = cast_to_schema(batch, &self.schema).map_err(|e| self.fail(io::Error::other(e)))?;
        let mut written = self.writer.write(&batch);
        if written.is_ok() && self.writer.in_progress_size() > GROUP_BYTES_MAX {
            written = self.writer.flush();
        }
        written.map_err(|e| self.fail(io_error(e)))
    }

    /// Writes the rest and renames the file to its final name, replacing an older file. Returns the file's length in
    /// bytes.
    pub fn finish(mut self) -> Result<u64, DatasetError> {
        self.writer.finish().map_err(|e| self.fail(io_error(e)))?;
        let length = self.writer.inner().metadata().map_err(|e| self.fail(e))?.len();
        // The file stays open, and so locked, until it is renamed.
        let ParquetOutput { writer: _file, temporary, path, .. } = self;
        temporary.persist(&path).map_err(|e| DatasetError::write(&path, e.error))?;
        Ok(length)
    }

    fn fail(&self, source: io::Error) -> DatasetError {
        DatasetError::write(&self.path, source)
    }
}

/// Reads the key-value metadata in the footer of a Parquet file, without the entry of parquet-rs.
pub fn read_metadata(path: impl AsRef<Path>) -> Result<Vec<MetadataEntry>, DatasetError> {
    let path = path.as_ref();
    let fail = |reason: String| DatasetError::Read { file: path.display().to_string(), line: None, reason };
    let file = File::open(path).map_err(|e| fail(e.to_string()))?;
    let metadata =
        ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|e| fail(io_error(e).to_string()))?;
    let pairs = metadata.metadata().file_metadata().key_value_metadata().cloned().unwrap_or_default();
    let own = |pair: &KeyValue| pair.key != ARROW_SCHEMA;
    Ok(pairs
        .into_iter()
        .filter(own)
        .map(|KeyValue { key, value }| MetadataEntry { key, value: value.unwrap_or_default() })
        .collect())
}

/// Checks that `path` does not exist or is a regular file, which may be replaced.
pub(super) fn check_replaceable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(existing) if existing.is_dir() => Err(io::Error::other("it is a folder; name a file in it")),
        Ok(existing) if !existing.is_file() => Err(io::Error::other("it is not a regular file; choose another path")),
        _ => Ok(()),
    }
}

/// Returns the schema of a Parquet file. Parquet has no unit of seconds: other readers would see plain integers.
pub(super) fn parquet_schema(schema: SchemaRef) -> SchemaRef {
    let field = |field: &FieldRef| match field.data_type() {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            let millis = DataType::Timestamp(TimeUnit::Millisecond, zone.clone());
            Arc::new(field.as_ref().clone().with_data_type(millis))
        }
        DataType::Time32(TimeUnit::Second) => {
            Arc::new(field.as_ref().clone().with_data_type(DataType::Time32(TimeUnit::Millisecond)))
        }
        _ => field.clone(),
    };
    let fields: Fields = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

pub(super) fn cast_to_schema(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let is_same = |(column, field): (&ArrayRef, &FieldRef)| column.data_type() == field.data_type();
    if batch.columns().iter().zip(schema.fields()).all(is_same) {
        return Ok(batch.clone());
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast_with_options(column, field.data_type(), &options));
    RecordBatch::try_new(schema.clone(), columns.collect::<Result<_, _>>()?)
}

pub(super) fn properties(metadata: Vec<KeyValue>) -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(GROUP_ROWS_MAX))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(metadata))
        // The default names the library's version, which would change the bytes of equal outputs.
        .set_created_by("sandbar".to_owned())
        .build()
}

/// Returns the operating system's error if it is the cause, so that e.g. a full disk is reported as such.
pub(super) fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int32Array, Time32SecondArray, TimestampSecondArray};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn leftovers_of_a_killed_writer_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let rows = RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![9])) as ArrayRef)]).unwrap();
        let create = |name: &str| ParquetOutput::create(folder.path().join(name), rows.schema(), Vec::new()).unwrap();
        let alive = create("alive.parquet");
        fs::write(folder.path().join(".sandbar-left"), "PAR1").unwrap();
        fs::create_dir(folder.path().join(".sandbar-other")).unwrap();
        fs::create_dir(folder.path().join(".sandbar-folder-left")).unwrap();
        fs::write(folder.path().join(".sandbar-folder-left/part"), "PAR1").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join(".sandbar-link")).unwrap();
        fs::write(folder.path().join("other"), "").unwrap();
        create("next.parquet").finish().unwrap();
        alive.finish().unwrap();
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        assert_eq!(names, [".sandbar-link", ".sandbar-other", "alive.parquet", "next.parquet", "other"]);
    }

    #[test]
    fn other_readers_see_times() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("times.parquet");
        let rows = RecordBatch::try_from_iter([
            ("at", Arc::new(TimestampSecondArray::from(vec![5]).with_timezone("UTC")) as ArrayRef),
            ("time", Arc::new(Time32SecondArray::from(vec![7]))),
            ("number", Arc::new(Int32Array::from(vec![9]))),
        ]);
        let rows = rows.unwrap();
        let mut output = ParquetOutput::create(&path, rows.schema(), Vec::new()).unwrap();
        output.write(&rows).unwrap();
        output.finish().unwrap();
        let plain = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(File::open(&path).unwrap(), plain).unwrap();
        let read = reader.build().unwrap().next().unwrap().unwrap();
        let texts = |column: usize| arrow_cast::display::array_value_to_string(read.column(column), 0).unwrap();
        assert_eq!([texts(0), texts(1), texts(2)], ["1970-01-01T00:00:05Z", "00:00:07", "9"]);
    }
}
