//! Errors of peers and their certificates.

use crate::blame::Blame;
use crate::clock::Timestamp;
use crate::name::{ClusterId, Name, Role, Serial, TokenId};
use crate::protocol::{CloseCode, alpn};

/// Why a peer is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It presents no certificate, or a chain of more than two.
    #[error("the peer presented {0} certificates, not one or two")]
    Count(usize),
    /// The certificate does not have the form that the authority issues.
    #[error("the presented certificate is malformed: {0}")]
    Malformed(String),
    /// Another authority signed the certificate, or it was modified.
    #[error("the presented certificate was not signed by the authority of cluster {ours}; join that cluster first")]
    OtherAuthority {
        /// This end's cluster.
        ours: ClusterId,
    },
    /// The peer has no certificate of an authority, and did not use the join protocol.
    #[error("no certificate of cluster {ours} was presented; join that cluster first")]
    NoCertificate {
        /// This end's cluster.
        ours: ClusterId,
    },
    /// The certificate is not valid yet.
    #[error("the presented certificate is not valid before {begins}, and the clock here says {now}; check both clocks")]
    NotYet {
        /// Start of its validity.
        begins: Timestamp,
        /// This end's clock.
        now: Timestamp,
    },
    /// The certificate is expired.
    #[error("the presented certificate expired {ended}, and the clock here says {now}; renew it or join again")]
    Expired {
        /// End of its validity.
        ended: Timestamp,
        /// This end's clock.
        now: Timestamp,
    },
    /// The certificate is revoked.
    #[error("{}; join again if that was a mistake", revoked(peer, token.as_ref(), serial))]
    Revoked {
        /// Role and name.
        peer: String,
        /// Token that was exchanged for a tenant's certificate.
        token: Option<TokenId>,
        /// Serial number of the certificate.
        serial: Serial,
    },
    /// This end does not know which tenants exist.
    #[error("this node can't check certificates of tenants now, as it can't read the cluster's store; retry later")]
    Unchecked,
    /// The peer has another role.
    #[error("a {expected} is expected here, not a {actual}")]
    Role {
        /// Expected role.
        expected: Role,
        /// The peer's role.
        actual: Role,
    },
    /// The peer has another name.
    #[error("{expected:?} was expected, but this is {actual:?}; check the address")]
    Name {
        /// Expected name.
        expected: Name,
        /// The peer's name.
        actual: Name,
    },
    /// The peer has another protocol version.
    #[error("{} is required here, not {}; update one of them", alpn(*.ours), alpn(*.theirs))]
    Version {
        /// This end's version.
        ours: u8,
        /// The peer's version.
        theirs: u8,
    },
    /// The same name is connected with a newer certificate.
    #[error("{0} is connected with a newer certificate; only one process at a time can run a node")]
    OlderCertificate(String),
    /// The same name is connected with another key.
    #[error("{0} is connected with another key; a name belongs to one key until the node is removed")]
    OtherKey(String),
    /// The same name connected again, which replaces the older connection.
    #[error("{0} connected again")]
    Reconnected(String),
    /// A connection limit is reached.
    #[error("the limit of {max} connections {group} is reached; retry later")]
    Full {
        /// What the limit counts.
        group: String,
        /// The limit.
        max: usize,
    },
}

impl PeerError {
    /// Returns the code that closes the connection.
    pub fn close_code(&self) -> CloseCode {
        match self {
            PeerError::Count(_)
            | PeerError::Malformed(_)
            | PeerError::OtherAuthority { .. }
            | PeerError::NoCertificate { .. } => CloseCode::Untrusted,
            PeerError::NotYet { .. } | PeerError::Expired { .. } => CloseCode::Expired,
            PeerError::Revoked { .. } => CloseCode::Revoked,
            PeerError::Role { .. } => CloseCode::Role,
            PeerError::Name { .. } => CloseCode::Name,
            PeerError::Version { .. } => CloseCode::Version,
            PeerError::OlderCertificate(_) | PeerError::OtherKey(_) | PeerError::Reconnected(_) => CloseCode::Replaced,
            PeerError::Full { .. } | PeerError::Unchecked => CloseCode::Busy,
        }
    }

    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            PeerError::NotYet { .. } | PeerError::Expired { .. } | PeerError::Version { .. } => Blame::Operator,
            PeerError::Name { .. } | PeerError::Full { .. } => Blame::Operator,
            PeerError::Unchecked => Blame::Host,
            _ => Blame::Peer,
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        self.close_code().as_str()
    }
}

fn revoked(peer: &str, token: Option<&TokenId>, serial: &Serial) -> String {
    match token {
        Some(token) => format!("{peer} or its token {token} was removed (certificate {serial})"),
        None => format!("{peer} was removed (certificate {serial})"),
    }
}
