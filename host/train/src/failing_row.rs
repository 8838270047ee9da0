//! Which row of which file an error is about. Nothing keeps count while rows are read: where one fails, its morsel is read
//! again, and what fails is narrowed down to one row.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Array as _, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use sandbar_core::{Blame, Code, Fault, Seed};
use sandbar_dataset::{Scan, ScanSource, describe_key, find_row_in_file, to_float64};

use crate::error::TrainError;
use crate::job::{Job, TrainSpec};
use crate::transform::Steps;

/// An error is told without its row if that is not found within this.
const FIND_TIME_MAX: Duration = Duration::from_secs(20);

/// The seed of a chunk of a morsel.
pub(crate) fn chunk_seed(seed: u64, morsel: u64, chunk: u64) -> u64 {
    Seed::new(seed).with(&[morsel.to_le_bytes(), chunk.to_le_bytes()].concat()).value()
}

/// Finds rows of what a job reads.
pub(crate) struct FailingRowFinder {
    source: ScanSource,
    temporary: PathBuf,
    seed: u64,
}

/// Rows whose values can't be used: these columns have some that are no finite numbers.
#[derive(Clone, Copy)]
pub(crate) struct Unusable<'a> {
    pub(crate) columns: &'a [String],
    /// The group that they are of, in words, if it matters.
    pub(crate) group: Option<(&'a TrainSpec, &'a str)>,
}

/// What a row is looked for by.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// A transform fails with it like this.
    Fault(&'a Fault),
    /// The transforms make such of it.
    Unusable(Unusable<'a>),
}

/// Rows of a batch, of a morsel, that were narrowed down.
struct Found {
    /// In the morsel.
    rows: Range<u64>,
    /// What happens to them alone.
    fault: Option<Fault>,
}

impl FailingRowFinder {
    /// Of a job, with a folder for rows that are read again.
    pub(crate) fn new(job: &Job, temporary: PathBuf, seed: u64) -> FailingRowFinder {
        FailingRowFinder::of(job.source(None), temporary, seed)
    }

    /// Of what is read, for transforms with this seed.
    pub(crate) fn of(source: ScanSource, temporary: PathBuf, seed: u64) -> FailingRowFinder {
        FailingRowFinder { source, temporary, seed }
    }

    /// An error of a morsel, with the row that it is about, if it is of a transform and one row is to blame.
    pub(crate) fn explain<'a>(
        &'a self,
        steps: &'a Arc<Steps>,
        scan: &'a Scan,
        morsel: usize,
        error: TrainError,
    ) -> BoxFuture<'a, TrainError> {
        async move {
            let TrainError::Fault(fault) = error else { return error };
            if !may_be_of_a_row(&fault) || !fault.function.as_ref().is_some_and(|name| steps.has(name)) {
                return fault.into();
            }
            let found = self.find(steps, scan, morsel, Wanted::Fault(&fault)).await;
            let Ok(Some(Found { rows, fault: of_rows })) = found else { return fault.into() };
            let place = self.place(scan, morsel, &rows).await;
            let fault = of_rows.unwrap_or(fault);
            // Of one row alone the function says that it is the first.
            let words = if rows.end - rows.start == 1 { without_row(&fault.message) } else { &fault.message };
            Fault { message: format!("{place}: {words}"), ..fault }.into()
        }
        .boxed()
    }

    /// The first row of a morsel that has such values, in words.
    pub(crate) fn unusable<'a>(
        &'a self,
        steps: &'a Arc<Steps>,
        scan: &'a Scan,
        morsel: usize,
        wanted: Unusable<'a>,
    ) -> BoxFuture<'a, Option<String>> {
        async move {
            let found = self.find(steps, scan, morsel, Wanted::Unusable(wanted)).await.ok()??;
            Some(self.place(scan, morsel, &found.rows).await)
        }
        .boxed()
    }

    /// The first batch of a morsel in which something is as wanted, and which of its rows: if that is found in time.
    async fn find(
        &self,
        steps: &Arc<Steps>,
        scan: &Scan,
        morsel: usize,
        wanted: Wanted<'_>,
    ) -> Result<Option<Found>, TrainError> {
        // A function may be slow, and is called some tens of times.
        let found = tokio::time::timeout(FIND_TIME_MAX, self.find_at_length(steps, scan, morsel, wanted));
        found.await.unwrap_or(Ok(None))
    }

    async fn find_at_length(
        &self,
        steps: &Arc<Steps>,
        scan: &Scan,
        morsel: usize,
        wanted: Wanted<'_>,
    ) -> Result<Option<Found>, TrainError> {
        let seed = chunk_seed(self.seed, morsel as u64, 0);
        let steps = &steps.unheard();
        let look = Look { steps, file: &scan.files()[scan.morsels()[morsel].file], seed, wanted };
        // What fails without a row is not the fault of one.
        if look.at(&RecordBatch::new_empty(scan.schema().clone())).await.is_some() {
            return Ok(None);
        }
        let (mut batches, mut first) = (scan.read(morsel)?, 0);
        while let Some(batch) = batches.try_next().await? {
            if let Some(fault) = look.at(&batch).await {
                let (rows, fault) = look.narrow(&batch, fault).await;
                let rows = first + rows.start as u64..first + rows.end as u64;
                return Ok(Some(Found { rows, fault }));
            }
            first += batch.num_rows() as u64;
        }
        Ok(None)
    }

    /// Rows of a morsel in words: those of the file, if they can be known.
    async fn place(&self, scan: &Scan, morsel: usize, rows: &Range<u64>) -> String {
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

/// Looks for rows of a file.
struct Look<'a> {
    steps: &'a Arc<Steps>,
    file: &'a str,
    seed: u64,
    wanted: Wanted<'a>,
}

