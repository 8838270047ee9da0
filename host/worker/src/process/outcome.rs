//! The output of a call: batches and the log, in the slot of its message.
//!
//! Each batch is encoded as length of the header (u64), length of the body (u64), 48 zero bytes, the header padded to
//! 64 bytes, the body. The log follows the last batch, encoded with postcard.

use std::sync::Arc;

use arrow_array::RecordBatch;
use sandbar_core::{Code, Fault, LOG_BYTES_MAX, Limits};
use sandbar_sandbox::{Level, Refusal};
use sandbar_store::SharedMemory;

use super::collect::{BatchCollector, Collect};
use crate::journal;
use crate::protocol::{CallDelivery, INLINE_BYTES_MAX, Output};

pub(crate) const BATCH_PREFIX_BYTES: usize = 64;
const ALIGNMENT: usize = 64;
const LOG_LINES_MAX: usize = 10_000;
/// Bytes of a slot for the log, in addition to the output.
pub(crate) const LOG_SPACE_BYTES: u64 = 2 * LOG_BYTES_MAX;
const MESSAGE_CHARS_MAX: usize = 4000;

/// Gathers the output of a call under its limits: in a buffer while it is small, then in the slot.
pub(crate) struct Outcome {
    limits: Limits,
    /// Buffered output; empty once it is in the slot.
    data: Vec<u8>,
    slot: Option<Arc<SharedMemory>>,
    /// Bytes written to the slot.
    slot_bytes_used: usize,
    /// Collector of the batches, if the call has one.
    collector: Option<BatchCollector>,
    /// Whether the slot holds collected output.
    collected: bool,
    batches: u64,
    /// Total bytes of the batches.
    batch_bytes: u64,
    log: Vec<(u8, String)>,
    log_left: u64,
    log_dropped: u64,
    /// Rows of stored input read so far.
    rows: u64,
    /// Memory that keeps the log if this process is killed.
    journal: Option<Arc<SharedMemory>>,
    memory_bytes: u64,
}

impl Outcome {
    pub(crate) fn new(limits: Limits, slot: Option<Arc<SharedMemory>>, journal: Option<Arc<SharedMemory>>) -> Self {
        Outcome {
            limits,
            data: Vec::new(),
            slot,
            slot_bytes_used: 0,
            collector: None,
            collected: false,
            batches: 0,
            batch_bytes: 0,
            log: Vec::new(),
            log_left: limits.log_bytes_max,
            log_dropped: 0,
            rows: 0,
            journal,
            memory_bytes: 0,
        }
    }

    /// Sets the collector of the batches that follow.
    pub(super) fn collect(&mut self, collect: Box<dyn Collect>) -> Result<(), Fault> {
        let slot = self.slot.clone().ok_or_else(|| Fault::new(Code::Host, "a call without a slot"))?;
        self.collector = Some(BatchCollector::new(collect, &self.limits, slot));
        Ok(())
    }

    /// Sets the companion columns of the next results: a scalar function must return one column with as many rows.
    pub(super) fn begin_beside(&mut self, columns: RecordBatch) {
        if let Some(collector) = &mut self.collector {
            collector.begin_beside(columns);
        }
    }

    /// Checks that results have arrived for all of these rows.
    pub(super) fn end_beside(&mut self) -> Result<(), Fault> {
        self.collector.as_mut().map_or(Ok(()), BatchCollector::end_beside)
    }

    /// Finishes the collector after the last batch.
    pub(super) fn collected(&mut self) -> Result<(), Fault> {
        if let Some(collector) = self.collector.take() {
            self.slot_bytes_used = collector.finish()?;
            self.collected = true;
        }
        Ok(())
    }

