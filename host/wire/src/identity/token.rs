//! Join tokens: the authority's word that who has one may join, for a while.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{IdentityError, Trust, token_text};
use crate::blame::Blame;
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::name::{ClusterId, Fingerprint, Name, Role, TokenId};

/// How long a token lasts if nobody says otherwise, in seconds: an hour.
pub const TOKEN_LIFETIME_S: u64 = 3_600;
/// The longest that a token lasts, in seconds: a day.
pub const TOKEN_LIFETIME_S_MAX: u64 = 86_400;

/// Signed before the token's bytes, so that the authority's signature under anything else is none under a token.
const CONTEXT: &[u8] = b"sandbar join token 1\0";
const SIGNATURE_BYTES: usize = 64;

/// What one may join as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// As a node, whose name it chooses.
    Node,
    /// As this tenant.
    Tenant(Name),
}

impl Grant {
    /// The role.
    pub fn role(&self) -> Role {
        match self {
            Grant::Node => Role::Node,
            Grant::Tenant(_) => Role::Tenant,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenBody {
    pub id: TokenId,
    pub cluster: ClusterId,
    pub grant: Grant,
    pub issued: Timestamp,
    pub expires: Timestamp,
    pub authority: Fingerprint,
}

/// A token. What its text says is a secret; what its [`id`](JoinToken::id) says is not.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    body: TokenBody,
    signature: [u8; SIGNATURE_BYTES],
}

/// What is wrong with a token. None says anything of what makes it a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TokenError {
    /// It is something else.
    #[error("this is no join token: those begin with `sbt1-`")]
    Prefix,
    /// Its end is missing.
    #[error(
        "the join token was cut off: it has {has} characters after `sbt1-`{}; copy it once more",
        whole.map(|whole| format!(", not {whole}")).unwrap_or_default()
    )]
    Cut {
        /// Characters that are there.
        has: usize,
        /// Characters that it had.
        whole: Option<usize>,
    },
    /// Something follows it.
    #[error("the join token has {has} characters after `sbt1-`, not {whole}; copy it once more, alone")]
    Long {
        /// Characters that are there.
        has: usize,
        /// Characters that it had.
        whole: usize,
    },
    /// A character that tokens do not have.
    #[error("the join token has a character that tokens do not have, in place {at}; copy it once more")]
    Character {
        /// Which, from 1 on, white space not counted.
        at: usize,
    },
    /// A character is another one.
    #[error("the join token was changed on the way: its checksum is another; copy it once more")]
    Damaged,
    /// The authority did not sign it.
    #[error("join token {id} was not signed by the authority of cluster {cluster}; ask for a new one")]
    Forged {
        /// Which.
        id: TokenId,
        /// Whose authority did not.
        cluster: ClusterId,
    },
    /// It is for another cluster.
    #[error("join token {id} is for cluster {theirs} (authority {}), not {ours}", &authority.to_string()[..16])]
    OtherCluster {
        /// Which.
        id: TokenId,
        /// The token's cluster.
        theirs: ClusterId,
        /// Its authority.
        authority: Fingerprint,
        /// This cluster.
        ours: ClusterId,
    },
    /// It is too late.
    #[error("join token {id} ended {ended}, and the clock here says {now}; ask for a new one, or set the clock")]
    Expired {
        /// Which.
        id: TokenId,
        /// When.
        ended: Timestamp,
        /// The clock of who looked at it.
        now: Timestamp,
    },
    /// It is too early.
    #[error("join token {id} was made {issued}, and the clock here says {now}; set the clock")]
    NotYet {
        /// Which.
        id: TokenId,
        /// When, by the authority's clock.
        issued: Timestamp,
        /// The clock of who looked at it.
        now: Timestamp,
    },
    /// It is for something else.
    #[error("join token {id} is for a {grants}, not for a {wanted}")]
    Role {
        /// Which.
        id: TokenId,
        /// What it is for.
        grants: Role,
        /// What was asked for.
        wanted: Role,
    },
    /// It is for somebody else.
    #[error("join token {id} is for tenant {grants:?}, not {wanted:?}")]
    Name {
        /// Which.
        id: TokenId,
        /// Who it is for.
        grants: Name,
        /// Who was asked for.
        wanted: Name,
    },
    /// It was taken back.
    #[error("join token {id} was revoked; ask for a new one")]
    Revoked {
        /// Which.
        id: TokenId,
    },
}

impl TokenError {
    /// Whose fault it is: a token is what an operator handed on, or what a peer made up.
    pub fn blame(&self) -> Blame {
        match self {
            TokenError::Forged { .. } => Blame::Peer,
            _ => Blame::Operator,
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        match self {
            TokenError::Prefix => "token-prefix",
            TokenError::Cut { .. } => "token-cut",
            TokenError::Long { .. } | TokenError::Character { .. } | TokenError::Damaged => "token-damaged",
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
        let wrong = |_| IdentityError::Crypto("a signature has another length".to_owned());
        Ok(JoinToken { body, signature: signature.try_into().map_err(wrong)? })
    }

    /// Its number: by this it can be revoked.
    pub fn id(&self) -> TokenId {
        self.body.id
    }

    /// The cluster.
    pub fn cluster(&self) -> &ClusterId {
        &self.body.cluster
    }

    /// What one may join as.
    pub fn grant(&self) -> &Grant {
        &self.body.grant
    }

    /// When it was made, by the authority's clock.
    pub fn issued(&self) -> Timestamp {
        self.body.issued
    }

    /// Until when one may join.
    pub fn expires(&self) -> Timestamp {
        self.body.expires
    }

    /// The SHA-256 of the authority's certificate: whoever shows that is the cluster.
    pub fn authority(&self) -> Fingerprint {
        self.body.authority
    }

    /// The secret itself, to be handed to who joins.
    pub fn to_text(&self) -> String {
        let mut bytes = body_bytes(&self.body);
        bytes.extend(self.signature);
        token_text::write(&bytes)
    }

    /// Whether it can be used now, up to [`CLOCK_SKEW_S_MAX`], by the clock of whoever asks.
    ///
    /// # Errors
    /// When it has ended, or was made later than now.
    pub fn check_time(&self, now: Timestamp) -> Result<(), TokenError> {
        let (id, skew) = (self.body.id, Duration::from_secs(CLOCK_SKEW_S_MAX));
        match now {
            _ if now.before(skew) > self.body.expires => Err(TokenError::Expired { id, ended: self.body.expires, now }),
            _ if now.after(skew) < self.body.issued => Err(TokenError::NotYet { id, issued: self.body.issued, now }),
            _ => Ok(()),
        }
    }

    /// Whether the authority signed it for somebody to join as this now. Needs nothing but the authority's
    /// certificate; whether it was revoked is asked elsewhere.
    ///
    /// # Errors
    /// What is wrong, the first that is found.
    pub fn check(&self, trust: &Trust, role: Role, name: &Name, now: Timestamp) -> Result<(), TokenError> {
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

    /// Whether it is for that.
    ///
    /// # Errors
    /// When it is for something or somebody else.
    pub fn check_grant(&self, wanted: Role, name: &Name) -> Result<(), TokenError> {
        let (id, grants) = (self.body.id, self.body.grant.role());
        match &self.body.grant {
            _ if grants != wanted => Err(TokenError::Role { id, grants, wanted }),
            Grant::Tenant(grants) if grants != name => {
                Err(TokenError::Name { id, grants: grants.clone(), wanted: name.clone() })
            }
            _ => Ok(()),
        }
    }
}

fn body_bytes(body: &TokenBody) -> Vec<u8> {
    // Plain fields into memory: nothing that could fail.
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
