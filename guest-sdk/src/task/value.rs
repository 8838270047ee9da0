//! Values: what tasks take and return, and what objects hold.

use std::mem::MaybeUninit;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::json;
use super::object::captured;
use crate::host;

/// Longer values are read into memory of the heap.
const STACK_BYTES_MAX: usize = 512;

/// What a task can take and return: whatever implements `serde::Serialize` and `serde::Deserialize` and borrows nothing, or
/// a [`Batch`](crate::Batch).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no value that a task takes or returns",
    label = "not a value",
    note = "it is a `Batch`, or it implements `serde::Serialize` and `serde::Deserialize` and borrows nothing"
)]
pub trait Value: Sized {
    /// Gives `take` the value's bytes, in parts one behind another, and the numbers of the objects that it contains. It may
    /// write them into `scratch`.
    ///
    /// # Errors
    /// When it can't be written, and why.
    #[doc(hidden)]
    fn write<T>(&self, scratch: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String>;

    /// Reads what `write` wrote.
    ///
    /// # Errors
    /// When the bytes are those of another value.
    #[doc(hidden)]
    fn read(bytes: Bytes<'_>) -> Result<Self, String>;

    /// Reads it from JSON.
    ///
    /// # Errors
    /// When that is another value, or the value has no JSON.
    #[doc(hidden)]
    fn from_json(text: &str) -> Result<Self, String>;

    /// The value of an argument that is left out, if the type has one: `None`, of an `Option`.
    #[doc(hidden)]
    fn absent() -> Option<Self> {
        None
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// When it has none, and why.
    #[doc(hidden)]
    fn to_json(&self) -> Result<Vec<u8>, String>;
}

/// Memory that is used again.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) bytes: Vec<u8>,
    pub(super) objects: Vec<u64>,
}

/// Where the bytes of a value are.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub enum Bytes<'a> {
    /// In this memory.
    Here(&'a [u8]),
    /// With the host: an object, and how many.
    Object(u64, usize),
}

impl<V: Serialize + DeserializeOwned> Value for V {
    fn write<T>(&self, scratch: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String> {
        let Scratch { bytes, objects } = scratch;
        bytes.clear();
        objects.clear();
        captured(objects, || postcard::serialize_with_flavor(self, Appended(bytes))).map_err(|e| e.to_string())?;
        Ok(take(&[bytes], objects))
    }

    fn read(bytes: Bytes<'_>) -> Result<V, String> {
        bytes.with(|bytes| postcard::from_bytes(bytes)).map_err(|e| e.to_string())
    }

    fn from_json(text: &str) -> Result<V, String> {
        json::read(text)
    }

    fn absent() -> Option<V> {
        // Not `json::read`, for which a text may be the word `null`.
        serde_json::from_str("null").ok()
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        json::write(self)
    }
}

impl Bytes<'_> {
    /// Calls `read` with the bytes, copied here where they are not.
    pub(super) fn with<T>(self, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Bytes::Here(bytes) => read(bytes),
            Bytes::Object(_, 0) => read(&[]),
            Bytes::Object(object, len) if len <= STACK_BYTES_MAX => {
                let mut memory = [MaybeUninit::<u8>::uninit(); STACK_BYTES_MAX];
                let at = memory.as_mut_ptr().cast();
                // SAFETY: so many bytes are there, and the host fills them.
                read(unsafe {
                    host::read_object(object, 0, at, len);
                    std::slice::from_raw_parts(at, len)
                })
            }
            Bytes::Object(object, len) => {
                let mut memory = Vec::with_capacity(len);
                // SAFETY: so many bytes are reserved, and the host fills them.
                unsafe {
                    host::read_object(object, 0, memory.as_mut_ptr(), len);
                    memory.set_len(len);
                }
                read(&memory)
            }
        }
    }
}

/// Writes behind what is there.
pub(super) struct Appended<'a>(pub(super) &'a mut Vec<u8>);

impl Flavor for Appended<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
