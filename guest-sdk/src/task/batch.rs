//! Record batches as values, in the form of [`sandbar_batch::split_value`].

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_batch::{
    ALIGNMENT, EncodedBatch, LayoutError, decode_schema, encode, read_trusted, split_value, write_value_head,
};

use super::value::{Scratch, Value, ValueBytes};

/// A [`RecordBatch`] as an argument or result of a task. The columns of a large batch in an object are not copied: they
/// are viewed in the object's own pages.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch(pub RecordBatch);

impl Deref for Batch {
    type Target = RecordBatch;

    fn deref(&self) -> &RecordBatch {
        &self.0
    }
}

impl DerefMut for Batch {
    fn deref_mut(&mut self) -> &mut RecordBatch {
        &mut self.0
    }
}

impl From<RecordBatch> for Batch {
    fn from(batch: RecordBatch) -> Batch {
        Batch(batch)
    }
}

impl From<Batch> for RecordBatch {
    fn from(batch: Batch) -> RecordBatch {
        batch.0
    }
}

impl Value for Batch {
    fn write<T>(&self, scratch: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String> {
        let EncodedBatch { header, buffers, body_bytes } = encode(&self.0).map_err(|e| e.to_string())?;
        let head = &mut scratch.bytes;
        head.clear();
        write_value_head(&header, head);
        let mut parts = Vec::with_capacity(2 + 2 * buffers.len());
        parts.push(head.as_slice());
        let mut end = 0;
        for (offset, buffer) in &buffers {
            parts.extend(gap(offset - end));
            parts.push(buffer);
            end = offset + buffer.len();
        }
        parts.extend(gap(body_bytes - end));
        Ok(take(&parts, &[]))
    }

    fn read(bytes: ValueBytes<'_>) -> Result<Batch, String> {
        viewed(&bytes.into_buffer()).map_err(|e| e.to_string())
    }

    fn from_json(_: &str) -> Result<Batch, String> {
        Err("a record batch has no JSON form".to_owned())
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        Err("a record batch has no JSON form".to_owned())
    }
}

/// Views the bytes of a batch in place.
fn viewed(whole: &Buffer) -> Result<Batch, LayoutError> {
    let (header, body) = split_value(whole)?;
    let schema = decode_schema(header.schema_bytes())?;
    // SAFETY: `write` of this component wrote header and body, and a guest trusts its host.
    Ok(Batch(unsafe { read_trusted(&header, Arc::new(schema), &body) }?))
}

/// Returns `len` bytes of padding.
fn gap(len: usize) -> Option<&'static [u8]> {
    const ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];
    (len > 0).then(|| &ZEROS[..len])
}
