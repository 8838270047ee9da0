//! Location of the row that an error is about.
//!
//! Rows are not counted while they are read. When a morsel fails, it is read again, and the failing rows are bisected.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Array as _, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use sandbar_core::{Blame, Code, Fault};
use sandbar_dataset::{Scan, ScanSource, describe_key, find_row_in_file, to_float64};

use crate::error::TrainError;
use crate::job::TrainSpec;
use crate::pipeline::{Pipeline, chunk_seed};

/// Maximum duration of a search. After it the error is reported without its row.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(20);

/// Finds rows in the input of a job.
pub(crate) struct FailingRowFinder {
    source: ScanSource,
    /// Folder for rows that are read again.
    temporary: PathBuf,
    /// Seed of the transforms.
    seed: u64,
}

/// Unusable rows: one of these columns is null, NaN or infinite.
#[derive(Clone, Copy)]
pub(crate) struct UnusableRows<'a> {
    pub columns: &'a [String],
    /// Group of the rows, if only one group matters.
    pub group: Option<GroupKey<'a>>,
}

/// A group of a training.
#[derive(Clone, Copy)]
pub(crate) struct GroupKey<'a> {
    pub train: &'a TrainSpec,
    /// Description of its key, as in failures.
    pub key: &'a str,
}

/// What distinguishes the rows of a search.
#[derive(Clone, Copy)]
enum Symptom<'a> {
    /// A transform fails with this code.
    Fault(&'a Fault),
    /// The output of the transforms is unusable.
    Unusable(UnusableRows<'a>),
}

/// Result of reproducing a symptom: the fault, if the symptom is one.
type ReproducedFault = Option<Fault>;

/// The smallest range of rows that shows a symptom.
struct FailingRows {
    /// Row numbers in the morsel.
    rows: Range<u64>,
    reproduced: ReproducedFault,
}

impl FailingRowFinder {
    /// Creates a finder for `source`, whose transforms have this seed.
    pub(crate) fn new(source: ScanSource, temporary: PathBuf, seed: u64) -> FailingRowFinder {
        FailingRowFinder { source, temporary, seed }
    }

    /// Adds the failing row to an error of a morsel, if it comes from a transform and depends on rows.
    pub(crate) fn explain<'a>(
        &'a self,
        pipeline: &'a Arc<Pipeline>,
        scan: &'a Scan,
        morsel: usize,
        error: TrainError,
    ) -> BoxFuture<'a, TrainError> {
        async move {
            let TrainError::Fault(fault) = error else { return error };
            let is_of_transform = fault.function.as_ref().is_some_and(|name| pipeline.has_function(name));
            if !may_depend_on_row(&fault) || !is_of_transform {
                return fault.into();
            }
            let found = self.find(pipeline, scan, morsel, Symptom::Fault(&fault)).await;
            let Ok(Some(FailingRows { rows, reproduced })) = found else { return fault.into() };
            let location = self.describe_rows(scan, morsel, &rows).await;
            let fault = reproduced.unwrap_or(fault);
            // For a single row, the row number in the function's message is always that of the first row.
            let message = if rows.end - rows.start == 1 { without_row_number(&fault.message) } else { &fault.message };
            Fault { message: format!("{location}: {message}"), ..fault }.into()
        }
        .boxed()
    }

    /// Describes the location of the first unusable row of a morsel.
    pub(crate) fn locate_unusable<'a>(
        &'a self,
        pipeline: &'a Arc<Pipeline>,
        scan: &'a Scan,
        morsel: usize,
        unusable: UnusableRows<'a>,
    ) -> BoxFuture<'a, Option<String>> {
        async move {
            let found = self.find(pipeline, scan, morsel, Symptom::Unusable(unusable)).await.ok()??;
            Some(self.describe_rows(scan, morsel, &found.rows).await)
        }
        .boxed()
    }

    /// Finds the first rows of a morsel with a symptom. `None` if the search takes too long.
    async fn find(
        &self,
        pipeline: &Arc<Pipeline>,
        scan: &Scan,
        morsel: usize,
        symptom: Symptom<'_>,
    ) -> Result<Option<FailingRows>, TrainError> {
        // A search calls the functions some tens of times, and they may be slow.
        let search = tokio::time::timeout(SEARCH_TIME_MAX, self.search(pipeline, scan, morsel, symptom));
        search.await.unwrap_or(Ok(None))
    }

    async fn search(
        &self,
        pipeline: &Arc<Pipeline>,
        scan: &Scan,
        morsel: usize,
        symptom: Symptom<'_>,
    ) -> Result<Option<FailingRows>, TrainError> {
        let seed = chunk_seed(self.seed, morsel as u64, 0);
        let pipeline = &pipeline.without_logs();
        let search = RowSearch { pipeline, file: &scan.files()[scan.morsels()[morsel].file], seed, symptom };
        // A symptom of no rows is not the fault of a row.
        if search.reproduce(&RecordBatch::new_empty(scan.schema().clone())).await.is_some() {
            return Ok(None);
        }
        let (mut batches, mut first) = (scan.read(morsel)?, 0);
        while let Some(batch) = batches.try_next().await? {
            if let Some(reproduced) = search.reproduce(&batch).await {
                let (rows, reproduced) = search.bisect(&batch, reproduced).await;
                let rows = first + rows.start as u64..first + rows.end as u64;
                return Ok(Some(FailingRows { rows, reproduced }));
            }
            first += batch.num_rows() as u64;
        }
        Ok(None)
    }

    /// Describes rows of a morsel: their file, and their row numbers in it if these can be determined.
    async fn describe_rows(&self, scan: &Scan, morsel: usize, rows: &Range<u64>) -> String {
        let file = &scan.files()[scan.morsels()[morsel].file];
        let Some(first) = find_row_in_file(scan, &self.source, morsel, rows.start, &self.temporary).await else {
            return file.clone();
        };
        let last = rows.end - 1;
        if last == rows.start {
            return format!("{file}, row {}", first + 1);
        }
        match find_row_in_file(scan, &self.source, morsel, last, &self.temporary).await {
            Some(last) => format!("{file}, one of rows {} to {}", first + 1, last + 1),
            None => format!("{file}, row {} or one after it", first + 1),
        }
    }
}

