//! Detection of encrypted Parquet files. DataFusion's error for them only states that a part of their footer is
//! missing.

use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _};

/// Last bytes of a file with an encrypted footer.
const ENCRYPTED_MAGIC: &[u8] = b"PARE";
/// Last bytes of other files.
const MAGIC: &[u8] = b"PAR1";
/// Maximum bytes of a footer that is inspected.
const FOOTER_BYTES_MAX: u64 = 64 << 20;
/// Maximum depth of nested structs and lists.
const DEPTH_MAX: usize = 16;
/// Field of the footer's struct with the encryption algorithm of other parts of the file.
const ENCRYPTION_ALGORITHM: i64 = 8;

/// Returns whether the file is encrypted.
pub(super) async fn is_encrypted(store: &dyn ObjectStore, location: &ObjectPath, size: u64) -> bool {
    footer_of(store, location, size).await.is_some_and(|footer| footer.is_none_or(|footer| has_field(&footer)))
}

/// Returns the bytes of the footer, or `Some(None)` if they are encrypted.
async fn footer_of(store: &dyn ObjectStore, location: &ObjectPath, size: u64) -> Option<Option<Vec<u8>>> {
    let tail = store.get_range(location, size.checked_sub(8)?..size).await.ok()?;
    let (len, magic) = tail.split_at_checked(4)?;
    if magic == ENCRYPTED_MAGIC {
        return Some(None);
    }
    let len = u64::from(u32::from_le_bytes(len.try_into().ok()?));
    let end = size - 8;
    let begin = end.checked_sub(len).filter(|_| magic == MAGIC && len <= FOOTER_BYTES_MAX)?;
    Some(Some(store.get_range(location, begin..end).await.ok()?.to_vec()))
}

/// Returns whether a footer, a struct in Thrift's compact protocol, has the encryption algorithm.
fn has_field(footer: &[u8]) -> bool {
    let mut reader = ThriftReader { bytes: footer };
    let mut last = 0;
    while let Some((field, kind)) = reader.field(last) {
        if field == ENCRYPTION_ALGORITHM {
            return kind == STRUCT;
        }
        last = field;
        if reader.skip(kind, 0).is_none() {
            return false;
        }
    }
    false
}

const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

struct ThriftReader<'b> {
    bytes: &'b [u8],
}

impl ThriftReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Reads the next field of a struct and its kind; returns `None` at the end.
    fn field(&mut self, last: i64) -> Option<(i64, u8)> {
        let byte = self.byte().filter(|byte| *byte != 0)?;
        let field = match byte >> 4 {
            0 => {
                let number = self.number()?;
                (number >> 1) as i64 ^ -((number & 1) as i64)
            }
            more => last.checked_add(i64::from(more))?,
        };
        Some((field, byte & 0x0f))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match kind {
            // Booleans are encoded in the kind.
            1 | 2 => Some(()),
            3 => self.byte().map(|_| ()),
            4..=6 => self.number().map(|_| ()),
            7 => self.take(8),
            BINARY => {
                let len = self.number()?;
                self.take(len)
            }
            LIST | SET => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
                self.items(len, &[head & 0x0f], depth)
            }
            MAP => match self.number()? {
                0 => Some(()),
                len => {
                    let kinds = self.byte()?;
                    self.items(len, &[kinds >> 4, kinds & 0x0f], depth)
                }
            },
            STRUCT => {
                let mut last = 0;
                while self.bytes.first().is_some_and(|byte| *byte != 0) {
                    let (field, kind) = self.field(last)?;
                    self.skip(kind, depth + 1)?;
                    last = field;
                }
                self.byte().map(|_| ())
            }
            _ => None,
        }
    }

    fn items(&mut self, len: u64, kinds: &[u8], depth: usize) -> Option<()> {
        for _ in 0..len {
            for kind in kinds {
                // Booleans in lists take one byte, so every item takes at least one, and the loop ends with the bytes.
                match kind {
                    1 | 2 => self.byte().map(|_| ())?,
                    kind => self.skip(*kind, depth + 1)?,
                }
            }
        }
        Some(())
    }

    fn take(&mut self, len: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(len).ok()?..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer of version 2 with one row, no columns, and a field of this number and kind.
    fn footer(field: u8, kind: u8) -> Vec<u8> {
        let begin = [0x15, 0x04, 0x19, 0x1c, 0x48, 0x01, b'm', 0x00, 0x16, 0x02, 0x19, 0x0c];
        let rest = [(field - 4) << 4 | kind, 0x1c, 0x00, 0x00, 0x00];
        [&begin[..], &rest[..]].concat()
    }

    #[test]
    fn encryption_metadata_is_detected() {
        assert!(has_field(&footer(8, STRUCT)));
        assert!(!has_field(&footer(7, LIST)));
        assert!(!has_field(&footer(8, BINARY)));
        assert!(!has_field(&[]));
    }

    #[test]
    fn any_bytes_are_a_footer_or_none() {
        let mut random = sandbar_core::Seed::new(3);
        for _ in 0..20_000 {
            let mut bytes = footer(8, STRUCT);
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u32) as usize;
                bytes[at] = random.below(256) as u8;
            }
            has_field(&bytes[random.below(4) as usize..]);
        }
        // A long list of zero-byte items would take forever.
        assert!(!has_field(&[0x19, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]));
        assert!(!has_field(&[[0x1c].repeat(200), vec![0; 200]].concat()));
    }
}
