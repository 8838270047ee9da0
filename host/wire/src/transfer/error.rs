//! Errors of transfers, and the party at fault.

use std::fmt;
use std::io;
use std::ops::Range;

use sandbar_core::{NodeId, ObjectId};
use thiserror::Error;

use super::RootHash;

/// The party at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferBlame {
    /// The holder lied, stalled, or violated the protocol.
    Holder,
    /// The link or the holder's machine failed.
    Link,
    /// The object's owner announced a wrong length, hash or holder.
    Owner,
    /// This machine.
    Local,
}

/// Why a holder was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HolderError {
    /// No connection could be established.
    #[error("can't be reached: {0}")]
    Unreachable(String),
    /// The connection was lost more often than the reconnect limit.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// The holder does not have the object.
    #[error("does not have the object")]
    NotFound,
    /// The holder's object has another length.
    #[error("its object has {actual} bytes, {announced} were announced")]
    OtherLength {
        /// Announced bytes.
        announced: u64,
        /// The holder's bytes.
        actual: u64,
    },
    /// The holder's object has another hash.
    #[error("its object has another hash than was announced")]
    OtherRoot,
    /// The holder sent bytes that do not match their hash.
    #[error("sent wrong bytes for bytes {} to {} of the object", range.start, range.end)]
    BadChunk {
        /// Byte range in the object.
        range: Range<u64>,
    },
    /// The holder sent hashes that do not lead to the root hash.
    #[error("sent hashes that don't lead to the object's")]
    BadNodes,
    /// The holder violated the protocol.
    #[error("violated the protocol: {0}")]
    Protocol(&'static str),
    /// The holder sent too little for too long.
    #[error("sent {bytes} bytes in {ms} ms")]
    Stalled {
        /// Observed time, in milliseconds.
        ms: u64,
        /// Bytes received in that time.
        bytes: u64,
    },
    /// The holder had nothing to send, or was busy, for too long.
    #[error("had nothing to send for {ms} ms")]
    Idle {
        /// Milliseconds since its last verified group, or since the first request.
        ms: u64,
    },
    /// The holder failed internally.
    #[error("failed to answer")]
    Failed,
}

impl HolderError {
    /// Returns the party at fault.
    pub fn blame(&self) -> TransferBlame {
        match self {
            HolderError::Unreachable(_) | HolderError::ConnectionLost(_) | HolderError::Idle { .. } => {
                TransferBlame::Link
            }
            HolderError::NotFound | HolderError::OtherLength { .. } | HolderError::OtherRoot => TransferBlame::Owner,
            HolderError::BadChunk { .. } | HolderError::BadNodes | HolderError::Protocol(_) => TransferBlame::Holder,
            HolderError::Stalled { .. } | HolderError::Failed => TransferBlame::Holder,
        }
    }

    /// Returns whether the holder lied or violated the protocol, and should receive no further requests.
    pub fn is_dishonest(&self) -> bool {
        matches!(self, HolderError::BadChunk { .. } | HolderError::BadNodes | HolderError::Protocol(_))
    }
}

/// A dropped holder and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedHolder {
    /// The holder.
    pub holder: NodeId,
    /// The reason.
    pub error: HolderError,
}

/// Dropped holders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailedHolders(pub Vec<FailedHolder>);

impl fmt::Display for FailedHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none is known");
        }
        for (i, failed) in self.0.iter().enumerate() {
            write!(f, "{}node {} {}", if i > 0 { "; " } else { "" }, failed.holder, failed.error)?;
        }
        Ok(())
    }
}

/// Why a fetch failed.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The object is larger than the limit, or than the memory for fetches.
    #[error("object {} has {bytes} bytes, at most {max} can be fetched", object.short())]
    TooLarge {
        /// The object.
        object: ObjectId,
        /// Its bytes.
        bytes: u64,
        /// Maximum bytes.
        max: u64,
    },
    /// The queue for memory is full.
    #[error("object {}: {max} fetches wait for memory already", object.short())]
    TooManyWaiting {
        /// The object.
        object: ObjectId,
        /// Maximum waiting fetches.
        max: usize,
    },
    /// The caller could not reserve memory.
    #[error("object {}: no memory for its {bytes} bytes: {error}", object.short())]
    Memory {
        /// The object.
        object: ObjectId,
        /// Its bytes.
        bytes: u64,
        /// The caller's error.
        error: io::Error,
    },
    /// All holders were dropped.
    #[error("object {}: no holder is left: {failed}", object.short())]
    NoHolder {
        /// The object.
        object: ObjectId,
        /// The holders that were tried, and why each was dropped.
        failed: FailedHolders,
    },
    /// A prefetch gave up its memory to a higher priority.
    #[error("object {}: its prefetch released its memory", object.short())]
    Yielded {
        /// The object.
        object: ObjectId,
    },
    /// An empty object was announced with another hash than that of no bytes.
    #[error("object {}: its bytes can't have the hash {root:?}", object.short())]
    WrongEmptyHash {
        /// The object.
        object: ObjectId,
        /// The announced hash.
        root: RootHash,
    },
}

impl FetchError {
    /// Returns the party at fault. Among several holders a dishonest one comes first, then a failed link.
    pub fn blame(&self) -> TransferBlame {
        match self {
            FetchError::NoHolder { failed, .. } => {
                let is_blamed = |blame| failed.0.iter().any(|failed| failed.error.blame() == blame);
                [TransferBlame::Holder, TransferBlame::Link]
                    .into_iter()
                    .find(|blame| is_blamed(*blame))
                    .unwrap_or(TransferBlame::Owner)
            }
            FetchError::WrongEmptyHash { .. } => TransferBlame::Owner,
            _ => TransferBlame::Local,
        }
    }
}
