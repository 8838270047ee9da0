//! What can be wrong with who this end is.

use std::io;
use std::path::PathBuf;

use super::trust::PeerError;
use crate::blame::Blame;
use crate::clock::Timestamp;

/// Why an identity or an authority can't be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file or folder.
    #[error("{path}: {reason}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// Others than its owner can read a secret.
    #[error(
        "{path} can be read by others (mode {mode:04o}): make it yours alone with `chmod go= {path}`, and make its keys \
         anew if somebody may have read them",
        path = path.display()
    )]
    Exposed {
        /// Which.
        path: PathBuf,
        /// How it is.
        mode: u32,
    },
    /// It is not this user's.
    #[error("{path} belongs to user {owner}, not to {user}, who runs this", path = path.display())]
    Owner {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who runs this.
        user: u32,
    },
    /// Another process is this node.
    #[error("{path} is in use by process {process}: one process at a time is this node", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Which process, as it wrote itself.
        process: String,
    },
    /// There is an authority already.
    #[error("{path} has an authority already: making another would cut off who trusts it", path = path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// There is none.
    #[error("{path} has no {what}", path = path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
        /// What there should be.
        what: &'static str,
    },
    /// Bytes that are not what they should be.
    #[error("{what} is malformed: {reason}")]
    Malformed {
        /// What they should be.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A certificate signing request that is not one, or was not signed by its key.
    #[error("the certificate signing request is no good: {0}")]
    Request(String),
    /// A certificate would be for too long.
    #[error("a certificate lasts from 1 s to {most_s} s, not {asked_s} s")]
    Lifetime {
        /// What was asked for, in seconds.
        asked_s: u64,
        /// The most, in seconds.
        most_s: u64,
    },
    /// The authority's own certificate has ended.
    #[error("the authority's certificate ended {ended}, and the clock says {now}: make a new authority")]
    AuthorityEnded {
        /// When.
        ended: Timestamp,
        /// This machine's clock.
        now: Timestamp,
    },
    /// This end's own certificate would not be accepted by others.
    #[error("the own certificate is no good: {0}")]
    Own(#[from] PeerError),
    /// What signs failed.
    #[error("cryptography failed: {0}")]
    Crypto(String),
}

impl IdentityError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            IdentityError::Request(_) => Blame::Peer,
            IdentityError::Crypto(_) => Blame::Host,
            _ => Blame::Operator,
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        match self {
            IdentityError::Io { .. } => "identity-io",
            IdentityError::Exposed { .. } | IdentityError::Owner { .. } => "identity-exposed",
            IdentityError::InUse { .. } => "identity-in-use",
            IdentityError::Exists { .. } => "authority-exists",
            IdentityError::Missing { .. } => "identity-missing",
            IdentityError::Malformed { .. } => "identity-malformed",
            IdentityError::Request(_) => "bad-request",
            IdentityError::Lifetime { .. } => "lifetime",
            IdentityError::AuthorityEnded { .. } => "authority-ended",
            IdentityError::Own(reason) => reason.code(),
            IdentityError::Crypto(_) => "host",
        }
    }
}
