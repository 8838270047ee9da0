//! Bytes as values.

use std::fmt;
use std::ops::Deref;

use arrow_buffer::Buffer;

use super::value::{self, Scratch, Value};
use crate::{host, input};

/// Raw bytes as an argument or result of a task, and the content of a [`File`](crate::File). The bytes of a large
/// object are not copied: they are viewed in the object's own pages.
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

/// Converts to an Arrow buffer, for readers that take one.
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

    fn read(bytes: value::ValueBytes<'_>) -> Result<Bytes, String> {
        Ok(Bytes(bytes.into_buffer()))
    }

    fn from_json(_: &str) -> Result<Bytes, String> {
        Err("Bytes have no JSON form: pass a file, and take a `File`".to_owned())
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        Err("Bytes have no JSON form".to_owned())
    }
}

impl value::ValueBytes<'_> {
    /// Returns the bytes aligned for Arrow. Copies them, or maps them if they are many and in an object.
    pub(super) fn into_buffer(self) -> Buffer {
        match self {
            value::ValueBytes::Memory(bytes) => {
                // SAFETY: `buffer` allocated `bytes.len()` bytes at `at`.
                let copy = |at| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
                input::buffer(bytes.len(), copy, |at, _| copy(at))
            }
            value::ValueBytes::Object(object, len) => {
                // SAFETY: `buffer` allocated `len` bytes at `at`.
                let copy = |at| unsafe { host::read_object(object, 0, at, len) };
                // SAFETY: `buffer` allocated whole pages at `at`.
                input::buffer(len, copy, |at, pages| unsafe { host::map_object(object, at, pages) })
            }
        }
    }
}
