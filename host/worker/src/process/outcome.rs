//! What a call hands back: batches, and its log, into the call's slot.
//!
//! Batches stand one behind another: length of the header (u64), length of the
//! body (u64), 48 bytes of zero, the header padded to 64 bytes, the body. The
//! log follows, in postcard.

use sandbar_core::{Code, Fault, Limits};
use sandbar_sandbox::{Level, Refusal};
use sandbar_store::Scratch;

use crate::protocol::{INLINE_BYTES_MAX, Output};

pub(crate) const BATCH_PREFIX_BYTES: usize = 64;
const ALIGNMENT: usize = 64;
const LOG_LINES_MAX: usize = 10_000;
/// The log may take this much of a slot besides the output.
pub(crate) const LOG_SPACE_BYTES: u64 = 1 << 20;
const MESSAGE_CHARS_MAX: usize = 4000;

/// Collects what a call hands back, under its limits.
pub(super) struct Outcome {
    limits: Limits,
    data: Vec<u8>,
    log: Vec<(u8, String)>,
    log_left: u64,
    log_dropped: u64,
    memory_bytes: u64,
}

impl Outcome {
    pub(super) fn new(limits: Limits) -> Self {
        Outcome {
            limits,
            data: Vec::new(),
            log: Vec::new(),
            log_left: limits.log_bytes_max,
            log_dropped: 0,
            memory_bytes: 0,
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(super) fn used_memory(&mut self, bytes: u64) {
        self.memory_bytes = self.memory_bytes.max(bytes);
    }

    /// Appends a batch. Its buffers go to ascending multiples of 64 bytes, as its
    /// header should say; who reads it checks that.
    pub(super) fn batch(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let body: u64 = buffers.iter().map(|b| b.len().next_multiple_of(ALIGNMENT) as u64).sum();
        let total =
            self.data.len() as u64 + (BATCH_PREFIX_BYTES + header.len().next_multiple_of(ALIGNMENT)) as u64 + body;
        if total > self.limits.output_bytes_max {
            let message =
                format!("hands back {total} bytes, the limit is {} (output_bytes_max)", self.limits.output_bytes_max);
            return Err(Refusal { code: Code::OutputLimit, message });
        }
        self.data.reserve((total as usize) - self.data.len());
        self.data.extend_from_slice(&(header.len() as u64).to_le_bytes());
        self.data.extend_from_slice(&body.to_le_bytes());
        self.data.extend_from_slice(&[0; BATCH_PREFIX_BYTES - 16]);
        for part in std::iter::once(&header).chain(buffers) {
            self.data.extend_from_slice(part);
            self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        }
        Ok(())
    }

    /// Appends bytes as they are.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
    }

    pub(super) fn log(&mut self, level: Level, message: &str) {
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
        self.log.push((level, message.to_owned()));
    }

    /// Puts data and log where the node finds them.
    pub(super) fn deliver(
        mut self,
        result: Result<(), Fault>,
        slot: Option<&Scratch>,
    ) -> (Result<(), Fault>, Output, u64) {
        if self.log_dropped > 0 {
            self.log.push((2, format!("({} more lines are over the limit log_bytes_max)", self.log_dropped)));
        }
        let log = if self.log.is_empty() { Vec::new() } else { postcard::to_stdvec(&self.log).unwrap_or_default() };
        let result = result.map_err(shortened);
        let total = self.data.len() + log.len();
        if total <= INLINE_BYTES_MAX {
            self.data.extend_from_slice(&log);
            return (result, Output::Inline(self.data), log.len() as u64);
        }
        match slot.filter(|slot| total <= slot.bytes()) {
            Some(slot) => {
                slot.write(0, &self.data);
                slot.write(self.data.len(), &log);
                (result, Output::Slot(total as u64), log.len() as u64)
            }
            None => {
                let message =
                    format!("hands back {total} bytes, more than a slot holds; raise output_bytes_max of the job");
                (result.and(Err(Fault::new(Code::OutputLimit, message))), Output::Inline(Vec::new()), 0)
            }
        }
    }
}

/// A guest chooses the words of its errors; it does not choose how many.
fn shortened(mut fault: Fault) -> Fault {
    if let Some((end, _)) = fault.message.char_indices().nth(MESSAGE_CHARS_MAX) {
        fault.message.truncate(end);
        fault.message.push('…');
    }
    fault
}
