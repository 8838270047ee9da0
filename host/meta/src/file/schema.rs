//! Tables of a store file, and the part of them that is loaded into memory.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::path::{Path, PathBuf};

use redb::{Database, ReadTransaction, ReadableDatabase as _, ReadableTable, TableDefinition, TableError};

use super::record;
use crate::change_log::History;
use crate::{Entry, EntryPage, Key, KeyRange, LeaseId, MetaError, MetaLimits, Revision};

/// Version of the tables and their encoding. A change to either increments it and must read the older versions.
pub(super) const SCHEMA: u64 = 1;

pub(super) type Entries<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

/// Counters by name.
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Entries by key: see `record`.
pub(super) const ENTRIES: Entries<'_> = TableDefinition::new("entries");
/// Changes of each transaction by revision: see `record`.
pub(super) const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("history");
/// Period of each lease, in seconds.
pub(super) const LEASES: TableDefinition<'_, u64, u32> = TableDefinition::new("leases");
/// Keys of each lease.
pub(super) const ATTACHED: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("attached");

const SCHEMA_NAME: &str = "schema";
const REVISION: &str = "revision";
const COMPACTED: &str = "compacted";
const NEXT_LEASE: &str = "next_lease";
const BYTES: &str = "bytes";

/// Counters of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreCounters {
    pub(super) revision: Revision,
    /// Revision up to which the history is compacted.
    pub(super) compacted: Revision,
    pub(super) next_lease: u64,
    /// Bytes of all keys and values.
    pub(super) bytes: u64,
}

impl StoreCounters {
    const FIRST: StoreCounters =
        StoreCounters { revision: Revision::FIRST, compacted: Revision(0), next_lease: 1, bytes: 0 };

    pub(super) fn read(meta: &impl ReadableTable<&'static str, u64>) -> Result<StoreCounters, redb::Error> {
        let number = |name| Ok::<u64, redb::Error>(meta.get(name)?.map_or(0, |number| number.value()));
        Ok(StoreCounters {
            revision: Revision(number(REVISION)?),
            compacted: Revision(number(COMPACTED)?),
            next_lease: number(NEXT_LEASE)?,
            bytes: number(BYTES)?,
        })
    }

    pub(super) fn write(&self, meta: &mut redb::Table<'_, &'static str, u64>) -> Result<(), redb::Error> {
        for (name, number) in [
            (REVISION, self.revision.0),
            (COMPACTED, self.compacted.0),
            (NEXT_LEASE, self.next_lease),
            (BYTES, self.bytes),
        ] {
            meta.insert(name, number)?;
        }
        Ok(())
    }
}

/// Creates the tables of an empty store.
pub(super) fn initialise(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(SCHEMA_NAME, SCHEMA)?;
        StoreCounters::FIRST.write(&mut meta)?;
        transaction.open_table(ENTRIES)?;
        transaction.open_table(HISTORY)?;
        transaction.open_table(LEASES)?;
        transaction.open_table(ATTACHED)?;
    }
    Ok(transaction.commit()?)
}

/// The part of a store that is in memory.
#[derive(Debug)]
pub(super) struct LoadedState {
    pub(super) history: History,
    pub(super) leases: Vec<(LeaseId, u32)>,
}

/// Validates the file and loads the part that is kept in memory.
pub(super) fn load(file: &StoreFile, database: &Database, limits: &MetaLimits) -> Result<LoadedState, MetaError> {
    let read = database.begin_read().map_err(|e| file.fault("read", e))?;
    check_schema(file, &read)?;
    let meta = read.open_table(META).map_err(|e| file.fault("read", e))?;
    let numbers = StoreCounters::read(&meta).map_err(|e| file.fault("read", e))?;
    read.open_table(ENTRIES).map_err(|e| file.foreign(e))?;
    read.open_table(ATTACHED).map_err(|e| file.foreign(e))?;
    let history = load_history(file, &read, numbers, limits)?;
    let mut leases = Vec::new();
    let table = read.open_table(LEASES).map_err(|e| file.foreign(e))?;
    for row in table.iter().map_err(|e| file.fault("read", e))? {
        let (id, ttl_s) = row.map_err(|e| file.fault("read", e))?;
        leases.push((LeaseId(id.value()), ttl_s.value()));
    }
    Ok(LoadedState { history, leases })
}

fn check_schema(file: &StoreFile, read: &ReadTransaction) -> Result<(), MetaError> {
    let meta = read.open_table(META).map_err(|e| file.foreign(e))?;
    let found = meta.get(SCHEMA_NAME).map_err(|e| file.fault("read", e))?.map(|number| number.value());
    match found {
        Some(SCHEMA) => Ok(()),
        Some(found) if found > SCHEMA => Err(MetaError::NewerSchema { path: file.path.clone(), found, known: SCHEMA }),
        other => Err(file.damaged(format!("its schema version is {other:?}"))),
    }
}

