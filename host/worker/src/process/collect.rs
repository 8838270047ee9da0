//! Batches of a call that become an object here, instead of travelling to the node.

use arrow_array::RecordBatch;
use arrow_buffer::MutableBuffer;
use sandbar_core::{Code, Fault};
use sandbar_sandbox::Refusal;
use sandbar_store::{Object, ObjectWriter};

use super::outcome::ALIGNMENT;
use crate::batches::BatchReader;

/// Makes an object of the batches of a call. It runs in a worker, confined like its guests.
pub trait Collect: Send {
    /// Takes the next batch.
    ///
    /// # Errors
    /// When it is none of those that were expected, or there is no memory.
    fn push(&mut self, batch: &RecordBatch, object: &mut ObjectWriter) -> Result<(), Fault>;

    /// There are no more.
    ///
    /// # Errors
    /// When there is no memory.
    fn finish(self: Box<Self>, object: &mut ObjectWriter) -> Result<(), Fault>;
}

/// What collects the batches of a call of [`crate::Work::Collect`], from its binding's plan and its argument.
pub type Collectors = fn(plan: &[u8], argument: u64) -> Result<Box<dyn Collect>, Fault>;

/// A collector at work.
pub(super) struct Collecting {
    collector: Box<dyn Collect>,
    object: ObjectWriter,
    reader: BatchReader,
}

impl Collecting {
    pub(super) fn new(collector: Box<dyn Collect>) -> Result<Collecting, Fault> {
        let object = ObjectWriter::new().map_err(no_memory)?;
        Ok(Collecting { collector, object, reader: BatchReader::default() })
    }

    /// Takes a batch: its header, and its buffers, which lie at ascending multiples of 64 bytes.
    pub(super) fn push(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let bytes = buffers.iter().map(|b| b.len().next_multiple_of(ALIGNMENT)).sum();
        // The guest goes on to change its memory: the batch is a copy, and still in the cache when it is taken apart.
        let mut body = MutableBuffer::with_capacity(bytes);
        for buffer in buffers {
            body.extend_from_slice(buffer);
            body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
        }
        let batch = self.reader.read(header, &body.into())?;
        Ok(self.collector.push(&batch, &mut self.object)?)
    }

    pub(super) fn finish(mut self) -> Result<Object, Fault> {
        self.collector.finish(&mut self.object)?;
        self.object.seal().map_err(no_memory)
    }
}

fn no_memory(error: std::io::Error) -> Fault {
    Fault::new(Code::Host, format!("memory for an object: {error}"))
}
