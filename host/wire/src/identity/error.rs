//! Errors of keys, certificates and the folders that store them.

use std::io;
use std::path::PathBuf;

use super::PeerError;
use crate::blame::Blame;
use crate::clock::Timestamp;

/// Why an identity or an authority can't be created, read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file or folder operation failed.
    #[error("{path}: {reason}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// Other users can read a secret.
    #[error(
        "{path} is accessible to other users (mode {mode:04o}): run `chmod go= {path}`, and replace its keys if \
         somebody may have read them",
        path = path.display()
    )]
    Exposed {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file or folder belongs to another user.
    #[error("{path} belongs to user {owner}, but this process runs as user {user}", path = path.display())]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// The user id of this process.
        user: u32,
    },
    /// Another process runs this node.
    #[error("{path} is in use by process {process}: only one process at a time can run this node", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process id in its lock file.
        process: String,
    },
    /// The folder has an authority already.
    #[error("{path} has an authority already: a new one would invalidate all certificates of its cluster", path = path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file is missing.
    #[error("{path} has no {item}", path = path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
        /// The missing file.
        item: &'static str,
    },
    /// Stored or received data does not parse or does not match.
    #[error("{item} is malformed: {reason}")]
    Malformed {
        /// What the data should be.
        item: &'static str,
        /// The reason.
        reason: String,
    },
    /// A certificate signing request is malformed, or was not signed with its key.
    #[error("the certificate signing request is invalid: {0}")]
    Request(String),
    /// The lifetime of a certificate or token is out of range.
    #[error("the lifetime is {requested_s} s, not from 1 s to {max_s} s")]
    Lifetime {
        /// Requested lifetime, in seconds.
        requested_s: u64,
        /// Maximum lifetime, in seconds.
        max_s: u64,
    },
    /// The authority's own certificate is expired.
    #[error("the authority's certificate expired {ended}, and the clock says {now}: create a new authority")]
    AuthorityEnded {
        /// End of its validity.
        ended: Timestamp,
        /// This machine's clock.
        now: Timestamp,
    },
    /// Peers would reject this end's own certificate.
    #[error("this machine's certificate is invalid: {0}")]
    Own(#[from] PeerError),
    /// A cryptographic operation failed.
    #[error("cryptography failed: {0}")]
    Crypto(String),
}

impl IdentityError {
    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            IdentityError::Request(_) => Blame::Peer,
            IdentityError::Crypto(_) => Blame::Host,
            _ => Blame::Operator,
        }
    }

    /// Returns the stable error code.
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
