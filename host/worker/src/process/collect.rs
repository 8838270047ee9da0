//! Collectors: convert the output of a call in the worker, instead of sending batches to the node.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, ToByteSlice as _};
use sandbar_core::{Code, Fault, Limits};
use sandbar_sandbox::Refusal;
use sandbar_store::SharedMemory;

use crate::batches::BatchReader;
use crate::protocol::{COLLECTED_BYTES_A_BYTE, collected_bytes_max};

/// Converts the output batches of a call. Runs in a worker, confined like its guests.
pub trait Collect: Send {
    /// Processes the next batch. The batch lies in guest memory that changes afterwards: keeping a reference to its
    /// buffers aborts the process. The output of a scalar function is one column, with the companion columns of the
    /// same rows in `beside`.
    ///
    /// # Errors
    /// When the batch is not of the expected form, and those of `to`.
    fn push(&mut self, batch: &RecordBatch, beside: Option<&RecordBatch>, to: &mut CollectBuffer) -> Result<(), Fault>;

    /// Finishes after the last batch.
    ///
    /// # Errors
    /// Those of `to`.
    fn finish(&mut self, to: &mut CollectBuffer) -> Result<(), Fault>;
}

/// Creates the collector of a [`crate::CallWork::Collect`] call from the plan of its binding and its argument.
pub type Collectors = fn(plan: &[u8], argument: u64) -> Result<Box<dyn Collect>, Fault>;

