//! Output of rows to a file, or to a folder partitioned by column values.

use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tempfile::TempPath;

use super::file::{FileWriter, OutputFormat};
use super::folders::{FolderLayout, FolderOutput, check_empty_folder};
use super::parquet::check_replaceable;
use super::temporary::{folder_of, temporary_file};
use crate::DatasetError;

/// Destination of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowTarget {
    /// File, or root folder of a partitioned output.
    pub path: PathBuf,
    /// Format of the files.
    pub format: OutputFormat,
    /// Partition columns, whose values name folders (`year=2019/month=5`). Without any, all rows go to one file.
    pub partition_by: Vec<String>,
}

/// Size of a finished output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteSummary {
    /// Number of rows.
    pub rows: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Output that is being written. It has a temporary name beside its final one until it is finished, and is removed when
/// dropped before.
pub struct RowOutput {
    inner: RowSink,
    path: PathBuf,
    rows: u64,
}

enum RowSink {
    File(Box<FileWriter>, TempPath),
    FolderOutput(FolderOutput),
}

impl RowTarget {
    /// Checks that the output can be created. Creates no folders and leaves no file.
    ///
    /// # Errors
    /// If it can't, or if the path exists and is not replaceable: a non-empty folder, or no regular file.
    pub fn probe(&self) -> Result<(), DatasetError> {
        let fail = |source| DatasetError::write(&self.path, source);
        if self.partition_by.is_empty() {
            check_replaceable(&self.path).map_err(fail)?;
        } else {
            check_empty_folder(&self.path).map_err(fail)?;
        }
        let folder = self.path.ancestors().skip(1).find(|folder| folder.exists());
        temporary_file(folder.unwrap_or(Path::new("."))).map(drop).map_err(fail)
    }

    /// Checks that rows of `schema` can be written: the format represents all columns, and the partition columns exist.
    ///
    /// # Errors
    /// If the format can't represent a column, or a partition column is missing or has an unsupported type.
    pub fn check(&self, schema: &SchemaRef) -> Result<(), DatasetError> {
        match self.partition_by.is_empty() {
            true => self.format.schema(schema).map(drop),
            false => FolderLayout::new(self.format, &self.partition_by, schema).map(drop),
        }
    }

    /// Starts the output, for rows of `schema`, and creates its parent folders.
    ///
    /// # Errors
    /// The errors of [`RowTarget::probe`] and [`RowTarget::check`].
    pub fn create(&self, schema: &SchemaRef) -> Result<RowOutput, DatasetError> {
        let RowTarget { path, format, partition_by } = self;
        let fail = |source| DatasetError::write(path, source);
        let inner = if partition_by.is_empty() {
            let schema = format.schema(schema)?;
            check_replaceable(path).map_err(fail)?;
            fs::create_dir_all(folder_of(path)).map_err(fail)?;
            let (file, temporary) = temporary_file(folder_of(path)).map_err(fail)?;
            RowSink::File(Box::new(FileWriter::new(file, *format, schema).map_err(fail)?), temporary)
        } else {
            RowSink::FolderOutput(FolderOutput::new(path, *format, partition_by, schema)?)
        };
        Ok(RowOutput { inner, path: path.clone(), rows: 0 })
    }
}

impl RowOutput {
    /// Appends rows.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        self.rows += batch.num_rows() as u64;
        match &mut self.inner {
            RowSink::File(writer, _) => writer.write(batch).map_err(|source| DatasetError::write(&self.path, source)),
            RowSink::FolderOutput(folders) => folders.write(batch),
        }
    }

    /// Writes the rest and renames the output to its final name, replacing an older file.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(self) -> Result<WriteSummary, DatasetError> {
        let RowOutput { inner, path, rows } = self;
        match inner {
            RowSink::File(writer, temporary) => {
                // The file stays open, and so locked, until it is renamed.
                let (_file, bytes) = writer.finish().map_err(|source| DatasetError::write(&path, source))?;
                temporary.persist(&path).map_err(|e| DatasetError::write(&path, e.error))?;
                Ok(WriteSummary { rows, files: 1, bytes })
            }
            RowSink::FolderOutput(folders) => {
                let (files, bytes) = folders.finish()?;
                Ok(WriteSummary { rows, files, bytes })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, StringArray, UInt64Array};
    use futures::TryStreamExt as _;

    use super::*;
    use crate::{Scan, ScanOptions, ScanSource};

    /// Rows of types that all formats support, with extreme values.
    fn rows() -> RecordBatch {
        let keys = Int32Array::from(vec![Some(0), Some(1), None, Some(0)]);
        let words: ArrayRef = Arc::new(StringArray::from(vec!["über", "a,\"b\"\nc"]));
        let columns: [(&str, ArrayRef); 4] = [
            ("i", Arc::new(Int64Array::from(vec![Some(i64::MAX), Some(i64::MIN), None, Some(0)]))),
            ("u", Arc::new(UInt64Array::from(vec![u64::MAX, (1 << 53) + 1, 0, 7]))),
            ("f", Arc::new(Float64Array::from(vec![Some(0.1), Some(-1e-300), None, Some(f64::MAX)]))),
            ("t", Arc::new(DictionaryArray::new(keys, words))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
    }

    fn target(path: &Path, format: OutputFormat, by: &[&str]) -> RowTarget {
        RowTarget { path: path.to_owned(), format, partition_by: by.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[tokio::test]
    async fn written_rows_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.parquet", "a.csv", "a.tsv", "a.jsonl", "a.arrow"] {
            let path = folder.path().join(name);
            let mut output =
                target(&path, OutputFormat::from_path(&path).unwrap(), &[]).create(&rows().schema()).unwrap();
            output.write(&rows().slice(0, 1)).unwrap();
            output.write(&rows().slice(1, 3)).unwrap();
            let written = output.finish().unwrap();
            assert_eq!(
                written,
                WriteSummary { rows: 4, files: 1, bytes: fs::metadata(&path).unwrap().len() },
                "{name}"
            );
            let source = ScanSource { paths: vec![path.display().to_string()], ..ScanSource::default() };
            let scan = Scan::open(source, ScanOptions::default()).await.unwrap();
            let batches: Vec<RecordBatch> = scan.read(0).unwrap().try_collect().await.unwrap();
            let read = arrow_select::concat::concat_batches(scan.schema(), &batches).unwrap();
            for (column, field) in rows().columns().iter().zip(rows().schema().fields()) {
                let own = read.column_by_name(field.name()).unwrap();
                let expected = arrow_cast::cast(column, own.data_type()).unwrap();
                assert_eq!(own, &expected, "{name}: {}", field.name());
            }
        }
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 5);
    }

    #[test]
    fn unfinished_outputs_leave_no_files() {
        let folder = tempfile::tempdir().unwrap();
        for by in [&[][..], &["i"]] {
            let path = folder.path().join("deep/out.csv");
            let mut output = target(&path, OutputFormat::Csv, by).create(&rows().schema()).unwrap();
            output.write(&rows()).unwrap();
            assert_eq!(fs::read_dir(folder.path().join("deep")).unwrap().count(), 1, "{by:?}");
            drop(output);
            assert_eq!(fs::read_dir(folder.path().join("deep")).unwrap().count(), 0, "{by:?}");
        }
    }
}
