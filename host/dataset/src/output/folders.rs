//! Hive-partitioned output: rows in folders named after column values, as in `year=2019/month=5/part-00000.parquet`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use arrow_select::take::take_record_batch;

use super::file::{FileWriter, OutputFormat};
use super::parquet::GROUP_BYTES_MAX;
use super::temporary::{TemporaryFolder, folder_of};
use crate::DatasetError;
use crate::scan::plain_type;

/// Maximum folders of one output.
const FOLDERS_MAX: usize = 1 << 16;
/// Maximum open files. Rows for a folder whose file was closed go to the folder's next file.
const OPEN_MAX: usize = 128;
/// Folder name of nulls.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Partitioned output that is being written, in a temporary folder.
pub(super) struct FolderOutput {
    root: TemporaryFolder,
    path: PathBuf,
    format: OutputFormat,
    /// Partition columns, in order.
    by: Vec<usize>,
    /// Other columns, which are written to the files.
    kept: Vec<usize>,
    schema: SchemaRef,
    folders: HashMap<String, OutputFolder>,
    open: usize,
    /// Number of writes so far, by which the least recently written file is found.
    clock: u64,
    bytes: u64,
    files: u64,
}

/// Folder of one combination of partition values.
#[derive(Default)]
struct OutputFolder {
    writer: Option<FileWriter>,
    files: u64,
    last: u64,
}

/// Split of the columns into partition columns and columns of the files.
pub(super) struct FolderLayout {
    by: Vec<usize>,
    kept: Vec<usize>,
    /// Schema of the files.
    schema: SchemaRef,
}

impl FolderLayout {
    pub(super) fn new(
        format: OutputFormat,
        partition_by: &[String],
        schema: &SchemaRef,
    ) -> Result<FolderLayout, DatasetError> {
        let by = partition_by.iter().map(|name| partition_column(schema, name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) = by.iter().enumerate().find_map(|(i, at)| by[..i].contains(at).then(|| schema.field(*at))) {
            return Err(DatasetError::Columns(format!("`partition_by` names `{}` twice", twice.name())));
        }
        let kept: Vec<usize> = (0..schema.fields().len()).filter(|at| !by.contains(at)).collect();
        if kept.is_empty() {
            let rule = "`partition_by` names all columns: a file would have none";
            return Err(DatasetError::Columns(rule.to_owned()));
        }
        let rest = schema.project(&kept).map_err(DatasetError::internal)?;
        Ok(FolderLayout { by, kept, schema: format.schema(&rest)? })
    }
}

impl FolderOutput {
    pub(super) fn new(
        path: &Path,
        format: OutputFormat,
        partition_by: &[String],
        schema: &SchemaRef,
    ) -> Result<FolderOutput, DatasetError> {
        let FolderLayout { by, kept, schema } = FolderLayout::new(format, partition_by, schema)?;
        let fail = |source| DatasetError::write(path, source);
        check_empty_folder(path).map_err(fail)?;
        fs::create_dir_all(folder_of(path)).map_err(fail)?;
        let root = TemporaryFolder::new(folder_of(path)).map_err(fail)?;
        let (path, folders) = (path.to_owned(), HashMap::new());
        Ok(FolderOutput { root, path, format, by, kept, schema, folders, open: 0, clock: 0, bytes: 0, files: 0 })
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let internal = |e: ArrowError| DatasetError::internal(e);
        let rest = batch.project(&self.kept).map_err(internal)?;
        for (name, rows) in self.by_folder(batch)? {
            let part = if rows.len() == rest.num_rows() {
                rest.clone()
            } else {
                take_record_batch(&rest, &UInt32Array::from(rows)).map_err(internal)?
            };
            self.append(name, &part)?;
        }
        self.bound_memory()
    }

    /// Returns the rows of each folder, in order.
    fn by_folder(&self, batch: &RecordBatch) -> Result<Vec<(String, Vec<u32>)>, DatasetError> {
        let options = FormatOptions::default().with_display_error(false);
        let columns = self.by.iter().map(|at| {
            let column = batch.column(*at);
            let formatter = ArrayFormatter::try_new(column.as_ref(), &options).map_err(DatasetError::internal)?;
            Ok((escaped(batch.schema_ref().field(*at).name()), column, formatter))
        });
        let columns = columns.collect::<Result<Vec<_>, DatasetError>>()?;
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut all: Vec<(String, Vec<u32>)> = Vec::new();
        let (mut name, mut value) = (String::new(), String::new());
        for row in 0..batch.num_rows() {
            name.clear();
            for (column_name, column, formatter) in &columns {
                value.clear();
                if column.is_valid(row) {
                    formatter.value(row).write(&mut value).map_err(DatasetError::internal)?;
                }
                let value = if value.is_empty() { NULL.to_owned() } else { escaped(&value) };
                // Writing to a string does not fail.
                let _ = write!(name, "{}{column_name}={value}", if name.is_empty() { "" } else { "/" });
            }
            let at = match places.get(&name) {
                Some(at) => *at,
                None => {
                    places.insert(name.clone(), all.len());
                    all.push((name.clone(), Vec::new()));
                    all.len() - 1
                }
            };
            all[at].1.push(row as u32);
        }
        Ok(all)
    }

