//! What a call hands back: batches, and its log, into the slot of its message.
//!
//! Batches stand one behind another: length of the header (u64), length of the
//! body (u64), 48 bytes of zero, the header padded to 64 bytes, the body. The
//! log follows, in postcard.

use std::sync::Arc;

use arrow_array::RecordBatch;
use sandbar_core::{Code, Fault, LOG_BYTES_MAX, Limits};
use sandbar_sandbox::{Level, Refusal};
use sandbar_store::SharedMemory;

use super::collect::{Collect, BatchCollector};
use crate::journal;
use crate::protocol::{CallDelivery, INLINE_BYTES_MAX, Output};

pub(crate) const BATCH_PREFIX_BYTES: usize = 64;
const ALIGNMENT: usize = 64;
const LOG_LINES_MAX: usize = 10_000;
/// The log may take this much of a slot besides the output.
pub(crate) const LOG_SPACE_BYTES: u64 = 2 * LOG_BYTES_MAX;
const MESSAGE_CHARS_MAX: usize = 4000;

/// Keeps what a call hands back, under its limits: here while it is little,
/// then in the slot.
pub(crate) struct Outcome {
    limits: Limits,
    /// Empty once it is in the slot.
    data: Vec<u8>,
    slot: Option<Arc<SharedMemory>>,
    /// Bytes in the slot.
    laid: usize,
    /// What takes the batches instead.
    collecting: Option<BatchCollector>,
    /// Whether what is in the slot was collected.
    collected: bool,
    batches: u64,
    /// Bytes of the batches.
    handed: u64,
    log: Vec<(u8, String)>,
    log_left: u64,
    log_dropped: u64,
    /// Rows that were read here.
    rows: u64,
    /// Where the log is kept in case this process is killed.
    journal: Option<Arc<SharedMemory>>,
    memory_bytes: u64,
}

impl Outcome {
    pub(crate) fn new(limits: Limits, slot: Option<Arc<SharedMemory>>, journal: Option<Arc<SharedMemory>>) -> Self {
        Outcome {
            limits,
            data: Vec::new(),
            slot,
            laid: 0,
            collecting: None,
            collected: false,
            batches: 0,
            handed: 0,
            log: Vec::new(),
            log_left: limits.log_bytes_max,
            log_dropped: 0,
            rows: 0,
            journal,
            memory_bytes: 0,
        }
    }

    /// From here on batches are collected by `collector`.
    pub(super) fn collect(&mut self, collector: Box<dyn Collect>) -> Result<(), Fault> {
        let slot = self.slot.clone().ok_or_else(|| Fault::new(Code::Host, "a call without a slot"))?;
        self.collecting = Some(BatchCollector::new(collector, &self.limits, slot));
        Ok(())
    }

    /// What is collected from here on stands beside these columns: one column, of as many rows.
    pub(super) fn begin_beside(&mut self, columns: RecordBatch) {
        if let Some(collecting) = &mut self.collecting {
            collecting.begin_beside(columns);
        }
    }

    /// It has all come.
    pub(super) fn end_beside(&mut self) -> Result<(), Fault> {
        self.collecting.as_mut().map_or(Ok(()), BatchCollector::end_beside)
    }

    /// There are no more batches to collect.
    pub(super) fn collected(&mut self) -> Result<(), Fault> {
        if let Some(collecting) = self.collecting.take() {
            self.laid = collecting.finish()?;
            self.collected = true;
        }
        Ok(())
    }

    /// So many rows were read here.
    pub(super) fn read(&mut self, rows: u64) {
        self.rows += rows;
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn used_memory(&mut self, bytes: u64) {
        self.memory_bytes = self.memory_bytes.max(bytes);
    }

    /// Appends a batch. Its buffers go to ascending multiples of 64 bytes, as its
    /// header should say: who reads it checks that they do not overlap.
    pub(crate) fn batch(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let body: u64 = buffers.iter().map(|b| b.len().next_multiple_of(ALIGNMENT) as u64).sum();
        let more = (BATCH_PREFIX_BYTES + header.len().next_multiple_of(ALIGNMENT)) as u64 + body;
        let total = self.handed + more;
        if total > self.limits.output_bytes_max {
            let message =
                format!("hands back {total} bytes, the limit is {} (output_bytes_max)", self.limits.output_bytes_max);
            return Err(Refusal { code: Code::OutputLimit, message });
        }
        (self.batches, self.handed) = (self.batches + 1, total);
        if let Some(collecting) = &mut self.collecting {
            return collecting.push(header, buffers);
        }
        let mut prefix = [0; BATCH_PREFIX_BYTES];
        prefix[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
        prefix[8..16].copy_from_slice(&body.to_le_bytes());
        [&prefix[..], header].iter().chain(buffers).try_for_each(|part| self.append(part, ALIGNMENT))
    }

    /// How many batches it has.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    /// Appends bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.append(bytes, 1)
    }

    /// Appends bytes, and zeros up to a multiple of `alignment`.
    fn append(&mut self, bytes: &[u8], alignment: usize) -> Result<(), Refusal> {
        let padded = bytes.len().next_multiple_of(alignment);
        if self.laid == 0 && self.data.len() + padded <= INLINE_BYTES_MAX {
            self.data.extend_from_slice(bytes);
            self.data.resize(self.data.len() + padded - bytes.len(), 0);
            return Ok(());
        }
        let total = self.data.len() + self.laid + padded;
        let room = if self.collected { u64::MAX } else { self.limits.output_bytes_max.saturating_add(LOG_SPACE_BYTES) };
        let slot = self.slot.as_ref().filter(|slot| total <= slot.bytes() && total as u64 <= room);
        let slot = slot.ok_or_else(|| over_slot(total))?;
        slot.write(self.laid, &self.data);
        self.laid += self.data.len();
        self.data.clear();
        slot.write(self.laid, bytes);
        slot.clear(self.laid + bytes.len(), padded - bytes.len());
        self.laid += padded;
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

    /// Puts the log behind the data, and says where the node finds both, if there is anything to say.
    pub(crate) fn deliver(mut self, result: Result<(), Fault>) -> Option<Box<CallDelivery>> {
        if self.log_dropped > 0 {
            self.log.push((2, format!("({} more lines are over the limit log_bytes_max)", self.log_dropped)));
        }
        if result.is_ok() && self.log.is_empty() && self.data.is_empty() && self.laid == 0 && self.rows == 0 {
            return None;
        }
        let log = if self.log.is_empty() { Vec::new() } else { postcard::to_stdvec(&self.log).unwrap_or_default() };
        let (result, rows) = (result.map_err(shortened), self.rows);
        let delivered = match self.append(&log, 1) {
            Ok(()) => {
                let output = if self.laid == 0 { Output::Inline(self.data) } else { Output::Slot(self.laid as u64) };
                CallDelivery { result: result.map_err(Box::new), output, log_bytes: log.len() as u64, rows }
            }
            Err(refusal) => CallDelivery::empty(result.and(Err(refusal.into()))),
        };
        Some(delivered.into())
    }
}

fn over_slot(bytes: usize) -> Refusal {
    let message = format!("hands back {bytes} bytes, more than a slot holds; raise output_bytes_max of the job");
    Refusal { code: Code::OutputLimit, message }
}

/// A guest chooses the words of its errors; it does not choose how many.
pub(crate) fn shortened(mut fault: Fault) -> Fault {
    if let Some((end, _)) = fault.message.char_indices().nth(MESSAGE_CHARS_MAX) {
        fault.message.truncate(end);
        fault.message.push('…');
    }
    fault
}