/// A search for rows of a file.
struct RowSearch<'a> {
    pipeline: &'a Arc<Pipeline>,
    file: &'a str,
    seed: u64,
    symptom: Symptom<'a>,
}

impl RowSearch<'_> {
    /// Returns whether the transforms show the symptom for these rows.
    async fn reproduce(&self, rows: &RecordBatch) -> Option<ReproducedFault> {
        let mut chunk = self.pipeline.chunk(1);
        let output = match chunk.push(rows.clone()) {
            Ok(()) => chunk.run(self.seed).await,
            Err(fault) => Err(fault),
        };
        match (self.symptom, output) {
            (Symptom::Fault(expected), Err(fault)) => {
                (fault.code == expected.code && fault.function == expected.function).then_some(Some(fault))
            }
            (Symptom::Unusable(unusable), Ok(batches)) => {
                batches.iter().any(|batch| unusable.occur_in(batch, self.file).unwrap_or(false)).then_some(None)
            }
            _ => None,
        }
    }

    /// Halves a range of rows as long as one of the halves shows the symptom.
    async fn bisect(&self, rows: &RecordBatch, reproduced: ReproducedFault) -> (Range<usize>, ReproducedFault) {
        let (mut range, mut reproduced) = (0..rows.num_rows(), reproduced);
        while range.len() > 1 {
            let middle = range.start + range.len() / 2;
            let mut failing = None;
            for half in [range.start..middle, middle..range.end] {
                if let Some(reproduced) = self.reproduce(&rows.slice(half.start, half.len())).await {
                    failing = Some((half, reproduced));
                    break;
                }
            }
            let Some(half) = failing else { break };
            (range, reproduced) = half;
        }
        (range, reproduced)
    }
}

impl UnusableRows<'_> {
    /// Returns whether a batch of a file has such rows. `None` if it lacks a column.
    fn occur_in(&self, batch: &RecordBatch, file: &str) -> Option<bool> {
        let mut is_unusable = vec![false; batch.num_rows()];
        for column in self.columns {
            let values = to_float64(batch.column_by_name(column)?).ok()?;
            is_unusable.iter_mut().zip(values.iter()).for_each(|(unusable, value)| *unusable |= !value.is_finite());
        }
        let mut rows = is_unusable.iter().enumerate().filter(|(_, unusable)| **unusable).map(|(row, _)| row);
        let Some(group) = self.group else { return Some(rows.next().is_some()) };
        let keys = group_keys(group.train, batch, file)?;
        Some(rows.any(|row| describe_key(&keys, row) == group.key))
    }
}

/// Returns the group key of each row.
fn group_keys(train: &TrainSpec, batch: &RecordBatch, file: &str) -> Option<RecordBatch> {
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    if train.per_file {
        let file = arrow_array::StringArray::from_iter_values(std::iter::repeat_n(file, batch.num_rows()));
        columns.push(("file".to_owned(), Arc::new(file)));
    }
    for key in &train.group_by {
        let column = batch.column_by_name(key)?;
        // Grouping decodes dictionaries.
        let column = match column.data_type() {
            DataType::Dictionary(_, values) => cast(column, values).ok()?,
            _ => column.clone(),
        };
        columns.push((key.clone(), column));
    }
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(name, column.data_type().clone(), true)).collect();
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).ok()
}

/// Returns whether a fault may depend on a row. Faults of time, memory or the machine are not tried again.
fn may_depend_on_row(fault: &Fault) -> bool {
    let is_of_limits = matches!(
        fault.code,
        Code::TimeOut
            | Code::MemoryLimit
            | Code::TableLimit
            | Code::OutputLimit
            | Code::WorkerLost
            | Code::Cancelled
            | Code::StoreFull
    );
    fault.code.blame() != Blame::Host && !is_of_limits
}

/// Strips the row number, which counts within a batch, from a function's message.
fn without_row_number(message: &str) -> &str {
    let rest = message.strip_prefix("row ").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_number_of_a_batch_is_stripped() {
        for (message, expected) in [
            ("row 0: negative", "negative"),
            ("row 12: row 3: x", "row 3: x"),
            ("row: x", "row: x"),
            ("rows are bad", "rows are bad"),
            ("", ""),
        ] {
            assert_eq!(without_row_number(message), expected);
        }
    }
}
