//! Responses of stores. Each contains the revision that it reflects.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Key, MetaValue};

/// Number of transactions that changed something, as the store counts them; an empty store has revision 1.
///
/// If others use the same etcd, their transactions count as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl Revision {
    /// Revision of an empty store.
    pub const FIRST: Revision = Revision(1);

    /// Returns the next revision: the one to watch from after a read at this one.
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Id of a lease. The store never reuses an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

/// Hexadecimal, as etcd's tools print it.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A key with its value and metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Value.
    pub value: MetaValue,
    /// Revision of the transaction that created the entry.
    pub create_revision: Revision,
    /// Revision of the last transaction that put the entry.
    pub mod_revision: Revision,
    /// Number of puts since the entry was created, starting at one.
    pub version: u64,
    /// Lease whose end deletes the entry.
    pub lease: Option<LeaseId>,
}

impl Entry {
    /// Returns the bytes of key and value.
    pub(crate) fn bytes(&self) -> usize {
        self.key.as_bytes().len() + self.value.as_bytes().len()
    }
}

/// Response to a read of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetResponse {
    /// Revision of the store at the read.
    pub revision: Revision,
    /// Entry, if the key exists.
    pub entry: Option<Entry>,
}

/// A page of the entries of a range, in key order.
///
/// Each page has its own revision. To follow a range: read all of its pages, then watch it from the revision after the
/// *first* page's, and skip changes that are not newer than the entry that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPage {
    /// Revision of the store at the read.
    pub revision: Revision,
    /// Entries.
    pub entries: Vec<Entry>,
    /// Start of the next page ([`KeyRange::starting_at`](crate::KeyRange::starting_at)); `None` after the last page.
    pub next: Option<Key>,
}

/// Response to a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactResponse {
    /// Revision of the store afterwards: the transaction's own, if it changed something.
    pub revision: Revision,
    /// Whether the conditions held.
    pub succeeded: bool,
    /// One result for each operation of the executed branch.
    pub outcomes: Vec<OperationResult>,
}

/// Result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationResult {
    /// The entry was put.
    Put,
    /// This many entries were deleted.
    Deleted(u64),
}

/// Response to a lease grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantResponse {
    /// Revision of the store; leases do not change it.
    pub revision: Revision,
    /// Id of the lease.
    pub lease: LeaseId,
    /// Time to live in seconds. May exceed the request: etcd has a minimum.
    pub ttl_s: u32,
}

/// Response to a lease renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepAliveResponse {
    /// Revision of the store.
    pub revision: Revision,
    /// Remaining time to live in seconds.
    pub ttl_s: u32,
}

/// Response to a lease revocation: the lease has ended, and its keys are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeResponse {
    /// Revision of the store afterwards: the revocation's own, if the lease had keys.
    pub revision: Revision,
}

/// The change of one key by a transaction or by the end of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The entry was put and has this state.
    Put(Entry),
    /// The entry was deleted.
    Deleted {
        /// Key.
        key: Key,
        /// Revision of the deletion.
        revision: Revision,
    },
}

impl Change {
    /// Returns the key.
    pub fn key(&self) -> &Key {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Deleted { key, .. } => key,
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put(entry) => entry.mod_revision,
            Change::Deleted { revision, .. } => *revision,
        }
    }

    /// Returns the bytes of key and value.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Change::Put(entry) => entry.bytes(),
            Change::Deleted { key, .. } => key.as_bytes().len(),
        }
    }
}