thread_local! {
    /// Buffer of the last append. It is reused because its pages are allocated; it is no larger than a slot.
    static LAST: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Collected output of a call, in the slot of its message.
pub struct CollectBuffer {
    slot: Arc<SharedMemory>,
    /// Length in bytes.
    bytes: usize,
    bytes_max: u64,
}

impl CollectBuffer {
    /// Appends `words` words, which are zero until `fill` writes them.
    ///
    /// # Errors
    /// When the output would exceed the limit of a call; nothing is written then.
    pub fn append(&mut self, words: usize, fill: impl FnOnce(&mut [u64])) -> Result<(), Fault> {
        let end = words.checked_mul(size_of::<u64>()).and_then(|bytes| self.bytes.checked_add(bytes));
        let end = end.unwrap_or(usize::MAX);
        if end as u64 > self.bytes_max || end > self.slot.bytes() {
            let message = format!(
                "output rows take {end} bytes, the limit is {} ({COLLECTED_BYTES_A_BYTE} times output_bytes_max)",
                self.bytes_max
            );
            return Err(Fault::new(Code::OutputLimit, message));
        }
        // Written to a buffer first, not in place: the slot's last content is in the cache of the core that read it.
        let mut last = LAST.take();
        if last.len() < words {
            last = vec![0; words];
        }
        let all = &mut last[..words];
        all.fill(0);
        fill(all);
        self.slot.write(self.bytes, all.to_byte_slice());
        LAST.set(last);
        self.bytes = end;
        Ok(())
    }
}

/// A collector with its buffer and decoder.
pub struct BatchCollector {
    collector: Box<dyn Collect>,
    collection: CollectBuffer,
    reader: BatchReader,
    beside: Option<CompanionColumns>,
}

/// Columns of the same rows as the results of a scalar function.
struct CompanionColumns {
    columns: RecordBatch,
    /// Number of rows whose results have arrived.
    taken: usize,
}

/// Returns the fault for results of a scalar function that are not one column of `expected_rows` rows.
pub fn not_a_column(columns: usize, rows: usize, expected_rows: usize) -> Fault {
    let message = format!(
        "it returned {columns} columns of {rows} rows; a scalar function returns one column of {expected_rows} rows"
    );
    Fault::new(Code::BadOutput, message)
}

impl CompanionColumns {
    /// Returns the companion columns of the next results.
    fn next(&mut self, results: &RecordBatch) -> Result<RecordBatch, Fault> {
        let (rows, from) = (results.num_rows(), self.taken);
        self.taken += rows;
        if results.num_columns() != 1 || self.taken > self.columns.num_rows() {
            return Err(not_a_column(results.num_columns(), self.taken, self.columns.num_rows()));
        }
        Ok(self.columns.slice(from, rows))
    }
}

impl BatchCollector {
    /// Creates a collector that writes to `slot`, from its start.
    pub fn new(collector: Box<dyn Collect>, limits: &Limits, slot: Arc<SharedMemory>) -> BatchCollector {
        let collection = CollectBuffer { slot, bytes: 0, bytes_max: collected_bytes_max(limits) };
        BatchCollector { collector, collection, reader: BatchReader::default(), beside: None }
    }

    /// Sets the companion columns of the results that follow.
    pub(super) fn begin_beside(&mut self, columns: RecordBatch) {
        self.beside = Some(CompanionColumns { columns, taken: 0 });
    }

    /// Checks that results have arrived for all rows of the companion columns.
    pub(super) fn end_beside(&mut self) -> Result<(), Fault> {
        match self.beside.take() {
            Some(CompanionColumns { columns, taken }) if taken < columns.num_rows() => {
                Err(not_a_column(1, taken, columns.num_rows()))
            }
            _ => Ok(()),
        }
    }

    /// Processes a batch of a waiting guest: its header and its buffers.
    ///
    /// # Errors
    /// When the batch is malformed, and those of the collector.
    pub fn push(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let lent = Arc::new(());
        let part = |bytes: &&[u8]| {
            // SAFETY: the bytes stay valid and unchanged until this function returns, and no buffer of them outlives
            // it: each holds `lent`, whose count is checked below.
            unsafe { Buffer::from_custom_allocation(NonNull::from(*bytes).cast(), bytes.len(), lent.clone()) }
        };
        let parts: Vec<Buffer> = buffers.iter().map(part).collect();
        let pushed = self.reader.read_parts(header, &parts).and_then(|batch| {
            let beside = self.beside.as_mut().map(|beside| beside.next(&batch)).transpose()?;
            self.collector.push(&batch, beside.as_ref(), &mut self.collection)
        });
        drop(parts);
        if Arc::strong_count(&lent) > 1 {
            // A kept buffer would change when the guest continues.
            std::process::abort();
        }
        pushed.map_err(Refusal::from)
    }

    /// Finishes. Returns the length of the output in bytes, from the start of the slot.
    pub(super) fn finish(mut self) -> Result<usize, Fault> {
        self.collector.finish(&mut self.collection)?;
        Ok(self.collection.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::ops::Range;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};

    use super::*;

    /// Appends each row as the sum of its numbers.
    struct Sums;

    impl Collect for Sums {
        fn push(
            &mut self,
            batch: &RecordBatch,
            beside: Option<&RecordBatch>,
            to: &mut CollectBuffer,
        ) -> Result<(), Fault> {
            let columns = || beside.into_iter().chain([batch]).flat_map(RecordBatch::columns);
            let number = |column: &ArrayRef, row| column.as_primitive::<Int64Type>().value(row);
            let sum = |row| columns().map(|column| number(column, row)).sum::<i64>();
            to.append(batch.num_rows(), |words| {
                words.iter_mut().enumerate().for_each(|(row, word)| *word = sum(row) as u64);
            })
        }

        fn finish(&mut self, _: &mut CollectBuffer) -> Result<(), Fault> {
            Ok(())
        }
    }

    fn batch(columns: usize, numbers: Range<i64>) -> RecordBatch {
        let column = || Arc::new(Int64Array::from_iter_values(numbers.clone())) as ArrayRef;
        RecordBatch::try_from_iter((0..columns).map(|i| (i.to_string(), column()))).unwrap()
    }

    #[test]
    fn results_stand_beside_the_columns_of_their_rows() {
        // The results are numbers from 0, with companion columns of numbers from 100.
        for (expected_rows, came, columns, expected) in [
            (5, &[5][..], 1, Ok(())),
            (5, &[2, 0, 3], 1, Ok(())),
            (0, &[], 1, Ok(())),
            (5, &[2, 2], 1, Err("1 columns of 4 rows; a scalar function returns one column of 5 rows")),
            (5, &[], 1, Err("1 columns of 0 rows; a scalar function returns one column of 5 rows")),
            (5, &[4, 2], 1, Err("1 columns of 6 rows; a scalar function returns one column of 5 rows")),
            (5, &[5], 2, Err("2 columns of 5 rows; a scalar function returns one column of 5 rows")),
        ] {
            let slot = Arc::new(SharedMemory::new(1 << 12).unwrap());
            let mut collecting = BatchCollector::new(Box::new(Sums), &Limits::default(), slot.clone());
            let result = (0..2).try_for_each(|_| {
                collecting.begin_beside(batch(1, 100..100 + expected_rows));
                let mut at = 0;
                for rows in came {
                    let results = sandbar_batch::encode(&batch(columns, at..at + rows)).unwrap();
                    let buffers: Vec<&[u8]> = results.buffers.iter().map(|(_, bytes)| bytes.as_slice()).collect();
                    collecting.push(&results.header, &buffers).map_err(Fault::from)?;
                    at += rows;
                }
                collecting.end_beside()
            });
            match (result, expected) {
                (Ok(()), Ok(())) => {
                    let mut words = vec![MaybeUninit::uninit(); collecting.finish().unwrap()];
                    let sums = slot.read(0, &mut words).as_chunks().0.iter().map(|word| i64::from_le_bytes(*word));
                    assert!(sums.eq((0..2).flat_map(|_| (0..expected_rows).map(|row| 100 + 2 * row))), "{came:?}");
                }
                (Err(fault), Err(words)) => assert!(fault.message.contains(words), "{fault}"),
                (result, expected) => panic!("{result:?} instead of {expected:?}"),
            }
        }
    }
}
