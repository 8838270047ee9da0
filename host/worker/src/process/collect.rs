//! Batches of a call that become something else here, instead of travelling to the node as they are.

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

/// Makes something of the batches of a call. It runs in a worker, confined like its guests.
pub trait Collect: Send {
    /// Takes the next batch. It lies in the memory of the guest, which goes on to change it: nothing that
    /// shares its buffers may be kept, or this process ends. Of a scalar function it is one column, with the columns of
    /// the same rows that it stands `beside`.
    ///
    /// # Errors
    /// When it is none of those that were expected, and those of `to`.
    fn push(&mut self, batch: &RecordBatch, beside: Option<&RecordBatch>, to: &mut CollectBuffer) -> Result<(), Fault>;

    /// There are no more.
    ///
    /// # Errors
    /// Those of `to`.
    fn finish(&mut self, to: &mut CollectBuffer) -> Result<(), Fault>;
}

/// What collects the batches of a call of [`crate::CallWork::Collect`], from its binding's plan and its argument.
pub type Collectors = fn(plan: &[u8], argument: u64) -> Result<Box<dyn Collect>, Fault>;

thread_local! {
    /// Where what was appended last was written first: this memory has its pages, and no more than a slot's.
    static LAST: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// What a call collects, in the slot of its message.
pub struct CollectBuffer {
    slot: Arc<SharedMemory>,
    /// Bytes that it has.
    bytes: usize,
    bytes_max: u64,
}

impl CollectBuffer {
    /// Appends `words` words, which are zero until `fill` writes them.
    ///
    /// # Errors
    /// When there would be more than a call may collect: nothing is written then.
    pub fn append(&mut self, words: usize, fill: impl FnOnce(&mut [u64])) -> Result<(), Fault> {
        let end = words.checked_mul(size_of::<u64>()).and_then(|bytes| self.bytes.checked_add(bytes));
        let end = end.unwrap_or(usize::MAX);
        if end as u64 > self.bytes_max || end > self.slot.bytes() {
            let message = format!(
                "hands back rows that take {end} bytes, the limit is {} ({COLLECTED_BYTES_A_BYTE} times output_bytes_max)",
                self.bytes_max
            );
            return Err(Fault::new(Code::OutputLimit, message));
        }
        // Not in place: the slot's last content is in the cache of the core that has read it.
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

/// A collector at work.
pub struct BatchCollector {
    collector: Box<dyn Collect>,
    collection: CollectBuffer,
    reader: BatchReader,
    beside: Option<CompanionColumns>,
}

/// The columns that the results of a scalar function stand beside.
struct CompanionColumns {
    columns: RecordBatch,
    /// Rows whose results have come.
    taken: usize,
}

/// What is wrong with so many columns and rows as the results of a scalar function for `wanted` rows.
pub fn not_a_column(columns: usize, rows: usize, wanted: usize) -> Fault {
    let message = format!("it hands back {columns} columns of {rows} rows, a scalar function gives one of {wanted}");
    Fault::new(Code::BadOutput, message)
}

impl CompanionColumns {
    /// The columns for the next results.
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
    /// What `collector` makes of batches goes to `slot`, from its start on.
    pub fn new(collector: Box<dyn Collect>, limits: &Limits, slot: Arc<SharedMemory>) -> BatchCollector {
        let collection = CollectBuffer { slot, bytes: 0, bytes_max: collected_bytes_max(limits) };
        BatchCollector { collector, collection, reader: BatchReader::default(), beside: None }
    }

    /// What comes next are the results of a scalar function, which stand beside these columns.
    pub(super) fn begin_beside(&mut self, columns: RecordBatch) {
        self.beside = Some(CompanionColumns { columns, taken: 0 });
    }

    /// All of them should have come.
    pub(super) fn end_beside(&mut self) -> Result<(), Fault> {
        match self.beside.take() {
            Some(CompanionColumns { columns, taken }) if taken < columns.num_rows() => {
                Err(not_a_column(1, taken, columns.num_rows()))
            }
            _ => Ok(()),
        }
    }

    /// Takes a batch of a guest, which waits: its header, and its buffers.
    ///
    /// # Errors
    /// When it is malformed, and those of the collector.
    pub fn push(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let lent = Arc::new(());
        let part = |bytes: &&[u8]| {
            // SAFETY: the bytes are there and stay as they are until this returns, and no buffer of them is left then:
            // each holds `lent`, which is checked below.
            unsafe { Buffer::from_custom_allocation(NonNull::from(*bytes).cast(), bytes.len(), lent.clone()) }
        };
        let parts: Vec<Buffer> = buffers.iter().map(part).collect();
        let pushed = self.reader.read_parts(header, &parts).and_then(|batch| {
            let beside = self.beside.as_mut().map(|beside| beside.next(&batch)).transpose()?;
            self.collector.push(&batch, beside.as_ref(), &mut self.collection)
        });
        drop(parts);
        if Arc::strong_count(&lent) > 1 {
            // Whoever kept them would see them change.
            std::process::abort();
        }
        pushed.map_err(Refusal::from)
    }

    /// Ends it. Gives the bytes that it has, from the start of the slot on.
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
        // Numbers from 0 on, of which there are so many, beside numbers from 100 on.
        for (wanted, came, columns, expected) in [
            (5, &[5][..], 1, Ok(())),
            (5, &[2, 0, 3], 1, Ok(())),
            (0, &[], 1, Ok(())),
            (5, &[2, 2], 1, Err("1 columns of 4 rows, a scalar function gives one of 5")),
            (5, &[], 1, Err("1 columns of 0 rows, a scalar function gives one of 5")),
            (5, &[4, 2], 1, Err("1 columns of 6 rows, a scalar function gives one of 5")),
            (5, &[5], 2, Err("2 columns of 5 rows, a scalar function gives one of 5")),
        ] {
            let slot = Arc::new(SharedMemory::new(1 << 12).unwrap());
            let mut collecting = BatchCollector::new(Box::new(Sums), &Limits::default(), slot.clone());
            let got = (0..2).try_for_each(|_| {
                collecting.begin_beside(batch(1, 100..100 + wanted));
                let mut at = 0;
                for rows in came {
                    let results = sandbar_batch::encode(&batch(columns, at..at + rows)).unwrap();
                    let buffers: Vec<&[u8]> = results.buffers.iter().map(|(_, bytes)| bytes.as_slice()).collect();
                    collecting.push(&results.header, &buffers).map_err(Fault::from)?;
                    at += rows;
                }
                collecting.end_beside()
            });
            match (got, expected) {
                (Ok(()), Ok(())) => {
                    let mut words = vec![MaybeUninit::uninit(); collecting.finish().unwrap()];
                    let sums = slot.read(0, &mut words).as_chunks().0.iter().map(|word| i64::from_le_bytes(*word));
                    assert!(sums.eq((0..2).flat_map(|_| (0..wanted).map(|row| 100 + 2 * row))), "{came:?}");
                }
                (Err(fault), Err(words)) => assert!(fault.message.contains(words), "{fault}"),
                (got, expected) => panic!("{got:?} instead of {expected:?}"),
            }
        }
    }
}
