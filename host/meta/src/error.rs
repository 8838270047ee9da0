//! Errors of metadata stores, with the place of the failure and the next step.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{KEY_BYTES_MAX, Key, KeyError, LeaseId, Revision};

/// The kind of a limit in [`MetaLimits`](crate::MetaLimits), or of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitKind {
    /// Bytes of a key.
    KeyBytes,
    /// Bytes of a value.
    ValueBytes,
    /// Conditions, or operations of one branch.
    Operations,
    /// Bytes of a transaction.
    TransactionBytes,
    /// Watchers of a store.
    Watchers,
    /// Leases of a store.
    Leases,
    /// Seconds of a lease.
    LeaseSeconds,
    /// Bytes of a response.
    ResponseBytes,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitKind::KeyBytes => "bytes of a key",
            LimitKind::ValueBytes => "bytes of a value",
            LimitKind::Operations => "conditions or operations of a transaction",
            LimitKind::TransactionBytes => "bytes of a transaction",
            LimitKind::Watchers => "watchers",
            LimitKind::Leases => "leases",
            LimitKind::LeaseSeconds => "seconds of a lease",
            LimitKind::ResponseBytes => "bytes of a response",
        })
    }
}

/// Errors of a metadata store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum MetaError {
    /// A key is empty.
    #[error("a key has at least one byte, this one has none")]
    EmptyKey,
    /// A number exceeds its limit, or is zero.
    #[error("{bound}: {value}, the limit is 1 to {max}")]
    Limit {
        /// Kind of the limit.
        bound: LimitKind,
        /// Actual or requested number.
        value: u64,
        /// Maximum.
        max: u64,
    },
    /// One branch of a transaction puts a key twice, or puts and deletes it.
    #[error("the transaction puts `{0}` twice, or puts and deletes it; a transaction may change a key once")]
    DuplicateKey(Key),
    /// The lease does not exist, or has ended.
    #[error("lease {0} has ended; grant a new lease and put its keys again")]
    LeaseNotFound(LeaseId),
    /// The requested part of the change history was compacted.
    #[error(
        "the change history from revision {from} on is compacted up to {compacted}; read the keys again and watch from there"
    )]
    Compacted {
        /// First revision that was not delivered.
        from: Revision,
        /// Last revision that was compacted.
        compacted: Revision,
    },
    /// The store has reached its maximum size.
    #[error("the store is full: {0}")]
    Full(String),
    /// No member responded, and the request was not applied.
    #[error(
        "{} can't be reached ({reason}); check that a majority of its members runs and is reachable from this machine",
        names(endpoints)
    )]
    Unavailable {
        /// Members that were contacted.
        endpoints: Vec<String>,
        /// Error of the last attempt.
        reason: String,
    },
    /// No response arrived, and the request may have been applied: read the current state.
    #[error(
        "the outcome of a request to {} is unknown ({reason}); read the keys to see whether it was applied",
        names(endpoints)
    )]
    Unknown {
        /// Members that were contacted.
        endpoints: Vec<String>,
        /// Error.
        reason: String,
    },
    /// A member rejected the request; a retry would fail as well.
    #[error("{endpoint} refused: {reason}")]
    Refused {
        /// Member that rejected the request.
        endpoint: String,
        /// Reason, in the member's words.
        reason: String,
    },
    /// Another node or process has the file open.
    #[error("{} is in use by another node; stop that node, or use another file", path.display())]
    InUse {
        /// File.
        path: PathBuf,
    },
    /// The file has another format.
    #[error("{} is not a cluster store ({reason}); pass the path of a store, or a new path to create one", path.display())]
    NotAStore {
        /// File.
        path: PathBuf,
        /// Evidence.
        reason: String,
    },
    /// A newer version of this program wrote the file.
    #[error("{} has schema version {found}, this program supports up to {known}; use the version that wrote it, or a newer one", path.display())]
    NewerSchema {
        /// File.
        path: PathBuf,
        /// Schema version of the file.
        found: u64,
        /// Newest schema version that this program supports.
        known: u64,
    },
    /// The file is damaged.
    #[error("{} is damaged ({reason}); restore it from a copy, or remove it to start with an empty store", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// Evidence.
        reason: String,
    },
    /// Reading or writing the file failed. The request was not applied.
    #[error("{}: {reason}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Failed operation and its error.
        reason: String,
    },
    /// The address of a cluster, or a file that it names, is invalid.
    #[error("`{address}`: {reason}; an address is etcd://HOST:PORT,HOST:PORT[/PREFIX][?ca=FILE&cert=FILE&key=FILE]")]
    Address {
        /// Address.
        address: String,
        /// Reason.
        reason: String,
    },
    /// The store was closed.
    #[error("the store was closed")]
    Closed,
}

impl MetaError {
    pub(crate) fn limit(bound: LimitKind, value: usize, max: usize) -> MetaError {
        MetaError::Limit { bound, value: value as u64, max: max as u64 }
    }

    /// Returns the stable error code.
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

impl From<KeyError> for MetaError {
    fn from(error: KeyError) -> MetaError {
        match error {
            KeyError::Empty => MetaError::EmptyKey,
            KeyError::TooLong(bytes) => MetaError::limit(LimitKind::KeyBytes, bytes, KEY_BYTES_MAX),
        }
    }
}

fn names(endpoints: &[String]) -> String {
    endpoints.join(", ")
}
