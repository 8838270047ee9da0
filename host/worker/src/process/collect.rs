//! Batches of a call that become an object here, instead of travelling to the node.

use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_core::{Code, Fault, Limits};
use sandbar_sandbox::Refusal;
use sandbar_store::{Object, ObjectWriter};

use crate::batches::BatchReader;
use crate::protocol::{OBJECT_BYTES_A_BYTE, object_bytes_max};

/// Makes an object of the batches of a call. It runs in a worker, confined like its guests.
pub trait Collect: Send {
    /// Takes the next batch. It lies in the memory of the guest, which goes on to change it: nothing that
    /// shares its buffers may be kept, or this process ends.
    ///
    /// # Errors
    /// When it is none of those that were expected, or there is no memory.
    fn push(&mut self, batch: &RecordBatch, object: &mut ObjectWriter) -> Result<(), Fault>;

    /// There are no more.
    ///
    /// # Errors
    /// When there is no memory.
    fn finish(&mut self, object: &mut ObjectWriter) -> Result<(), Fault>;
}

/// What collects the batches of a call of [`crate::Work::Collect`], from its binding's plan and its argument.
pub type Collectors = fn(plan: &[u8], argument: u64) -> Result<Box<dyn Collect>, Fault>;

/// A collector at work.
pub(super) struct Collecting {
    collector: Box<dyn Collect>,
    object: ObjectWriter,
    /// What the object may have.
    bytes_max: u64,
    reader: BatchReader,
}

impl Collecting {
    pub(super) fn new(collector: Box<dyn Collect>, limits: &Limits) -> Result<Collecting, Fault> {
        let bytes_max = object_bytes_max(limits);
        let object = ObjectWriter::new(usize::try_from(bytes_max).unwrap_or(usize::MAX)).map_err(no_memory)?;
        Ok(Collecting { collector, object, bytes_max, reader: BatchReader::default() })
    }

    /// Takes a batch of a guest, which waits: its header, and its buffers.
    pub(super) fn push(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let lent = Arc::new(());
        let part = |bytes: &&[u8]| {
            // SAFETY: the bytes are there and stay as they are until this returns, and no buffer of them is left then:
            // each holds `lent`, which is checked below.
            unsafe { Buffer::from_custom_allocation(NonNull::from(*bytes).cast(), bytes.len(), lent.clone()) }
        };
        let parts: Vec<Buffer> = buffers.iter().map(part).collect();
        let pushed =
            self.reader.read_parts(header, &parts).and_then(|batch| self.collector.push(&batch, &mut self.object));
        drop(parts);
        if Arc::strong_count(&lent) > 1 {
            // Whoever kept them would see them change.
            std::process::abort();
        }
        pushed.map_err(|fault| self.over(fault).into())
    }

    /// What the collector failed of: the object's bound, or something of its own.
    fn over(&self, fault: Fault) -> Fault {
        let Some(bytes) = self.object.over() else { return fault };
        let message = format!(
            "hands back rows that take {bytes} bytes, the limit is {} ({OBJECT_BYTES_A_BYTE} times output_bytes_max)",
            self.bytes_max
        );
        Fault::new(Code::OutputLimit, message)
    }

    pub(super) fn finish(mut self) -> Result<Object, Fault> {
        self.collector.finish(&mut self.object).map_err(|fault| self.over(fault))?;
        self.object.seal().map_err(no_memory)
    }
}

fn no_memory(error: std::io::Error) -> Fault {
    Fault::new(Code::Host, format!("memory for an object: {error}"))
}
