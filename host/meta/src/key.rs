//! Keys, values and key ranges.

use std::borrow::Borrow;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum size of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// Errors of keys and key ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key is empty.
    #[error("a key has at least one byte, this one has none")]
    Empty,
    /// A key, or an end of a range, is longer than [`KEY_BYTES_MAX`].
    #[error("bytes of a key: {0}, the limit is 1 to {KEY_BYTES_MAX}")]
    TooLong(usize),
}

/// The key of an entry: 1 to [`KEY_BYTES_MAX`] bytes, with an order that its owner defines.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawBytes", into = "RawBytes")]
pub struct Key(Bytes);

impl Key {
    /// Parses a key.
    ///
    /// # Errors
    /// An empty key, or one that is longer than [`KEY_BYTES_MAX`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Key, KeyError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(KeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(Key(bytes)),
            more => Err(KeyError::TooLong(more)),
        }
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Keys have the order of their bytes.
impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyError;

    fn try_from(text: &str) -> Result<Key, KeyError> {
        Key::new(text.as_bytes().to_vec())
    }
}

impl TryFrom<RawBytes> for Key {
    type Error = KeyError;

    fn try_from(raw: RawBytes) -> Result<Key, KeyError> {
        Key::new(raw.0)
    }
}

impl From<Key> for RawBytes {
    fn from(key: Key) -> RawBytes {
        RawBytes(key.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Escapes bytes that are not ASCII.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

/// The value of an entry: any number of bytes within the store's limit ([`MetaLimits`](crate::MetaLimits)).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "RawBytes", into = "RawBytes")]
pub struct MetaValue(Bytes);

impl MetaValue {
    /// Creates a value from bytes.
    pub fn new(bytes: impl Into<Bytes>) -> MetaValue {
        MetaValue(bytes.into())
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for MetaValue {
    fn from(text: &str) -> MetaValue {
        MetaValue(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<RawBytes> for MetaValue {
    fn from(raw: RawBytes) -> MetaValue {
        MetaValue(raw.0)
    }
}

impl From<MetaValue> for RawBytes {
    fn from(value: MetaValue) -> RawBytes {
        RawBytes(value.0)
    }
}

impl fmt::Debug for MetaValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES_MAX: usize = 64;
        match self.0.len() {
            0..=SHOWN_BYTES_MAX => fmt::Debug::fmt(&self.0, f),
            bytes => write!(f, "{:?}.. ({bytes} bytes)", self.0.slice(..SHOWN_BYTES_MAX)),
        }
    }
}

/// A range of keys: from an inclusive start up to an exclusive end, or without an end.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawKeyRange", into = "RawKeyRange")]
pub struct KeyRange {
    from: Bytes,
    to: Option<Bytes>,
}

impl KeyRange {
    /// The range of all keys.
    pub fn all() -> KeyRange {
        KeyRange { from: Bytes::new(), to: None }
    }

    /// The range of one key.
    pub fn key(key: &Key) -> KeyRange {
        KeyRange { from: key.0.clone(), to: Some([key.as_bytes(), &[0]].concat().into()) }
    }

    /// The range of the keys with a prefix; all keys for an empty prefix.
    ///
    /// # Errors
    /// [`KeyError::TooLong`] if the prefix is longer than a key may be.
    pub fn prefix(prefix: impl Into<Bytes>) -> Result<KeyRange, KeyError> {
        let from = prefix.into();
        if from.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong(from.len()));
        }
        let to = end_of_prefix(&from).map(Bytes::from);
        Ok(KeyRange { from, to })
    }

    /// The range from `from` (inclusive) to `to` (exclusive). Empty if `to` is not after `from`.
    pub fn between(from: &Key, to: &Key) -> KeyRange {
        KeyRange { from: from.0.clone(), to: Some(to.0.clone()) }
    }

    /// The part of the range from `key` on: the next page, if `key` is the last page's `next`.
    pub fn starting_at(&self, key: &Key) -> KeyRange {
        KeyRange { from: self.from.clone().max(key.0.clone()), to: self.to.clone() }
    }

    /// Whether the range contains `key`.
    pub fn contains(&self, key: &Key) -> bool {
        self.from <= key.0 && self.to.as_ref().is_none_or(|to| key.0 < to)
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.to.as_ref().is_some_and(|to| *to <= self.from)
    }

    /// Inclusive start; empty for the start of the key space.
    pub fn start(&self) -> &[u8] {
        &self.from
    }

    /// Exclusive end; `None` for a range without an end.
    pub fn end(&self) -> Option<&[u8]> {
        self.to.as_deref()
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Some(to) => write!(f, "{:?}..{to:?}", self.from),
            None => write!(f, "{:?}..", self.from),
        }
    }
}

/// Returns the first key after all keys with `prefix`; `None` if there is none, as after bytes of 255.
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Serialized bytes, before validation.
#[derive(Clone)]
struct RawBytes(Bytes);

impl Serialize for RawBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for RawBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawBytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| RawBytes(bytes.into_vec().into()))
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct RawKeyRange(RawBytes, Option<RawBytes>);

impl From<KeyRange> for RawKeyRange {
    fn from(span: KeyRange) -> RawKeyRange {
        RawKeyRange(RawBytes(span.from), span.to.map(RawBytes))
    }
}

impl TryFrom<RawKeyRange> for KeyRange {
    type Error = KeyError;

    fn try_from(RawKeyRange(from, to): RawKeyRange) -> Result<KeyRange, KeyError> {
        // The end of a range may have one byte more than a key: the first key after the longest one has it.
        let longest = from.0.len().max(to.as_ref().map_or(0, |to| to.0.len()));
        if longest > KEY_BYTES_MAX + 1 {
            return Err(KeyError::TooLong(longest));
        }
        Ok(KeyRange { from: from.0, to: to.map(|to| to.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> Key {
        Key::new(bytes.to_vec()).unwrap()
    }

    #[test]
    fn which_keys_a_span_has() {
        type Case = (KeyRange, &'static [&'static [u8]], &'static [&'static [u8]]);
        let cases: &[Case] = &[
            (KeyRange::all(), &[b"a", b"\0", b"\xff\xff"], &[]),
            (KeyRange::key(&key(b"a")), &[b"a"], &[b"a\0", b"b", b"\0"]),
            (KeyRange::prefix(&b"a/"[..]).unwrap(), &[b"a/", b"a/x", b"a/\xff"], &[b"a", b"a0", b"b"]),
            (KeyRange::prefix(&b"a\xff"[..]).unwrap(), &[b"a\xff", b"a\xff\xff"], &[b"a", b"b"]),
            (KeyRange::prefix(&b"\xff"[..]).unwrap(), &[b"\xff", b"\xff\xff"], &[b"\xfe"]),
            (KeyRange::prefix(&b""[..]).unwrap(), &[b"a"], &[]),
            (KeyRange::between(&key(b"a"), &key(b"c")), &[b"a", b"b\xff"], &[b"c", b"A"]),
            (KeyRange::between(&key(b"c"), &key(b"a")), &[], &[b"a", b"b", b"c"]),
            (KeyRange::all().starting_at(&key(b"b")), &[b"b", b"c"], &[b"a"]),
            (KeyRange::prefix(&b"b"[..]).unwrap().starting_at(&key(b"a")), &[b"b"], &[b"a", b"c"]),
        ];
        for (span, inside, outside) in cases {
            assert!(inside.iter().all(|k| span.contains(&key(k))), "{span:?} has {inside:?}");
            assert!(!outside.iter().any(|k| span.contains(&key(k))), "{span:?} has none of {outside:?}");
            assert_eq!(span.is_empty(), inside.is_empty(), "{span:?}");
        }
    }

    #[test]
    fn encoded_keys_are_parsed() {
        assert!(Key::new(Bytes::new()).is_err());
        assert!(Key::new(vec![0; KEY_BYTES_MAX]).is_ok());
        assert!(Key::new(vec![0; KEY_BYTES_MAX + 1]).is_err());
        let read =
            |bytes: &[u8]| postcard::from_bytes::<Key>(&postcard::to_stdvec(serde_bytes::Bytes::new(bytes)).unwrap());
        assert_eq!(read(b"a"), Ok(key(b"a")));
        assert!(read(b"").is_err() && read(&[1; KEY_BYTES_MAX + 1]).is_err());
        for span in [KeyRange::all(), KeyRange::key(&key(&[7; KEY_BYTES_MAX])), KeyRange::prefix(&b"x"[..]).unwrap()] {
            assert_eq!(postcard::from_bytes::<KeyRange>(&postcard::to_stdvec(&span).unwrap()), Ok(span));
        }
        let long = RawKeyRange(RawBytes(vec![0; KEY_BYTES_MAX + 2].into()), None);
        assert!(postcard::from_bytes::<KeyRange>(&postcard::to_stdvec(&long).unwrap()).is_err());
    }
}
