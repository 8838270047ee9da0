//! Stored inputs, which the worker reads from a file itself.

use std::fs::File;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use sandbar_batch::EncodedBatch;
use sandbar_core::{Code, Fault};
use sandbar_sandbox::{Input, InputBytes};

use crate::mutex::lock;

/// Rows of a stored input.
pub struct StoredRows {
    /// The batch for the function.
    pub batch: RecordBatch,
    /// Companion columns of the same rows, if the output is collected and the function is scalar.
    pub beside: Option<RecordBatch>,
}

/// Reads stored rows from first to last. Empty batches are skipped.
pub type StoredReader = Box<dyn Iterator<Item = Result<StoredRows, Fault>>>;

/// Creates the reader of a [stored](crate::Payload::Stored) input from an encoded description and a file with arbitrary
/// content. It runs in a worker, confined like its guests: it may read the file at any offset, and nothing else.
pub type StoredReaders = fn(spec: &[u8], file: File) -> Result<StoredReader, Fault>;

pub(super) fn encode(batch: &RecordBatch) -> Result<EncodedBatch, Fault> {
    sandbar_batch::encode(batch).map_err(|e| Fault::new(Code::Columns, e.to_string()))
}

/// Body of the batch read last. Its memory is reused for the next.
#[derive(Clone, Default)]
pub(super) struct StoredBody(Arc<Mutex<Arc<Vec<u8>>>>);

impl StoredBody {
    pub(super) fn set(&self, batch: &EncodedBatch) {
        let mut body = lock(&self.0);
        let mut bytes = Arc::try_unwrap(std::mem::take(&mut *body)).unwrap_or_default();
        bytes.clear();
        bytes.reserve(batch.body_bytes);
        for (at, buffer) in &batch.buffers {
            bytes.resize(*at, 0);
            bytes.extend_from_slice(buffer);
        }
        bytes.resize(batch.body_bytes, 0);
        *body = Arc::new(bytes);
    }

    /// Returns the bytes that the guest may read.
    pub(super) fn shown(&self) -> Input<'static> {
        Input { bytes: InputBytes::Shared(lock(&self.0).clone()), file: None }
    }
}