impl Look<'_> {
    /// Whether these rows are as wanted; and how they fail, if they do.
    async fn at(&self, rows: &RecordBatch) -> Option<Option<Fault>> {
        let mut chunk = self.steps.chunk(1);
        let made = match chunk.push(rows.clone()) {
            Ok(()) => chunk.run(self.seed).await,
            Err(fault) => Err(fault),
        };
        match (self.wanted, made) {
            (Wanted::Fault(wanted), Err(fault)) => {
                (fault.code == wanted.code && fault.function == wanted.function).then_some(Some(fault))
            }
            (Wanted::Unusable(wanted), Ok(batches)) => {
                batches.iter().any(|batch| wanted.is_in(batch, self.file).unwrap_or(false)).then_some(None)
            }
            _ => None,
        }
    }

    /// Halves rows that are as wanted for as long as one of the halves is.
    async fn narrow(&self, rows: &RecordBatch, fault: Option<Fault>) -> (Range<usize>, Option<Fault>) {
        let (mut range, mut fault) = (0..rows.num_rows(), fault);
        while range.len() > 1 {
            let middle = range.start + range.len() / 2;
            let mut half = None;
            for part in [range.start..middle, middle..range.end] {
                if let Some(fault) = self.at(&rows.slice(part.start, part.len())).await {
                    half = Some((part, fault));
                    break;
                }
            }
            let Some((part, of_part)) = half else { break };
            (range, fault) = (part, of_part);
        }
        (range, fault)
    }
}

impl Unusable<'_> {
    /// Whether a batch has such a row, of a file.
    fn is_in(&self, batch: &RecordBatch, file: &str) -> Option<bool> {
        let mut bad = vec![false; batch.num_rows()];
        for column in self.columns {
            let values = to_float64(batch.column_by_name(column)?).ok()?;
            bad.iter_mut().zip(values.iter()).for_each(|(bad, value)| *bad |= !value.is_finite());
        }
        let mut rows = bad.iter().enumerate().filter(|(_, bad)| **bad).map(|(row, _)| row);
        let Some((train, group)) = self.group else { return Some(rows.next().is_some()) };
        let keys = keys_of(train, batch, file)?;
        Some(rows.any(|row| describe_key(&keys, row) == group))
    }
}

/// What names the group of each row.
fn keys_of(train: &TrainSpec, batch: &RecordBatch, file: &str) -> Option<RecordBatch> {
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    if train.per_file {
        let file = arrow_array::StringArray::from_iter_values(std::iter::repeat_n(file, batch.num_rows()));
        columns.push(("file".to_owned(), Arc::new(file)));
    }
    for key in &train.group_by {
        let column = batch.column_by_name(key)?;
        // As groups have it.
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

/// Whether a fault may be of a row: not one of time, memory or the machine, which is not tried again.
fn may_be_of_a_row(fault: &Fault) -> bool {
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

/// What a function says, without the row of its batch.
fn without_row(message: &str) -> &str {
    let rest = message.strip_prefix("row ").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_a_batch_is_not_told() {
        for (message, expected) in [
            ("row 0: negative", "negative"),
            ("row 12: row 3: x", "row 3: x"),
            ("row: x", "row: x"),
            ("rows are bad", "rows are bad"),
            ("", ""),
        ] {
            assert_eq!(without_row(message), expected);
        }
    }
}
