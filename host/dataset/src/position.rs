//! Row numbers for error messages: maps a row of a scan back to its number in its file.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt as _;

use crate::{DatasetError, Morsel, Scan, ScanOptions, ScanSource};

/// Maximum bytes of a file before a morsel in which rows are counted.
const COUNTED_BYTES_MAX: u64 = 4 << 30;
/// Name of the row number column, which is added to those of the file.
const ROW: &str = "sandbar:row";

/// Returns the number in its file, from 0 and counting rows that the filter drops, of the `nth` row of a morsel of
/// `scan`, which reads `source`. Rereads the file up to that row, so that normal reads keep no count. `temporary` is a
/// folder for the morsel's rows.
///
/// Returns `None` if the files have changed since, or if the row lies too far into its file.
pub async fn find_row_in_file(
    scan: &Scan,
    source: &ScanSource,
    morsel: usize,
    nth: u64,
    temporary: &Path,
) -> Option<u64> {
    RowSearch::new(scan, source, ScanOptions::default(), morsel, temporary).find(nth).await
}

/// Search for a row of one morsel.
struct RowSearch {
    source: ScanSource,
    options: ScanOptions,
    files: Vec<String>,
    morsels: Vec<Morsel>,
    morsel: usize,
    column: Option<String>,
    temporary: PathBuf,
}

impl RowSearch {
    /// Prepares a search in `morsel` of `scan`, which reads `source` with these options.
    fn new(scan: &Scan, source: &ScanSource, options: ScanOptions, morsel: usize, temporary: &Path) -> RowSearch {
        let column = scan.schema().fields().first().map(|field| field.name().clone());
        let (files, morsels) = (scan.files().to_vec(), scan.morsels().to_vec());
        RowSearch { source: source.clone(), options, files, morsels, morsel, column, temporary: temporary.to_owned() }
    }

    /// Returns the number of the row in its file. Runs on a thread that may block.
    async fn find(self, nth: u64) -> Option<u64> {
        let runtime = tokio::runtime::Handle::current();
        let found = tokio::task::spawn_blocking(move || runtime.block_on(self.try_find(nth)));
        // The caller already has an error to report, so a failure here becomes `None`.
        found.await.ok()?.ok().flatten()
    }

    async fn try_find(&self, nth: u64) -> Result<Option<u64>, DatasetError> {
        let Morsel { file, first_byte, .. } = self.morsels[self.morsel];
        if first_byte > COUNTED_BYTES_MAX {
            return Ok(None);
        }
        let columns = self.column.clone().map(|column| vec![column]);
        let all = ScanSource { filter: None, columns, ..self.source.clone() };
        let all = Scan::open(all, self.options.clone()).await?;
        if all.morsels() != self.morsels || all.files() != self.files {
            return Ok(None);
        }
        let mut before = 0;
        for earlier in (0..self.morsel).filter(|earlier| self.morsels[*earlier].file == file) {
            before += rows_of(&all, earlier).await?;
        }
        let nth = match self.source.filter {
            Some(_) => self.unfiltered(nth).await?,
            None => Some(nth),
        };
        Ok(nth.map(|nth| before + nth))
    }

    /// Returns the number within the morsel, before filtering, of the `nth` row that passes the filter. DataFusion
    /// evaluates the filter again, over a temporary file that has a row number column.
    async fn unfiltered(&self, nth: u64) -> Result<Option<u64>, DatasetError> {
        let all = ScanSource { filter: None, columns: None, ..self.source.clone() };
        let all = Scan::open(all, self.options.clone()).await?;
        let io = |source| DatasetError::write(&self.temporary, source);
        let file = tempfile::Builder::new().suffix(".arrow").tempfile_in(&self.temporary).map_err(io)?;
        write_numbered(&all, self.morsel, file.as_file()).await?;
        let paths = vec![file.path().display().to_string()];
        let mut numbered = ScanSource { paths, filter: self.source.filter.clone(), ..ScanSource::default() };
        numbered.columns = Some(vec![ROW.to_owned()]);
        let numbered = Scan::open(numbered, ScanOptions::default()).await?;
        let mut passed = 0;
        for part in 0..numbered.morsels().len() {
            let mut batches = numbered.read(part)?;
            while let Some(batch) = batches.try_next().await? {
                let rows = batch.column(0).as_primitive_opt::<UInt64Type>();
                let rows = rows.ok_or_else(|| DatasetError::internal("the row number column has another type"))?;
                if nth < passed + rows.len() as u64 {
                    return Ok(Some(rows.value((nth - passed) as usize)));
                }
                passed += rows.len() as u64;
            }
        }
        Ok(None)
    }
}

