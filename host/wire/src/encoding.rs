//! Encoding of messages whose encoding can't fail.

use std::any::type_name;

use serde::Serialize;

/// Types that postcard always encodes. It fails if its buffer is full, for sequences of unknown length, and if a
/// `Serialize` of its own fails; here the buffer grows, and the types derive `Serialize` from numbers, text, bytes and
/// vectors.
pub(crate) trait AlwaysEncodes: Serialize {
    /// Appends the encoded value to a buffer.
    fn encode_after(&self, start: Vec<u8>) -> Vec<u8> {
        match postcard::to_extend(self, start) {
            Ok(bytes) => bytes,
            // An empty message would be sent, or signed, in its place.
            Err(error) => unreachable!("a {} can't be encoded: {error}", type_name::<Self>()),
        }
    }
}
