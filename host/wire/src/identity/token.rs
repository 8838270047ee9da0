//! Join tokens: signed, short-lived permissions to join a cluster.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{IdentityError, TokenError, TrustAnchor, token_text};
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::encoding::AlwaysEncodes;
use crate::name::{ClusterId, Fingerprint, Name, Principal, Role, TenantAccess, TenantRole, TokenId};

/// Default lifetime of a token, in seconds: an hour.
pub const TOKEN_LIFETIME_S: u64 = 3_600;
/// Maximum lifetime of a token, in seconds: a day.
pub const TOKEN_LIFETIME_S_MAX: u64 = 86_400;

/// Domain separation: prefixed to the signed bytes, so that no other signature of the authority is valid for a token.
const CONTEXT: &[u8] = b"sandbar join token 2\0";
const SIGNATURE_BYTES: usize = 64;

/// The role that a token allows to join as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinGrant {
    /// A node, under a name of its choice.
    Node,
    /// A client of the tenant with this name, with this role within the tenant.
    Tenant(Name, TenantRole),
}

impl JoinGrant {
    /// Returns the role.
    pub fn role(&self) -> Role {
        match self {
            JoinGrant::Node => Role::Node,
            JoinGrant::Tenant(..) => Role::Tenant,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenBody {
    pub id: TokenId,
    pub cluster: ClusterId,
    pub grant: JoinGrant,
    pub use_once: bool,
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

    /// Returns whether only the first key that is certified with the token gets certificates.
    pub fn use_once(&self) -> bool {
        self.body.use_once
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
        let mut bytes = self.body.encode_after(Vec::new());
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
            JoinGrant::Tenant(grants, _) if grants != name => {
                Err(TokenError::Name { id, grants: grants.clone(), requested: name.clone() })
            }
            _ => Ok(()),
        }
    }
}

impl JoinGrant {
    /// Returns what a certificate names that is issued for a token of this grant. `name` is the requested name.
    pub(crate) fn principal(&self, name: &Name, token: TokenId) -> Principal {
        match self {
            JoinGrant::Node => Principal::Node(name.clone()),
            JoinGrant::Tenant(name, role) => Principal::Tenant(name.clone(), TenantAccess { role: *role, token }),
        }
    }
}

impl AlwaysEncodes for TokenBody {}

/// Returns the bytes that the authority signs.
fn message(body: &TokenBody) -> Vec<u8> {
    body.encode_after(CONTEXT.to_vec())
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

/// Fuzz harness: parses the text of a token with these bytes, whose checksum matches. Returns whether it is a token.
///
/// # Panics
/// Panics if the token has another meaning after it was written and parsed again.
#[doc(hidden)]
pub fn fuzz_join_token(bytes: &[u8]) -> bool {
    let Ok(token) = token_text::write(bytes).parse::<JoinToken>() else { return false };
    assert_eq!(token.to_text().parse(), Ok(token.clone()));
    let _ = (token.check_time(Timestamp(0)), token.grant().role(), format!("{token:?}"));
    true
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}, {:?} of {})", self.body.id, self.body.grant, self.body.cluster)
    }
}