async fn rows_of(scan: &Scan, morsel: usize) -> Result<u64, DatasetError> {
    let add = |rows, batch: RecordBatch| std::future::ready(Ok(rows + batch.num_rows() as u64));
    scan.read(morsel)?.try_fold(0, add).await
}

/// Writes the rows of a morsel with their numbers to an Arrow file.
async fn write_numbered(scan: &Scan, morsel: usize, file: &File) -> Result<(), DatasetError> {
    let fields = scan.schema().fields().iter().cloned().chain([Arc::new(Field::new(ROW, DataType::UInt64, false))]);
    let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let mut writer = FileWriter::try_new(BufWriter::new(file), &schema).map_err(DatasetError::internal)?;
    let mut batches = scan.read(morsel)?;
    let mut first = 0;
    while let Some(batch) = batches.try_next().await? {
        let rows = first..first + batch.num_rows() as u64;
        first = rows.end;
        let rows: ArrayRef = Arc::new(UInt64Array::from_iter_values(rows));
        let columns = batch.columns().iter().cloned().chain([rows]).collect();
        let batch = RecordBatch::try_new(schema.clone(), columns).map_err(DatasetError::internal)?;
        writer.write(&batch).map_err(DatasetError::internal)?;
    }
    writer.finish().map_err(DatasetError::internal)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int64Type;

    use super::*;

    /// Returns the file, the row number there and the value of each row of a scan. The value is the row number that was
    /// written.
    async fn found(files: &[(&str, String)], filter: Option<&str>) -> Vec<(String, u64, i64)> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let paths = vec![folder.path().display().to_string()];
        let source = ScanSource { paths, filter: filter.map(str::to_owned), ..ScanSource::default() };
        let options = ScanOptions { morsel_bytes: 300, batch_rows: 7 };
        let scan = Scan::open(source.clone(), options.clone()).await.unwrap();
        assert!(scan.morsels().len() > 2 * files.len());
        let mut all = Vec::new();
        for morsel in 0..scan.morsels().len() {
            let mut batches = scan.read(morsel).unwrap();
            let mut nth = 0;
            while let Some(batch) = batches.try_next().await.unwrap() {
                for value in batch.column_by_name("row").unwrap().as_primitive::<Int64Type>().values() {
                    let search = RowSearch::new(&scan, &source, options.clone(), morsel, folder.path());
                    let number = search.find(nth).await.unwrap();
                    let file = scan.files()[scan.morsels()[morsel].file].rsplit('/').next().unwrap().to_owned();
                    all.push((file, number, *value));
                    nth += 1;
                }
            }
        }
        all
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_are_found_whatever_the_filter_leaves_out() {
        let csv: String = (0..150).map(|row| format!("{row},{}\n", row % 10)).collect();
        let json: String = (0..100).map(|row| format!("{{\"row\": {row}, \"x\": {}}}\n", row % 3)).collect();
        let files = [("a.csv", format!("row,x\n{csv}")), ("b.jsonl", json)];
        for (filter, rows) in [(None, 250), (Some("x > 1"), 150 / 10 * 8 + 33), (Some("\"row\" = 99 AND x < 100"), 2)] {
            let all = found(&files, filter).await;
            assert_eq!(all.len(), rows, "{filter:?}");
            assert!(all.iter().all(|(_, number, value)| *number == *value as u64), "{filter:?}: {all:?}");
        }
    }
}
