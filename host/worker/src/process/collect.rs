//! Batches of a call that become something else here, instead of travelling to the node as they are.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, ToByteSlice as _};
use sandbar_core::{Code, Fault, Limits};
use sandbar_sandbox::Refusal;
use sandbar_store::Scratch;

use crate::batches::BatchReader;
use crate::protocol::{COLLECTED_BYTES_A_BYTE, collected_bytes_max};

/// Makes something of the batches of a call. It runs in a worker, confined like its guests.
pub trait Collect: Send {
    /// Takes the next batch. It lies in the memory of the guest, which goes on to change it: nothing that
    /// shares its buffers may be kept, or this process ends.
    ///
    /// # Errors
    /// When it is none of those that were expected, and those of `to`.
    fn push(&mut self, batch: &RecordBatch, to: &mut Collection) -> Result<(), Fault>;

    /// There are no more.
    ///
    /// # Errors
    /// Those of `to`.
    fn finish(&mut self, to: &mut Collection) -> Result<(), Fault>;
}

/// What collects the batches of a call of [`crate::Work::Collect`], from its binding's plan and its argument.
pub type Collectors = fn(plan: &[u8], argument: u64) -> Result<Box<dyn Collect>, Fault>;

thread_local! {
    /// Where what was appended last was written first: this memory has its pages, and no more than a slot's.
    static LAST: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// What a call collects, in the slot of its message.
pub struct Collection {
    slot: Arc<Scratch>,
    /// Bytes that it has.
    bytes: usize,
    bytes_max: u64,
}

impl Collection {
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
pub struct Collecting {
    collector: Box<dyn Collect>,
    collection: Collection,
    reader: BatchReader,
}

impl Collecting {
    /// What `collector` makes of batches goes to `slot`, from its start on.
    pub fn new(collector: Box<dyn Collect>, limits: &Limits, slot: Arc<Scratch>) -> Collecting {
        let collection = Collection { slot, bytes: 0, bytes_max: collected_bytes_max(limits) };
        Collecting { collector, collection, reader: BatchReader::default() }
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
        let pushed =
            self.reader.read_parts(header, &parts).and_then(|batch| self.collector.push(&batch, &mut self.collection));
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
