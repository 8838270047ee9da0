//! What can go wrong with a store: where, and what to do.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Key, LeaseId, Revision};

/// A bound of [`MetaLimits`](crate::MetaLimits), or of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bound {
    /// Bytes of a key.
    KeyBytes,
    /// Bytes of a value.
    ValueBytes,
    /// Conditions, or operations of a branch.
    Operations,
    /// Bytes of a transaction.
    TransactionBytes,
    /// Watchers of a store.
    Watchers,
    /// Leases of a store.
    Leases,
    /// Seconds of a lease.
    LeaseSeconds,
    /// Bytes of an answer.
    AnswerBytes,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::KeyBytes => "bytes of a key",
            Bound::ValueBytes => "bytes of a value",
            Bound::Operations => "conditions or operations of a transaction",
            Bound::TransactionBytes => "bytes of a transaction",
            Bound::Watchers => "watchers",
            Bound::Leases => "leases",
            Bound::LeaseSeconds => "seconds of a lease",
            Bound::AnswerBytes => "bytes of an answer",
        })
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum MetaError {
    /// A key has at least one byte.
    #[error("a key has at least one byte, this one has none")]
    EmptyKey,
    /// There is more of something than may be, or none.
    #[error("{bound}: {value}, where 1 to {max} may be")]
    Limit {
        /// Of what.
        bound: Bound,
        /// How many there are, or were asked for.
        value: u64,
        /// How many there may be.
        max: u64,
    },
    /// One branch of a transaction puts a key twice, or puts and deletes it.
    #[error("the transaction puts `{0}` twice, or puts and deletes it; it may do one of them")]
    DuplicateKey(Key),
    /// There is no such lease, or no longer.
    #[error("lease {0} has ended; begin another, and put again what it had")]
    LeaseNotFound(LeaseId),
    /// The history that was to be watched is gone.
    #[error(
        "changes from revision {from} on are compacted away up to {compacted}; range the keys again, then watch on"
    )]
    Compacted {
        /// The first that was not given.
        from: Revision,
        /// The last that can't be given any more.
        compacted: Revision,
    },
    /// The store holds as much as it may.
    #[error("the store is full: {0}")]
    Full(String),
    /// Nobody answered. Nothing was done.
    #[error(
        "{} can't be reached ({reason}); see that a majority of its members runs and can be reached from here",
        names(endpoints)
    )]
    Unavailable {
        /// Who was asked.
        endpoints: Vec<String>,
        /// What came of the last try.
        reason: String,
    },
    /// Nobody answered, and whether it was done is not known: read back what there is now.
    #[error("whether it was done is not known ({reason}); asked was {}; read back what there is", names(endpoints))]
    Unknown {
        /// Who was asked.
        endpoints: Vec<String>,
        /// What happened.
        reason: String,
    },
    /// Who was asked will not do it, however often it is asked.
    #[error("{endpoint} refused: {reason}")]
    Refused {
        /// Who was asked.
        endpoint: String,
        /// What it said.
        reason: String,
    },
    /// Another node, or another process, has the file.
    #[error("{} is in use by another node; end that node, or give this one another file", path.display())]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is no store of a cluster ({reason}); give the path of one, or of none, where one is made", path.display())]
    NotAStore {
        /// Which file.
        path: PathBuf,
        /// What was seen.
        reason: String,
    },
    /// The file was made by a newer version of this program.
    #[error("{} has schema {found}, this program knows up to {known}; use the version that wrote it, or a newer one", path.display())]
    NewerSchema {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        found: u64,
        /// The newest that is known here.
        known: u64,
    },
    /// The file is not as it was left.
    #[error("{} is damaged ({reason}); put a copy of it in its place, or begin anew without it", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What was seen.
        reason: String,
    },
    /// The file can't be read or written. Nothing was done.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What was tried, and what happened.
        reason: String,
    },
    /// An address, or what it leads to, makes no sense.
    #[error("`{address}`: {reason}; an address is etcd://HOST:PORT,HOST:PORT[/PREFIX][?ca=FILE&cert=FILE&key=FILE]")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store was closed.
    #[error("the store was closed")]
    Closed,
}

impl MetaError {
    pub(crate) fn limit(bound: Bound, value: usize, max: usize) -> MetaError {
        MetaError::Limit { bound, value: value as u64, max: max as u64 }
    }

    /// A text that stays, whatever the words are.
    pub fn code(&self) -> &'static str {
        match self {
            MetaError::EmptyKey => "meta-empty-key",
            MetaError::Limit { .. } => "meta-limit",
            MetaError::DuplicateKey(_) => "meta-duplicate-key",
            MetaError::LeaseNotFound(_) => "meta-lease-not-found",
            MetaError::Compacted { .. } => "meta-compacted",
            MetaError::Full(_) => "meta-full",
            MetaError::Unavailable { .. } => "meta-unavailable",
            MetaError::Unknown { .. } => "meta-unknown",
            MetaError::Refused { .. } => "meta-refused",
            MetaError::InUse { .. } => "meta-in-use",
            MetaError::NotAStore { .. } => "meta-not-a-store",
            MetaError::NewerSchema { .. } => "meta-newer-schema",
            MetaError::Damaged { .. } => "meta-damaged",
            MetaError::File { .. } => "meta-file",
            MetaError::Address { .. } => "meta-address",
            MetaError::Closed => "meta-closed",
        }
    }
}

fn names(endpoints: &[String]) -> String {
    endpoints.join(", ")
}
