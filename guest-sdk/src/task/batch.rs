//! Record batches as values.
//!
//! ```text
//! offset  bytes
//!      0      8  length of the header, H (little-endian)
//!     64      H  header, as `sandbar-batch` documents it
//!      …      …  body, from the next multiple of 64 on
//! ```
//!
//! A consumer that loads these bytes at a multiple of 64 views the columns in place.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_batch::{ALIGNMENT, EncodedBatch, Header, decode_schema, encode, read_trusted};

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
        head.extend_from_slice(&(header.len() as u64).to_le_bytes());
        head.resize(ALIGNMENT, 0);
        head.extend_from_slice(&header);
        head.resize(body_at(header.len()), 0);
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
        viewed(&bytes.into_buffer())
    }

    fn from_json(_: &str) -> Result<Batch, String> {
        Err("a record batch has no JSON form".to_owned())
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        Err("a record batch has no JSON form".to_owned())
    }
}

/// Views the bytes of a batch in place.
fn viewed(whole: &Buffer) -> Result<Batch, String> {
    let short = || format!("{} bytes are not a record batch", whole.len());
    let (len, _) = whole.split_first_chunk().ok_or_else(short)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| short())?;
    let head = whole.get(ALIGNMENT..).and_then(|rest| rest.get(..len)).ok_or_else(short)?;
    let header = Header::parse(head).map_err(|e| e.to_string())?;
    let at = body_at(len);
    if whole.len() < at {
        return Err(short());
    }
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: `write` of this component wrote header and body, and a guest trusts its host.
    let batch = unsafe { read_trusted(&header, Arc::new(schema), &whole.slice(at)) };
    Ok(Batch(batch.map_err(|e| e.to_string())?))
}

/// Offset of the body after a header of `len` bytes.
fn body_at(len: usize) -> usize {
    ALIGNMENT + len.next_multiple_of(ALIGNMENT)
}

/// Returns `len` bytes of padding.
fn gap(len: usize) -> Option<&'static [u8]> {
    const ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];
    (len > 0).then(|| &ZEROS[..len])
}