    /// Counts rows of stored input.
    pub(super) fn read(&mut self, rows: u64) {
        self.rows += rows;
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn used_memory(&mut self, bytes: u64) {
        self.memory_bytes = self.memory_bytes.max(bytes);
    }

    /// Appends a batch. Its buffers are placed at ascending multiples of 64 bytes, as its header should state; the
    /// reader checks that they do not overlap.
    pub(crate) fn batch(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let body: u64 = buffers.iter().map(|b| b.len().next_multiple_of(ALIGNMENT) as u64).sum();
        let more = (BATCH_PREFIX_BYTES + header.len().next_multiple_of(ALIGNMENT)) as u64 + body;
        let total = self.batch_bytes + more;
        if total > self.limits.output_bytes_max {
            let message =
                format!("output takes {total} bytes, the limit is {} (output_bytes_max)", self.limits.output_bytes_max);
            return Err(Refusal { code: Code::OutputLimit, message });
        }
        (self.batches, self.batch_bytes) = (self.batches + 1, total);
        if let Some(collector) = &mut self.collector {
            return collector.push(header, buffers);
        }
        let mut prefix = [0; BATCH_PREFIX_BYTES];
        prefix[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
        prefix[8..16].copy_from_slice(&body.to_le_bytes());
        [&prefix[..], header].iter().chain(buffers).try_for_each(|part| self.append(part, ALIGNMENT))
    }

    /// Returns the number of batches.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    /// Appends bytes without padding.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.append(bytes, 1)
    }

    /// Appends bytes, and zeros up to a multiple of `alignment`.
    fn append(&mut self, bytes: &[u8], alignment: usize) -> Result<(), Refusal> {
        let padded = bytes.len().next_multiple_of(alignment);
        if self.slot_bytes_used == 0 && self.data.len() + padded <= INLINE_BYTES_MAX {
            self.data.extend_from_slice(bytes);
            self.data.resize(self.data.len() + padded - bytes.len(), 0);
            return Ok(());
        }
        let total = self.data.len() + self.slot_bytes_used + padded;
        let room = if self.collected { u64::MAX } else { self.limits.output_bytes_max.saturating_add(LOG_SPACE_BYTES) };
        let slot = self.slot.as_ref().filter(|slot| total <= slot.bytes() && total as u64 <= room);
        let slot = slot.ok_or_else(|| over_slot(total))?;
        slot.write(self.slot_bytes_used, &self.data);
        self.slot_bytes_used += self.data.len();
        self.data.clear();
        slot.write(self.slot_bytes_used, bytes);
        slot.clear(self.slot_bytes_used + bytes.len(), padded - bytes.len());
        self.slot_bytes_used += padded;
        Ok(())
    }

    pub(crate) fn log(&mut self, level: Level, message: &str) {
        let cost = message.len() as u64 + 16;
        if cost > self.log_left || self.log.len() == LOG_LINES_MAX {
            self.log_dropped += 1;
            return;
        }
        self.log_left -= cost;
        let level = match level {
            Level::Debug => 0,
            Level::Info => 1,
            Level::Warn => 2,
            Level::Error => 3,
        };
        if let Some(memory) = &self.journal {
            journal::append(memory, level, message);
        }
        self.log.push((level, message.to_owned()));
    }

    /// Appends the log, and returns the location of output and log for the node; `None` if there is nothing to report.
    pub(crate) fn deliver(mut self, result: Result<(), Fault>) -> Option<Box<CallDelivery>> {
        if self.log_dropped > 0 {
            self.log.push((2, format!("({} more lines are over the limit log_bytes_max)", self.log_dropped)));
        }
        if result.is_ok() && self.log.is_empty() && self.data.is_empty() && self.slot_bytes_used == 0 && self.rows == 0
        {
            return None;
        }
        let (result, rows) = (result.map_err(shortened), self.rows);
        let delivered = match self.append_log() {
            Ok(log_bytes) => {
                let output = if self.slot_bytes_used == 0 {
                    Output::Inline(self.data)
                } else {
                    Output::Slot(self.slot_bytes_used as u64)
                };
                CallDelivery { result: result.map_err(Box::new), output, log_bytes, rows }
            }
            Err(fault) => CallDelivery::empty(result.and(Err(fault))),
        };
        Some(delivered.into())
    }

    /// Appends the log, if it has any lines. Returns its bytes.
    fn append_log(&mut self) -> Result<u64, Fault> {
        if self.log.is_empty() {
            return Ok(0);
        }
        let log = postcard::to_stdvec(&self.log)
            .map_err(|e| Fault::new(Code::Host, format!("the log can't be encoded: {e}")))?;
        self.append(&log, 1)?;
        Ok(log.len() as u64)
    }
}

fn over_slot(bytes: usize) -> Refusal {
    let message = format!("output takes {bytes} bytes, more than a slot holds; raise output_bytes_max of the job");
    Refusal { code: Code::OutputLimit, message }
}

/// Shortens an error message: the guest chooses its text, but not its length.
pub(crate) fn shortened(mut fault: Fault) -> Fault {
    if let Some((end, _)) = fault.message.char_indices().nth(MESSAGE_CHARS_MAX) {
        fault.message.truncate(end);
        fault.message.push('…');
    }
    fault
}
