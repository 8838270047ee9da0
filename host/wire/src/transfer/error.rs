//! What can go wrong with a transfer, and whose fault it was.

use std::fmt;
use std::io;
use std::ops::Range;

use sandbar_core::{NodeId, ObjectId};
use thiserror::Error;

use super::Root;

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferBlame {
    /// The peer that was asked: it lied, or broke the protocol.
    Holder,
    /// The link or the peer's machine.
    Link,
    /// Whoever said what the object is and who has it.
    Owner,
    /// This machine.
    Here,
}

/// Why a holder was given up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HolderError {
    /// No connection could be made.
    #[error("can't be reached: {0}")]
    Unreachable(String),
    /// The connection was lost, as often as it is made again.
    #[error("connection lost: {0}")]
    Lost(String),
    /// It does not have the object, or not any more.
    #[error("does not have the object")]
    NotHere,
    /// Its object of that id has another length.
    #[error("its object has {is} bytes, {said} were announced")]
    OtherLength {
        /// Bytes that were announced.
        said: u64,
        /// Bytes that it has.
        is: u64,
    },
    /// Its object of that id has other bytes.
    #[error("its object has another hash than was announced")]
    OtherRoot,
    /// It sent bytes that are not the object's.
    #[error("sent wrong bytes for bytes {} to {} of the object", range.start, range.end)]
    BadChunk {
        /// Which bytes of the object.
        range: Range<u64>,
    },
    /// It sent hashes that do not lead to the root.
    #[error("sent hashes that don't lead to the object's")]
    BadNodes,
    /// It sent what the protocol does not have: too much, too little, or something else.
    #[error("broke the protocol: {0}")]
    Protocol(&'static str),
    /// It sent too little for too long.
    #[error("sent {bytes} bytes in {ms} ms")]
    Stalled {
        /// Milliseconds that it was waited for.
        ms: u64,
        /// Bytes that it sent in these.
        bytes: u64,
    },
    /// It said for too long that it has nothing yet, or no time.
    #[error("had nothing to give for {ms} ms")]
    Idle {
        /// Milliseconds since it gave something, or was first asked.
        ms: u64,
    },
    /// It could not answer: something failed there.
    #[error("failed to answer")]
    Failed,
}

impl HolderError {
    /// Whose fault it is.
    pub fn blame(&self) -> TransferBlame {
        match self {
            HolderError::Unreachable(_) | HolderError::Lost(_) | HolderError::Idle { .. } => TransferBlame::Link,
            HolderError::NotHere | HolderError::OtherLength { .. } | HolderError::OtherRoot => TransferBlame::Owner,
            HolderError::BadChunk { .. } | HolderError::BadNodes | HolderError::Protocol(_) => TransferBlame::Holder,
            HolderError::Stalled { .. } | HolderError::Failed => TransferBlame::Holder,
        }
    }

    /// Whether the holder should not be asked for anything any more.
    pub fn is_a_lie(&self) -> bool {
        matches!(self, HolderError::BadChunk { .. } | HolderError::BadNodes | HolderError::Protocol(_))
    }
}

/// A holder that was given up, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// Who.
    pub holder: NodeId,
    /// Why.
    pub error: HolderError,
}

/// Holders that were given up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllGone(pub Vec<Gone>);

impl fmt::Display for AllGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none was named");
        }
        for (i, gone) in self.0.iter().enumerate() {
            write!(f, "{}node {} {}", if i > 0 { "; " } else { "" }, gone.holder, gone.error)?;
        }
        Ok(())
    }
}

/// Why an object was not fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The object is larger than may be fetched, or than memory may ever be.
    #[error("object {} has {bytes} bytes, at most {max} can be fetched", object.short())]
    TooLarge {
        /// Which object.
        object: ObjectId,
        /// How many bytes it has.
        bytes: u64,
        /// How many it may have.
        max: u64,
    },
    /// As many fetches wait for memory as may.
    #[error("object {}: {max} fetches wait for memory already", object.short())]
    TooManyWaiting {
        /// Which object.
        object: ObjectId,
        /// How many may wait.
        max: usize,
    },
    /// There is no memory here for the object.
    #[error("object {}: no memory for its {bytes} bytes: {error}", object.short())]
    Memory {
        /// Which object.
        object: ObjectId,
        /// How many bytes it has.
        bytes: u64,
        /// What the caller's memory said.
        error: io::Error,
    },
    /// No holder is left.
    #[error("object {}: no holder is left: {gone}", object.short())]
    NoHolder {
        /// Which object.
        object: ObjectId,
        /// Each that was tried, and why it was given up.
        gone: AllGone,
    },
    /// The memory of a prefetch is needed for something that is waited for.
    #[error("object {}: its prefetch made room", object.short())]
    Yielded {
        /// Which object.
        object: ObjectId,
    },
    /// An object of no bytes has a hash that is not that of no bytes.
    #[error("object {}: its bytes can't have the hash {root:?}", object.short())]
    BadRoot {
        /// Which object.
        object: ObjectId,
        /// The hash that was announced.
        root: Root,
    },
}

impl FetchError {
    /// Whose fault it is. Of several holders that were given up the worst counts: one that lied.
    pub fn blame(&self) -> TransferBlame {
        match self {
            FetchError::NoHolder { gone, .. } => {
                let of = |blame| gone.0.iter().any(|gone| gone.error.blame() == blame);
                [TransferBlame::Holder, TransferBlame::Link]
                    .into_iter()
                    .find(|blame| of(*blame))
                    .unwrap_or(TransferBlame::Owner)
            }
            FetchError::BadRoot { .. } => TransferBlame::Owner,
            _ => TransferBlame::Here,
        }
    }
}
