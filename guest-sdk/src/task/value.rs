//! Values: arguments and results of tasks, and the content of objects.

use std::mem::MaybeUninit;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::json;
use super::ref_capture::capture_refs;
use crate::host;

/// Maximum size of a value that is read into a stack buffer, in bytes. Larger values use the heap.
const STACK_BYTES_MAX: usize = 512;

/// An argument or result of a task: any owned type that implements `serde::Serialize` and `serde::Deserialize`, a
/// [`Batch`](crate::Batch), or [`Bytes`](crate::Bytes).
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an argument or a result of a task",
    label = "not a value of a task",
    note = "a value is a `Batch`, `Bytes`, or an owned type that implements `serde::Serialize` and `serde::Deserialize`"
)]
pub trait Value: Sized {
    /// Passes the value's bytes, in parts, and the numbers of the objects that it contains to `take`. May use
    /// `scratch`.
    ///
    /// # Errors
    /// Reports why the value can't be encoded.
    #[doc(hidden)]
    fn write<T>(&self, scratch: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String>;

    /// Decodes the bytes that `write` produced.
    ///
    /// # Errors
    /// Reports bytes of another type.
    #[doc(hidden)]
    fn read(bytes: ValueBytes<'_>) -> Result<Self, String>;

    /// Reads the value from JSON.
    ///
    /// # Errors
    /// Reports JSON of another type, and types without a JSON form.
    #[doc(hidden)]
    fn from_json(text: &str) -> Result<Self, String>;

    /// The value of a missing argument, if the type has one: `None` for an `Option`.
    #[doc(hidden)]
    fn absent() -> Option<Self> {
        None
    }

    /// Writes the value as JSON.
    ///
    /// # Errors
    /// Reports types without a JSON form.
    #[doc(hidden)]
    fn to_json(&self) -> Result<Vec<u8>, String>;
}

/// Recycled memory for encoding.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) bytes: Vec<u8>,
    pub(super) objects: Vec<u64>,
}

/// Location of a value's bytes.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub enum ValueBytes<'a> {
    /// In guest memory.
    Memory(&'a [u8]),
    /// In an object of the host: its number and length.
    Object(u64, usize),
}

impl<V: Serialize + DeserializeOwned> Value for V {
    fn write<T>(&self, scratch: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String> {
        let Scratch { bytes, objects } = scratch;
        bytes.clear();
        objects.clear();
        capture_refs(objects, || postcard::serialize_with_flavor(self, AppendFlavor(bytes)))
            .map_err(|e| e.to_string())?;
        Ok(take(&[bytes], objects))
    }

    fn read(bytes: ValueBytes<'_>) -> Result<V, String> {
        bytes.with(|bytes| postcard::from_bytes(bytes)).map_err(|e| e.to_string())
    }

    fn from_json(text: &str) -> Result<V, String> {
        json::read(text)
    }

    fn absent() -> Option<V> {
        // `json::read` would accept `null` as a string.
        serde_json::from_str("null").ok()
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        json::write(self)
    }
}

impl ValueBytes<'_> {
    /// Calls `read` with the bytes. Copies them from the host if necessary.
    pub(super) fn with<T>(self, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            ValueBytes::Memory(bytes) => read(bytes),
            ValueBytes::Object(_, 0) => read(&[]),
            ValueBytes::Object(object, len) if len <= STACK_BYTES_MAX => {
                let mut memory = [MaybeUninit::<u8>::uninit(); STACK_BYTES_MAX];
                let at = memory.as_mut_ptr().cast();
                // SAFETY: the buffer has at least `len` bytes, and the host fills them.
                read(unsafe {
                    host::read_object(object, 0, at, len);
                    std::slice::from_raw_parts(at, len)
                })
            }
            ValueBytes::Object(object, len) => {
                let mut memory = Vec::with_capacity(len);
                // SAFETY: the vector has capacity for `len` bytes, and the host fills them.
                unsafe {
                    host::read_object(object, 0, memory.as_mut_ptr(), len);
                    memory.set_len(len);
                }
                read(&memory)
            }
        }
    }
}

/// Appends to a vector.
pub(super) struct AppendFlavor<'a>(pub(super) &'a mut Vec<u8>);

impl Flavor for AppendFlavor<'_> {
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

/// Writes a number as postcard does: seven bits per byte, the low bits first.
pub(super) fn write_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}
