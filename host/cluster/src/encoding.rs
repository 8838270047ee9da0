//! Encoding of messages, and of values in the cluster's store. A value that can't be encoded is an error that names it:
//! an empty message or value in its place would be decoded as something else, or as nothing.

use std::fmt::Display;

use serde::Serialize;

use crate::error::ClusterError;

/// Encodes a value as JSON.
pub(crate) fn json(name: impl Display, value: &impl Serialize) -> Result<Vec<u8>, ClusterError> {
    serde_json::to_vec(value).map_err(|e| ClusterError::Encode(name.to_string(), e.to_string()))
}

/// Encodes a value with postcard.
pub(crate) fn postcard(name: impl Display, value: &impl Serialize) -> Result<Vec<u8>, ClusterError> {
    postcard::to_stdvec(value).map_err(|e| ClusterError::Encode(name.to_string(), e.to_string()))
}

/// Serializes values as text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn values_that_cannot_be_encoded_are_errors() {
        // JSON has no keys of this type.
        let map = BTreeMap::from([(vec![1], 2)]);
        let error = json("the map", &map).unwrap_err();
        assert!(error.to_string().starts_with("the map can't be encoded: "), "{error}");
        // postcard needs the length of a sequence before its items.
        struct WithoutLength;
        impl Serialize for WithoutLength {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serde::ser::SerializeSeq::end(serializer.serialize_seq(None)?)
            }
        }
        let error = postcard("the sequence", &WithoutLength).unwrap_err();
        assert!(error.to_string().starts_with("the sequence can't be encoded: "), "{error}");
    }
}