    fn append(&mut self, name: String, rows: &RecordBatch) -> Result<(), DatasetError> {
        self.clock += 1;
        let is_open = self.folders.get(&name).is_some_and(|folder| folder.writer.is_some());
        if !is_open && self.open >= OPEN_MAX {
            self.close_oldest()?;
        }
        if self.folders.len() >= FOLDERS_MAX && !self.folders.contains_key(&name) {
            let quantity = "number of folders of `partition_by`".to_owned();
            return Err(DatasetError::LimitExceeded {
                quantity,
                value: FOLDERS_MAX as u64 + 1,
                bound: FOLDERS_MAX as u64,
            });
        }
        let folder_path = self.root.path().join(&name);
        let fail = |source| DatasetError::write(&self.path.join(&name), source);
        let folder = self.folders.entry(name.clone()).or_default();
        folder.last = self.clock;
        let writer = match &mut folder.writer {
            Some(writer) => writer,
            None => {
                fs::create_dir_all(&folder_path).map_err(fail)?;
                let file = format!("part-{:05}.{}", folder.files, self.format.extension());
                let file = File::create_new(folder_path.join(file)).map_err(fail)?;
                folder.files += 1;
                self.open += 1;
                folder.writer.insert(FileWriter::new(file, self.format, self.schema.clone()).map_err(fail)?)
            }
        };
        writer.write(rows).map_err(fail)
    }

    /// Closes the least recently written file.
    fn close_oldest(&mut self) -> Result<(), DatasetError> {
        let open = self.folders.values_mut().filter(|folder| folder.writer.is_some());
        let oldest = open.min_by_key(|folder| folder.last).and_then(|folder| folder.writer.take());
        oldest.map_or(Ok(()), |writer| self.close(writer))
    }

    fn close(&mut self, writer: FileWriter) -> Result<(), DatasetError> {
        let (_, bytes) = writer.finish().map_err(|source| DatasetError::write(&self.path, source))?;
        self.open -= 1;
        self.files += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// Ends row groups when all files together hold as many bytes as one file may.
    fn bound_memory(&mut self) -> Result<(), DatasetError> {
        let held = |folder: &OutputFolder| folder.writer.as_ref().map_or(0, FileWriter::held_bytes);
        if self.folders.values().map(held).sum::<usize>() <= GROUP_BYTES_MAX {
            return Ok(());
        }
        let mut writers: Vec<(&String, &mut FileWriter)> =
            self.folders.iter_mut().filter_map(|(name, folder)| Some((name, folder.writer.as_mut()?))).collect();
        writers.sort_by(|a, b| b.1.held_bytes().cmp(&a.1.held_bytes()).then(a.0.cmp(b.0)));
        // Only the larger half is ended: small row groups are slow to read.
        let half = writers.len().div_ceil(2);
        writers
            .into_iter()
            .take(half)
            .try_for_each(|(_, writer)| writer.flush().map_err(|e| DatasetError::write(&self.path, e)))
    }

    /// Writes the rest and renames the folder to its final name. Returns the number of files and their bytes.
    pub(super) fn finish(mut self) -> Result<(u64, u64), DatasetError> {
        let writers: Vec<FileWriter> = self.folders.values_mut().filter_map(|folder| folder.writer.take()).collect();
        writers.into_iter().try_for_each(|writer| self.close(writer))?;
        let FolderOutput { root, path, files, bytes, .. } = self;
        root.persist(&path).map_err(|source| DatasetError::write(&path, source))?;
        Ok((files, bytes))
    }
}

/// Checks that `path` does not exist or is an empty folder: rows are never mixed with those of an older output.
pub(super) fn check_empty_folder(path: &Path) -> std::io::Result<()> {
    let Ok(existing) = fs::symlink_metadata(path) else { return Ok(()) };
    if !existing.is_dir() {
        return Err(std::io::Error::other("it is not a folder; `partition_by` needs a new or empty one"));
    }
    if fs::read_dir(path)?.next().is_some() {
        let rule =
            "it is a folder that is not empty; choose another one or remove it: rows are not added to existing output";
        return Err(std::io::Error::other(rule));
    }
    Ok(())
}

/// Returns the index of a partition column, after checking its type.
fn partition_column(schema: &Schema, name: &str) -> Result<usize, DatasetError> {
    let Some((at, field)) = schema.column_with_name(name) else {
        let available = schema.fields().iter().map(|field| field.name().as_str());
        return Err(DatasetError::no_column("column of `partition_by`", name, "the output", available));
    };
    let data_type = plain_type(field.data_type());
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
    let is_date = matches!(data_type, DataType::Date32 | DataType::Date64);
    if data_type.is_integer() || is_text || is_date || data_type == DataType::Boolean {
        return Ok(at);
    }
    Err(DatasetError::ColumnType {
        role: "column of `partition_by`".to_owned(),
        column: name.to_owned(),
        data_type: data_type.to_string(),
        reason: "which can't name folders; use an integer, a string, a date or a boolean".to_owned(),
    })
}

/// Escapes a column name or value for a folder name: characters with a meaning in paths or to readers become `%` and
/// two hexadecimal digits, as in Hive.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_control() || "\"#%'*/:=?\\{}[]^".contains(c) {
            // Writing to a string does not fail.
            let _ = write!(out, "%{:02X}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}
