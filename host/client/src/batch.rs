//! Record batches, as tasks take and return them.
//!
//! The bytes are those of the SDK's `Batch`: the header's length (eight bytes, little-endian), from byte 64 on the
//! header, and from the next multiple of 64 on the body, both as `sandbar-batch` documents them.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use bytes::Bytes;
use sandbar_batch::{ALIGNMENT, EncodedBatch, Header, decode_schema, encode, read};
use sandbar_core::{Code, Fault, TaskError};

use crate::job::Job;
use crate::{ClientError, ObjectRef};

/// The type of an object that holds a record batch: `ObjectRef<Batch>`. [`Job::put_batch`] stores one,
/// [`ObjectRef::get_batch`] reads it.
#[derive(Debug)]
pub enum Batch {}

impl Job {
    /// Stores a record batch for tasks that take a `Batch`.
    ///
    /// # Errors
    /// As [`Job::put`]; a column has a type that can't cross the boundary.
    pub async fn put_batch(&self, batch: &RecordBatch) -> Result<ObjectRef<Batch>, ClientError> {
        let bytes = write(batch)?;
        self.put_bytes(bytes, &[]).await
    }
}

impl ObjectRef<Batch> {
    /// Waits for the batch. Views a large batch in the node's memory without a copy.
    ///
    /// # Errors
    /// As [`ObjectRef::get`].
    pub async fn get_batch(&self) -> Result<RecordBatch, TaskError> {
        let bytes = self.get_bytes().await?;
        view(&Buffer::from(Bytes::from_owner(bytes))).map_err(|reason| {
            let message = format!("object {} is not a record batch: {reason}", self.number().short());
            TaskError { fault: Fault::new(Code::BadOutput, message), chain: Vec::new() }
        })
    }
}

/// Returns the offset of the body after a header of `len` bytes.
fn body_at(len: usize) -> usize {
    ALIGNMENT + len.next_multiple_of(ALIGNMENT)
}

fn write(batch: &RecordBatch) -> Result<Vec<u8>, ClientError> {
    let EncodedBatch { header, buffers, body_bytes } = encode(batch).map_err(|e| ClientError::Value(e.to_string()))?;
    let body_at = body_at(header.len());
    let mut bytes = Vec::with_capacity(body_at + body_bytes);
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.resize(ALIGNMENT, 0);
    bytes.extend_from_slice(&header);
    for (offset, buffer) in &buffers {
        bytes.resize(body_at + offset, 0);
        bytes.extend_from_slice(buffer);
    }
    bytes.resize(body_at + body_bytes, 0);
    Ok(bytes)
}

/// Decodes the untrusted bytes of a batch, in place if they are aligned.
fn view(whole: &Buffer) -> Result<RecordBatch, String> {
    let short = || format!("it has {} bytes", whole.len());
    let (len, _) = whole.split_first_chunk().ok_or_else(short)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| short())?;
    let head = whole.get(ALIGNMENT..).and_then(|rest| rest.get(..len)).ok_or_else(short)?;
    let header = Header::parse(head).map_err(|e| e.to_string())?;
    let body = body_at(len);
    if whole.len() < body {
        return Err(short());
    }
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    read(&header, Arc::new(schema), &whole.slice(body)).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn batch() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "ccc"]));
        RecordBatch::try_from_iter([("numbers", numbers), ("texts", texts)]).unwrap()
    }

    #[test]
    fn batches_survive_a_round_trip() {
        let bytes = write(&batch()).unwrap();
        assert_eq!(view(&Buffer::from(bytes)).unwrap(), batch());
    }

    #[test]
    fn invalid_bytes_are_errors() {
        let bytes = write(&batch()).unwrap();
        for len in 0..bytes.len() {
            assert!(view(&Buffer::from(&bytes[..len])).is_err(), "{len}");
        }
        let mut long = bytes.clone();
        long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(view(&Buffer::from(long)).is_err());
        // A damaged byte never causes a panic.
        for body in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[body] ^= 0xff;
            let _ = view(&Buffer::from(damaged));
        }
    }
}