fn load_history(
    file: &StoreFile,
    read: &ReadTransaction,
    numbers: StoreCounters,
    limits: &MetaLimits,
) -> Result<History, MetaError> {
    let table = read.open_table(HISTORY).map_err(|e| file.foreign(e))?;
    let mut commits = Vec::new();
    let mut expected = numbers.compacted.max(Revision::FIRST).next();
    for row in table.iter().map_err(|e| file.fault("read", e))? {
        let (revision, bytes) = row.map_err(|e| file.fault("read", e))?;
        let revision = Revision(revision.value());
        if revision != expected {
            return Err(file.damaged(format!("its history has revision {revision}, not {expected}")));
        }
        let changes = record::decode_changes(revision, bytes.value()).map_err(|e| file.damaged(e))?;
        commits.push(changes.into());
        expected = expected.next();
    }
    if numbers.revision.next() != expected {
        return Err(file.damaged(format!("its revision is {}, its history ends before {expected}", numbers.revision)));
    }
    let before = Revision(expected.0 - 1 - commits.len() as u64);
    let mut history = History::new(numbers.compacted, before);
    history.push(commits, limits);
    Ok(history)
}

/// A read view of the last commit.
pub(super) struct Snapshot<'a> {
    file: &'a StoreFile,
    read: ReadTransaction,
    pub(super) revision: Revision,
}

impl<'a> Snapshot<'a> {
    pub(super) fn new(file: &'a StoreFile, database: &Database) -> Result<Snapshot<'a>, MetaError> {
        let read = database.begin_read().map_err(|e| file.fault("read", e))?;
        let meta = read.open_table(META).map_err(|e| file.fault("read", e))?;
        let revision = StoreCounters::read(&meta).map_err(|e| file.fault("read", e))?.revision;
        Ok(Snapshot { file, read, revision })
    }

    pub(super) fn entry(&self, key: &Key) -> Result<Option<Entry>, MetaError> {
        let table = self.read.open_table(ENTRIES).map_err(|e| self.file.fault("read", e))?;
        entry(self.file, &table, key.as_bytes())
    }

    pub(super) fn page(&self, span: &KeyRange, limit: usize, limits: &MetaLimits) -> Result<EntryPage, MetaError> {
        let mut page = EntryPage { revision: self.revision, entries: Vec::new(), next: None };
        let entries_max = limits.page_entries(limit);
        let table = self.read.open_table(ENTRIES).map_err(|e| self.file.fault("read", e))?;
        let mut bytes = 0;
        for entry in entries(self.file, &table, span)? {
            let entry = entry?;
            bytes += entry.bytes();
            let is_full = page.entries.len() == entries_max || bytes > limits.page_bytes_max;
            if is_full && !page.entries.is_empty() {
                page.next = Some(entry.key);
                break;
            }
            page.entries.push(entry);
        }
        Ok(page)
    }
}

/// Reads the entry of a key.
pub(super) fn entry(
    file: &StoreFile,
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Entry>, MetaError> {
    let Some(bytes) = table.get(key).map_err(|e| file.fault("read", e))? else { return Ok(None) };
    record::decode_entry(key, bytes.value()).map(Some).map_err(|e| file.damaged(e))
}

/// Iterates over the entries of a range, in key order.
pub(super) fn entries(
    file: &StoreFile,
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    span: &KeyRange,
) -> Result<impl Iterator<Item = Result<Entry, MetaError>>, MetaError> {
    // redb rejects a range that ends before it starts.
    let end = if span.is_empty() { Excluded(span.start()) } else { span.end().map_or(Unbounded, Excluded) };
    let rows = table.range::<&[u8]>((Included(span.start()), end)).map_err(|e| file.fault("read", e))?;
    let file = file.clone();
    Ok(rows.map(move |row| {
        let (key, bytes) = row.map_err(|e| file.fault("read", e))?;
        record::decode_entry(key.value(), bytes.value()).map_err(|e| file.damaged(e))
    }))
}

/// Path of the store, for error messages.
#[derive(Debug, Clone)]
pub(super) struct StoreFile {
    pub(super) path: PathBuf,
}

impl StoreFile {
    pub(super) fn new(path: &Path) -> StoreFile {
        StoreFile { path: path.to_owned() }
    }

    pub(super) fn damaged(&self, reason: impl ToString) -> MetaError {
        MetaError::Damaged { path: self.path.clone(), reason: reason.to_string() }
    }

    /// Converts an error of an operation.
    pub(super) fn fault(&self, doing: &str, error: impl Into<redb::Error>) -> MetaError {
        match error.into() {
            redb::Error::Corrupted(reason) => self.damaged(reason),
            other => MetaError::File { path: self.path.clone(), reason: format!("can't {doing} it: {other}") },
        }
    }

    /// Converts a missing or different table.
    fn foreign(&self, error: TableError) -> MetaError {
        match error {
            TableError::Storage(error) => self.fault("read", error),
            other => MetaError::NotAStore { path: self.path.clone(), reason: other.to_string() },
        }
    }
}
