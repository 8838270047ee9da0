//! Errors of join tokens.

use serde::{Deserialize, Serialize};

use crate::blame::Blame;
use crate::clock::Timestamp;
use crate::name::{ClusterId, Fingerprint, Name, Role, TokenId};

/// Why a token is invalid. No message contains the secret part of the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TokenError {
    /// The text is something else.
    #[error("this is not a join token: join tokens begin with `sbt2-`")]
    Prefix,
    /// The text is truncated.
    #[error(
        "the join token is cut off: it has {has} characters after `sbt2-`{}; copy it again",
        whole.map(|whole| format!(", not {whole}")).unwrap_or_default()
    )]
    Truncated {
        /// Characters after the prefix.
        has: usize,
        /// Expected characters, if the length could be read.
        whole: Option<usize>,
    },
    /// The text has trailing characters.
    #[error("the join token has {has} characters after `sbt2-`, not {whole}; copy it again, without other text")]
    TooLong {
        /// Characters after the prefix.
        has: usize,
        /// Expected characters.
        whole: usize,
    },
    /// The text has a character outside the alphabet.
    #[error("the join token has an invalid character at position {at}; copy it again")]
    Character {
        /// Position, from 1, not counting white space.
        at: usize,
    },
    /// The checksum does not match.
    #[error("the join token is damaged: its checksum does not match; copy it again")]
    Damaged,
    /// The authority did not sign it.
    #[error("join token {id} was not signed by the authority of cluster {cluster}; ask for a new one")]
    Forged {
        /// The token.
        id: TokenId,
        /// This cluster.
        cluster: ClusterId,
    },
    /// It is for another cluster.
    #[error("join token {id} is for cluster {theirs} (authority {}), not {ours}", &authority.to_string()[..16])]
    OtherCluster {
        /// The token.
        id: TokenId,
        /// The token's cluster.
        theirs: ClusterId,
        /// The token's authority.
        authority: Fingerprint,
        /// This cluster.
        ours: ClusterId,
    },
    /// It is expired.
    #[error("join token {id} expired {ended}, and the clock here says {now}; ask for a new one, or set the clock")]
    Expired {
        /// The token.
        id: TokenId,
        /// When it expired.
        ended: Timestamp,
        /// The clock of the machine that checked it.
        now: Timestamp,
    },
    /// It is not valid yet.
    #[error("join token {id} was issued {issued}, and the clock here says {now}; set the clock")]
    NotYet {
        /// The token.
        id: TokenId,
        /// Time of issue, by the authority's clock.
        issued: Timestamp,
        /// The clock of the machine that checked it.
        now: Timestamp,
    },
    /// It is for another role.
    #[error("join token {id} is for a {grants}, not for a {requested}")]
    Role {
        /// The token.
        id: TokenId,
        /// The role that it allows.
        grants: Role,
        /// The requested role.
        requested: Role,
    },
    /// It is for another tenant.
    #[error("join token {id} is for tenant {grants:?}, not {requested:?}")]
    Name {
        /// The token.
        id: TokenId,
        /// The tenant that it allows.
        grants: Name,
        /// The requested tenant.
        requested: Name,
    },
    /// It was revoked.
    #[error("join token {id} was revoked; ask for a new one")]
    Revoked {
        /// The token.
        id: TokenId,
    },
    /// It is for one use, and was used.
    #[error("join token {id} is for one use and was used; ask for a new one")]
    Used {
        /// The token.
        id: TokenId,
    },
}

impl TokenError {
    /// Returns the party at fault: the peer for a forged token, otherwise the operator.
    pub fn blame(&self) -> Blame {
        match self {
            TokenError::Forged { .. } => Blame::Peer,
            _ => Blame::Operator,
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            TokenError::Prefix => "token-prefix",
            TokenError::Truncated { .. } => "token-cut",
            TokenError::TooLong { .. } | TokenError::Character { .. } | TokenError::Damaged => "token-damaged",
            TokenError::Forged { .. } => "token-forged",
            TokenError::OtherCluster { .. } => "token-other-cluster",
            TokenError::Expired { .. } => "token-expired",
            TokenError::NotYet { .. } => "token-not-yet",
            TokenError::Role { .. } | TokenError::Name { .. } => "token-other-role",
            TokenError::Revoked { .. } => "token-revoked",
            TokenError::Used { .. } => "token-used",
        }
    }
}
