//! Join tokens: signed, short-lived permissions to join a cluster.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{IdentityError, TrustAnchor, token_text};
use crate::blame::Blame;
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::name::{ClusterId, Fingerprint, Name, Role, TokenId};

/// Default lifetime of a token, in seconds: an hour.
pub const TOKEN_LIFETIME_S: u64 = 3_600;
/// Maximum lifetime of a token, in seconds: a day.
pub const TOKEN_LIFETIME_S_MAX: u64 = 86_400;

/// Domain separation: prefixed to the signed bytes, so that no other signature of the authority is valid for a token.
const CONTEXT: &[u8] = b"sandbar join token 1\0";
const SIGNATURE_BYTES: usize = 64;

/// The role that a token allows to join as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinGrant {
    /// A node, under a name of its choice.
    Node,
    /// The tenant with this name.
    Tenant(Name),
}

impl JoinGrant {
    /// Returns the role.
    pub fn role(&self) -> Role {
        match self {
            JoinGrant::Node => Role::Node,
            JoinGrant::Tenant(_) => Role::Tenant,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenBody {
    pub id: TokenId,
    pub cluster: ClusterId,
    pub grant: JoinGrant,
    pub issued: Timestamp,
    pub expires: Timestamp,
    pub authority: Fingerprint,
}

/// A join token. Its text is a secret; its [`id`](JoinToken::id) is not.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    body: TokenBody,
    signature: [u8; SIGNATURE_BYTES],
}

/// Why a token is invalid. No message contains the secret part of the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TokenError {
    /// The text is something else.
    #[error("this is not a join token: join tokens begin with `sbt1-`")]
    Prefix,
    /// The text is truncated.
    #[error(
        "the join token is cut off: it has {has} characters after `sbt1-`{}; copy it again",
        whole.map(|whole| format!(", not {whole}")).unwrap_or_default()
    )]
    Truncated {
        /// Characters after the prefix.
        has: usize,
        /// Expected characters, if the length could be read.
        whole: Option<usize>,
    },
    /// The text has trailing characters.
    #[error("the join token has {has} characters after `sbt1-`, not {whole}; copy it again, without other text")]
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
        }
    }
}

impl JoinToken {
    pub(super) fn sign(
        body: TokenBody,
        sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, IdentityError>,
    ) -> Result<JoinToken, IdentityError> {
        let signature = sign(&message(&body))?;
        let wrong = |_| IdentityError::Crypto("a signature has an unexpected length".to_owned());
        Ok(JoinToken { body, signature: signature.try_into().map_err(wrong)? })
    }

    /// Returns the id, by which the token can be revoked.
    pub fn id(&self) -> TokenId {
        self.body.id
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &ClusterId {
        &self.body.cluster
    }

    /// Returns the role that the token allows to join as.
    pub fn grant(&self) -> &JoinGrant {
        &self.body.grant
    }

    /// Returns the time of issue, by the authority's clock.
    pub fn issued(&self) -> Timestamp {
        self.body.issued
    }

    /// Returns when the token expires.
    pub fn expires(&self) -> Timestamp {
        self.body.expires
    }

    /// Returns the SHA-256 of the authority's certificate, which authenticates the cluster.
    pub fn authority(&self) -> Fingerprint {
        self.body.authority
    }

    /// Returns the secret text.
    pub fn to_text(&self) -> String {
        let mut bytes = body_bytes(&self.body);
        bytes.extend(self.signature);
        token_text::write(&bytes)
    }

    /// Checks the validity period against a clock, with a tolerance of [`CLOCK_SKEW_S_MAX`].
    ///
    /// # Errors
    /// The token is expired or not valid yet.
    pub fn check_time(&self, now: Timestamp) -> Result<(), TokenError> {
        let (id, skew) = (self.body.id, Duration::from_secs(CLOCK_SKEW_S_MAX));
        match now {
            _ if now.before(skew) > self.body.expires => Err(TokenError::Expired { id, ended: self.body.expires, now }),
            _ if now.after(skew) < self.body.issued => Err(TokenError::NotYet { id, issued: self.body.issued, now }),
            _ => Ok(()),
        }
    }

    /// Checks signature, validity period, role and name. It needs only the authority's certificate, and does not check
    /// for revocation.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn check(&self, trust: &TrustAnchor, role: Role, name: &Name, now: Timestamp) -> Result<(), TokenError> {
        let (id, body) = (self.body.id, &self.body);
        if body.authority != trust.fingerprint() {
            let (theirs, ours) = (body.cluster.clone(), trust.cluster().clone());
            return Err(TokenError::OtherCluster { id, theirs, authority: body.authority, ours });
        }
        if body.cluster != *trust.cluster() || !trust.signed_message(&message(body), &self.signature) {
            return Err(TokenError::Forged { id, cluster: trust.cluster().clone() });
        }
        self.check_time(now)?;
        self.check_grant(role, name)
    }

    /// Checks the role and name.
    ///
    /// # Errors
    /// The token is for another role or tenant.
    pub fn check_grant(&self, requested: Role, name: &Name) -> Result<(), TokenError> {
        let (id, grants) = (self.body.id, self.body.grant.role());
        match &self.body.grant {
            _ if grants != requested => Err(TokenError::Role { id, grants, requested }),
            JoinGrant::Tenant(grants) if grants != name => {
                Err(TokenError::Name { id, grants: grants.clone(), requested: name.clone() })
            }
            _ => Ok(()),
        }
    }
}

fn body_bytes(body: &TokenBody) -> Vec<u8> {
    // Serialising plain fields to memory can't fail.
    postcard::to_stdvec(body).unwrap_or_default()
}

fn message(body: &TokenBody) -> Vec<u8> {
    [CONTEXT, &body_bytes(body)].concat()
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<JoinToken, TokenError> {
        let bytes = token_text::read(text)?;
        let (body, signature) = bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or(TokenError::Damaged)?;
        match postcard::take_from_bytes::<TokenBody>(body) {
            Ok((body, [])) => Ok(JoinToken { body, signature: *signature }),
            _ => Err(TokenError::Damaged),
        }
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}, {:?} of {})", self.body.id, self.body.grant, self.body.cluster)
    }
}
