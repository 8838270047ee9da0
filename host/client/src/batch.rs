//! Record batches, as tasks take and return them: in the form of [`sandbar_batch::split_value`].

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use bytes::Bytes;
use sandbar_batch::{ALIGNMENT, EncodedBatch, LayoutError, decode_schema, encode, read, split_value, write_value_head};
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
            let message = format!("object {}: {reason}", self.number().short());
            TaskError { fault: Fault::new(Code::BadOutput, message), chain: Vec::new() }
        })
    }
}

fn write(batch: &RecordBatch) -> Result<Vec<u8>, ClientError> {
    let EncodedBatch { header, buffers, body_bytes } = encode(batch).map_err(|e| ClientError::Value(e.to_string()))?;
    let mut bytes = Vec::with_capacity(header.len() + 2 * ALIGNMENT + body_bytes);
    write_value_head(&header, &mut bytes);
    let body_at = bytes.len();
    for (offset, buffer) in &buffers {
        bytes.resize(body_at + offset, 0);
        bytes.extend_from_slice(buffer);
    }
    bytes.resize(body_at + body_bytes, 0);
    Ok(bytes)
}

/// Decodes the untrusted bytes of a batch, in place if they are aligned.
fn view(whole: &Buffer) -> Result<RecordBatch, LayoutError> {
    let (header, body) = split_value(whole)?;
    let schema = decode_schema(header.schema_bytes())?;
    read(&header, Arc::new(schema), &body)
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
