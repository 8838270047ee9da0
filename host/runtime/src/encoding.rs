//! Encoding of the messages and values that the runtime creates.

use std::any::type_name;

use sandbar_core::{Argument, TaskError};
use sandbar_worker::program::WorkerMessage;
use serde::Serialize;

/// Types that postcard always encodes. It fails if its buffer is full, for sequences of unknown length, and if a
/// `Serialize` of its own fails; here the buffer grows, and the types derive `Serialize` from numbers, text, bytes and
/// slices.
pub(crate) trait AlwaysEncodes: Serialize {
    /// Encodes the value.
    fn encode(&self) -> Vec<u8> {
        match postcard::to_stdvec(self) {
            Ok(bytes) => bytes,
            // The receiver would decode an empty message or value as another one, or as damaged.
            Err(error) => unreachable!("a {} can't be encoded: {error}", type_name::<Self>()),
        }
    }
}

impl AlwaysEncodes for u64 {}
impl AlwaysEncodes for Option<u64> {}
impl AlwaysEncodes for [Argument<'_>] {}
impl AlwaysEncodes for TaskError {}
impl AlwaysEncodes for WorkerMessage<'_> {}
