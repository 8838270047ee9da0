//! Bytes as values.

use std::fmt;
use std::ops::Deref;

use arrow_buffer::Buffer;

use super::value::{self, Scratch, Value};
use crate::{host, input};

/// Bytes that tasks take and return as they are, and what a [`File`](crate::File) holds. They are not copied where they are
/// many and come as an object: they are viewed in the object's own pages.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(Buffer);

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Buffer::from_vec(bytes))
    }
}

/// As a buffer of Arrow's, for what reads from such.
impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Buffer {
        bytes.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

impl Value for Bytes {
    fn write<T>(&self, _: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String> {
        Ok(take(&[self], &[]))
    }

    fn read(bytes: value::Bytes<'_>) -> Result<Bytes, String> {
        Ok(Bytes(bytes.into_buffer()))
    }

    fn from_json(_: &str) -> Result<Bytes, String> {
        Err("bytes have no JSON: give a file, and take a `File`".to_owned())
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        Err("bytes have no JSON".to_owned())
    }
}

impl value::Bytes<'_> {
    /// The bytes at a multiple of Arrow's alignment: copied, or mapped where they are many and come as an object.
    pub(super) fn into_buffer(self) -> Buffer {
        match self {
            value::Bytes::Here(bytes) => {
                // SAFETY: as many bytes, just allocated.
                let copy = |at| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
                input::buffer(bytes.len(), copy, |at, _| copy(at))
            }
            value::Bytes::Object(object, len) => {
                // SAFETY: as many bytes, just allocated.
                let copy = |at| unsafe { host::read_object(object, 0, at, len) };
                // SAFETY: whole pages, just allocated.
                input::buffer(len, copy, |at, pages| unsafe { host::map_object(object, at, pages) })
            }
        }
    }
}
