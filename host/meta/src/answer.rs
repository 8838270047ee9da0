//! What stores answer. Each answer has the revision that it is of.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Key, Value};

/// How many transactions have changed something, counted by the store: one is the empty store.
///
/// Where others have keys in the same etcd, their transactions count too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl Revision {
    /// That of an empty store.
    pub const FIRST: Revision = Revision(1);

    /// The one after it: where to watch from, after a look at this one.
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a lease. The store gives it out, and never again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

/// In hexadecimal, as etcd's own tools show it.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A key and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// What it holds.
    pub value: Value,
    /// The transaction that made it.
    pub create_revision: Revision,
    /// The last transaction that put it.
    pub mod_revision: Revision,
    /// How often it was put since it was made: one at first.
    pub version: u64,
    /// The lease that takes it along when it ends.
    pub lease: Option<LeaseId>,
}

impl Entry {
    /// Bytes of its key and value.
    pub(crate) fn bytes(&self) -> usize {
        self.key.as_bytes().len() + self.value.as_bytes().len()
    }
}

/// The answer to a look at one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Got {
    /// The store's at that time.
    pub revision: Revision,
    /// What there is, if there is.
    pub entry: Option<Entry>,
}

/// Some of the entries of a span, in the order of their keys.
///
/// Each page is of its own revision. To follow a span: read all of its pages, then watch it from behind the *first* page's
/// revision, and pass over changes that are no newer than what one has of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The store's at that time.
    pub revision: Revision,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next page begins ([`Span::starting_at`](crate::Span::starting_at)); `None` after the last.
    pub next: Option<Key>,
}

/// What came of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transacted {
    /// The store's after it: its own, if it changed something.
    pub revision: Revision,
    /// Whether its conditions held.
    pub succeeded: bool,
    /// One for each operation of the branch that was taken.
    pub outcomes: Vec<Outcome>,
}

/// What came of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was put.
    Put,
    /// So many entries were deleted.
    Deleted(u64),
}

/// A lease begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The store's at that time; leases don't change it.
    pub revision: Revision,
    /// Its name.
    pub lease: LeaseId,
    /// Seconds until it ends unless it is kept alive. May be more than was asked for: etcd has a least one of its own.
    pub ttl_s: u32,
}

/// A lease goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAlive {
    /// The store's at that time.
    pub revision: Revision,
    /// Seconds from now until it ends.
    pub ttl_s: u32,
}

/// A lease has ended, and its keys are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The store's after it: its own, if there were keys.
    pub revision: Revision,
}

/// What a transaction, or the end of a lease, did to one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It was put, and is this now.
    Put(Entry),
    /// It was deleted.
    Deleted {
        /// The key.
        key: Key,
        /// The transaction that did it.
        revision: Revision,
    },
}

impl Change {
    /// Which key.
    pub fn key(&self) -> &Key {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Deleted { key, .. } => key,
        }
    }

    /// By which transaction.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put(entry) => entry.mod_revision,
            Change::Deleted { revision, .. } => *revision,
        }
    }

    /// Bytes of its key and value.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Change::Put(entry) => entry.bytes(),
            Change::Deleted { key, .. } => key.as_bytes().len(),
        }
    }
}
