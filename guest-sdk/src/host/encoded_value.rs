//! Encoded values and errors.

use sandbar_core::TaskError;

/// The bytes of a value, and the objects that it contains.
pub(super) type EncodedValue = (Vec<u8>, Vec<u64>);

pub(super) fn encoded(error: &TaskError) -> Vec<u8> {
    postcard::to_stdvec(error).expect("an error is texts")
}
