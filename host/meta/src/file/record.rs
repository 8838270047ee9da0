//! Encoding of entries and changes in the file: a checksum of four bytes, then postcard. The checksum covers the key as
//! well, so that records at a wrong key are detected.

use serde::{Deserialize, Serialize};

use crate::{Change, Entry, Key, LeaseId, MetaValue, Revision};

const CHECKSUM_BYTES: usize = 4;

/// An entry without its key.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row<'a> {
    create_revision: u64,
    mod_revision: u64,
    version: u64,
    lease: Option<u64>,
    #[serde(with = "serde_bytes")]
    value: &'a [u8],
}

/// Encodes an entry.
pub(super) fn encode_entry(entry: &Entry) -> Result<Vec<u8>, String> {
    let row = Row {
        create_revision: entry.create_revision.0,
        mod_revision: entry.mod_revision.0,
        version: entry.version,
        lease: entry.lease.map(|lease| lease.0),
        value: entry.value.as_bytes(),
    };
    seal(entry.key.as_bytes(), &row)
}

/// Decodes the entry of a key.
pub(super) fn decode_entry(key: &[u8], bytes: &[u8]) -> Result<Entry, String> {
    let row: Row<'_> = open(key, bytes)?;
    let key = Key::new(key.to_vec()).map_err(|e| e.to_string())?;
    Ok(Entry {
        key,
        value: MetaValue::new(row.value.to_vec()),
        create_revision: Revision(row.create_revision),
        mod_revision: Revision(row.mod_revision),
        version: row.version,
        lease: row.lease.map(LeaseId),
    })
}

/// Encodes the changes of a transaction.
pub(super) fn encode_changes(revision: Revision, changes: &[Change]) -> Result<Vec<u8>, String> {
    seal(&revision.0.to_le_bytes(), changes)
}

/// Decodes the changes of a revision.
pub(super) fn decode_changes(revision: Revision, bytes: &[u8]) -> Result<Vec<Change>, String> {
    let changes: Vec<Change> = open(&revision.0.to_le_bytes(), bytes)?;
    if changes.is_empty() || changes.iter().any(|change| change.revision() != revision) {
        return Err(format!("the changes of revision {revision} are incomplete"));
    }
    Ok(changes)
}

fn seal<T: Serialize + ?Sized>(location: &[u8], record: &T) -> Result<Vec<u8>, String> {
    let mut bytes = postcard::to_extend(record, vec![0; CHECKSUM_BYTES]).map_err(|e| e.to_string())?;
    let sum = checksum(location, &bytes[CHECKSUM_BYTES..]);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

fn open<'a, T: Deserialize<'a>>(location: &[u8], bytes: &'a [u8]) -> Result<T, String> {
    let Some((sum, rest)) = bytes.split_first_chunk::<CHECKSUM_BYTES>() else {
        return Err(format!("a record has {} bytes, at least {CHECKSUM_BYTES} are required", bytes.len()));
    };
    if u32::from_le_bytes(*sum) != checksum(location, rest) {
        return Err("a record has a wrong checksum".to_owned());
    }
    match postcard::take_from_bytes(rest) {
        Ok((record, [])) => Ok(record),
        Ok((_, more)) => Err(format!("a record has {} surplus bytes", more.len())),
        Err(e) => Err(format!("a record can't be decoded: {e}")),
    }
}

fn checksum(location: &[u8], bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(location);
    sum.update(bytes);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use sandbar_core::Seed;

    use super::*;

    fn entry(seed: &mut Seed) -> Entry {
        let mut bytes = |min: u32, max: u32| -> Vec<u8> {
            let count = min + seed.below(max - min);
            (0..count).map(|_| seed.below(256) as u8).collect()
        };
        Entry {
            key: Key::new(bytes(1, 40)).unwrap(),
            value: MetaValue::new(bytes(0, 200)),
            create_revision: Revision(seed.next_u64() >> seed.below(64)),
            mod_revision: Revision(seed.next_u64() >> seed.below(64)),
            version: seed.next_u64() >> seed.below(64),
            lease: (seed.below(2) == 0).then(|| LeaseId(seed.next_u64())),
        }
    }

    /// Any damage is detected, and nothing panics.
    #[test]
    fn damaged_records_are_refused() {
        for number in 0..2000 {
            let mut seed = Seed::new(number);
            let entry = entry(&mut seed);
            let key = entry.key.as_bytes();
            let bytes = encode_entry(&entry).unwrap();
            assert_eq!(decode_entry(key, &bytes).as_ref(), Ok(&entry), "seed {number}");
            assert!(decode_entry(&[key, b"x"].concat(), &bytes).is_err(), "seed {number}: at another key");
            let changes = vec![
                Change::Put(entry.clone()),
                Change::Deleted { key: entry.key.clone(), revision: entry.mod_revision },
            ];
            let log = encode_changes(entry.mod_revision, &changes).unwrap();
            assert_eq!(decode_changes(entry.mod_revision, &log), Ok(changes), "seed {number}");
            for bytes in [bytes, log] {
                let mut damaged = bytes.clone();
                match seed.below(3) {
                    0 => damaged.truncate(seed.below(bytes.len() as u32) as usize),
                    1 => damaged[seed.below(bytes.len() as u32) as usize] ^= 1 << seed.below(8),
                    _ => damaged.push(seed.below(256) as u8),
                }
                assert!(decode_entry(key, &damaged).is_err(), "seed {number}");
                assert!(decode_changes(entry.mod_revision, &damaged).is_err(), "seed {number}");
            }
        }
    }

    /// Random bytes with a correct checksum are rejected or decoded consistently.
    #[test]
    fn bytes_at_random_do_no_harm() {
        for number in 0..20_000 {
            let mut seed = Seed::new(number);
            let count = seed.below(64);
            let rest: Vec<u8> = (0..count).map(|_| seed.below(256) as u8).collect();
            let sealed = |location: &[u8]| [&checksum(location, &rest).to_le_bytes()[..], &rest].concat();
            if let Ok(entry) = decode_entry(b"key", &sealed(b"key")) {
                assert_eq!(entry.key.as_bytes(), b"key", "seed {number}");
            }
            if let Ok(changes) = decode_changes(Revision(1), &sealed(&1u64.to_le_bytes())) {
                assert!(changes.iter().all(|change| change.revision() == Revision(1)), "seed {number}");
            }
        }
    }
}
