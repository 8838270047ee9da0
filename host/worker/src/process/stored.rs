//! Inputs that are stored in a form of their own, and read here.

use std::fs::File;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use sandbar_batch::EncodedBatch;
use sandbar_core::{Code, Fault};
use sandbar_sandbox::{Bytes, Input};

use super::call::lock;

/// Rows of a stored input.
pub struct StoredRows {
    /// What the function gets.
    pub batch: RecordBatch,
    /// The columns of the same rows that its results stand beside, where these are collected and are those of a scalar
    /// function.
    pub beside: Option<RecordBatch>,
}

/// Reads stored rows, from first to last. Batches of none are passed over.
pub type StoredReader = Box<dyn Iterator<Item = Result<StoredRows, Fault>>>;

/// What reads a [stored](crate::Payload::Stored) input: how it is to be read, and its file, which may hold any bytes. It
/// runs in a worker, confined like its guests: it may read the file at any offset, and no more.
pub type StoredReaders = fn(how: &[u8], file: File) -> Result<StoredReader, Fault>;

pub(super) fn encode(batch: &RecordBatch) -> Result<EncodedBatch, Fault> {
    sandbar_batch::encode(batch).map_err(|e| Fault::new(Code::Columns, e.to_string()))
}

/// The body of the batch that was read last, in memory that had the one before.
#[derive(Clone, Default)]
pub(super) struct StoredBody(Arc<Mutex<Arc<Vec<u8>>>>);

impl StoredBody {
    pub(super) fn lay(&self, batch: &EncodedBatch) {
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

    /// What a guest may see.
    pub(super) fn shown(&self) -> Input<'static> {
        Input { bytes: Bytes::Shared(lock(&self.0).clone()), file: None }
    }
}
