//! Names, roles, and the identity in a certificate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// Name of a cluster, a node or a tenant, as in certificates: 1 to 63 characters of `a` to `z`, `0` to `9` and `-`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Name(Box<str>);

/// Maximum bytes of a name.
pub const NAME_BYTES_MAX: usize = 63;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty or too long.
    #[error("a name has 1 to {NAME_BYTES_MAX} characters, not {0}")]
    Length(usize),
    /// The text has a character that names do not allow.
    #[error("a name has `a` to `z`, `0` to `9` and `-`, not {0:?}")]
    Character(char),
}

impl Name {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let wrong = |c: &char| !matches!(c, 'a'..='z' | '0'..='9' | '-');
        match text.chars().find(wrong) {
            _ if text.is_empty() || text.len() > NAME_BYTES_MAX => Err(NameError::Length(text.chars().count())),
            Some(c) => Err(NameError::Character(c)),
            None => Ok(Name(text.into())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Name, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// Random name of a cluster, generated with its authority.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterId(pub Name);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Role of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// A machine of the cluster: it accepts connections.
    Node,
    /// A user of the cluster: it connects, and never accepts connections.
    Tenant,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Tenant => "tenant",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a tenant's token or certificate allows within the tenant. Each role includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TenantRole {
    /// Lists jobs, reads their state, logs and records.
    Viewer,
    /// Submits and stops jobs.
    Submitter,
    /// Creates and revokes tokens of the tenant.
    Admin,
}

impl TenantRole {
    /// All roles.
    pub const ALL: [TenantRole; 3] = [TenantRole::Viewer, TenantRole::Submitter, TenantRole::Admin];

    /// Returns the role's name.
    pub fn as_str(self) -> &'static str {
        match self {
            TenantRole::Viewer => "viewer",
            TenantRole::Submitter => "submitter",
            TenantRole::Admin => "admin",
        }
    }
}

impl fmt::Display for TenantRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for TenantRole {
    type Err = String;

    fn from_str(text: &str) -> Result<TenantRole, String> {
        let role = TenantRole::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| "the roles are viewer, submitter and admin".to_owned())
    }
}

/// Access of a tenant's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenantAccess {
    /// Role within the tenant.
    pub role: TenantRole,
    /// Token that was exchanged for the certificate, or for the first of the certificates that it renews.
    pub token: TokenId,
}

/// The node or the client of a tenant that a certificate names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    /// The node with this name.
    Node(Name),
    /// A client of the tenant with this name.
    Tenant(Name, TenantAccess),
}

impl Principal {
    /// Returns the role.
    pub fn role(&self) -> Role {
        match self {
            Principal::Node(_) => Role::Node,
            Principal::Tenant(..) => Role::Tenant,
        }
    }

    /// Returns the name, which is unique within cluster and role.
    pub fn name(&self) -> &Name {
        match self {
            Principal::Node(name) | Principal::Tenant(name, _) => name,
        }
    }

    /// Returns the access of a tenant.
    pub fn access(&self) -> Option<TenantAccess> {
        match self {
            Principal::Node(_) => None,
            Principal::Tenant(_, access) => Some(*access),
        }
    }
}

/// Subject of a certificate: its only URI, `sandbar://<cluster>/node/<name>` or
/// `sandbar://<cluster>/tenant/<name>/<role in the tenant>/<token>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node or client.
    pub principal: Principal,
}

pub(crate) const SCHEME: &str = "sandbar://";

impl Subject {
    /// Parses a certificate's URI. Returns `None` for any other URI.
    pub fn from_uri(uri: &str) -> Option<Subject> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        let (cluster, role, name) = (parts.next()?, parts.next()?, parts.next()?);
        let name = name.parse().ok()?;
        let principal = match [Role::Node, Role::Tenant].into_iter().find(|known| known.word() == role)? {
            Role::Node => Principal::Node(name),
            Role::Tenant => {
                let (role, token) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                Principal::Tenant(name, TenantAccess { role, token })
            }
        };
        let subject = Subject { cluster: ClusterId(cluster.parse().ok()?), principal };
        parts.next().is_none().then_some(subject)
    }

    /// Returns the URI, as in a certificate.
    pub fn uri(&self) -> String {
        let Subject { cluster, principal } = self;
        match principal {
            Principal::Node(name) => format!("{SCHEME}{cluster}/{}/{name}", Role::Node),
            Principal::Tenant(name, TenantAccess { role, token }) => {
                format!("{SCHEME}{cluster}/{}/{name}/{role}/{token}", Role::Tenant)
            }
        }
    }
}

macro_rules! digests {
    ($($(#[$doc:meta])* $name:ident($bytes:literal);)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub struct $name(pub [u8; $bytes]);

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, "{}({self})", stringify!($name))
                }
            }

            impl FromStr for $name {
                type Err = String;

                fn from_str(text: &str) -> Result<Self, String> {
                    let wrong = || format!("`{text}` is not {} hexadecimal digits in lower case", 2 * $bytes);
                    let mut bytes = [0; $bytes];
                    if text.len() != 2 * $bytes || !text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
                        return Err(wrong());
                    }
                    for (i, byte) in bytes.iter_mut().enumerate() {
                        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
                    }
                    Ok($name(bytes))
                }
            }
        )*
    };
}

digests! {
    /// Serial number of a certificate, generated by the authority.
    #[derive(Serialize, Deserialize)]
    Serial(16);
    /// Id of a join token, generated by the authority. Unlike the token it is not a secret.
    #[derive(Serialize, Deserialize)]
    TokenId(16);
    /// SHA-256 of a public key, as SubjectPublicKeyInfo.
    #[derive(Serialize, Deserialize)]
    KeyId(32);
    /// SHA-256 of an authority's certificate, as `openssl x509 -fingerprint -sha256` shows it.
    #[derive(Serialize, Deserialize)]
    Fingerprint(32);
    /// Public key of Ed25519, with which components are signed.
    PublicKey(32);
    /// Signature of Ed25519.
    Signature(64);
}

/// Authenticated identity of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The role.
    pub role: Role,
    /// The name, unique within cluster and role.
    pub name: Name,
    /// Access of a tenant; `None` for a node.
    pub access: Option<TenantAccess>,
    /// Serial number of the certificate.
    pub serial: Serial,
    /// The key.
    pub key: KeyId,
    /// Start of the certificate's validity.
    pub begins: Timestamp,
    /// End of the certificate's validity.
    pub expires: Timestamp,
}

impl PeerIdentity {
    /// Returns the node or client that the certificate names.
    pub fn principal(&self) -> Principal {
        match self.access {
            Some(access) => Principal::Tenant(self.name.clone(), access),
            None => Principal::Node(self.name.clone()),
        }
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.role, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let long = "a".repeat(64);
        for (text, wanted) in [
            ("a", Ok(())),
            ("node-17", Ok(())),
            (&long[1..], Ok(())),
            ("-", Ok(())),
            ("", Err(NameError::Length(0))),
            (&long, Err(NameError::Length(64))),
            ("A", Err(NameError::Character('A'))),
            ("a b", Err(NameError::Character(' '))),
            ("a/b", Err(NameError::Character('/'))),
            ("ä", Err(NameError::Character('ä'))),
            ("a\0", Err(NameError::Character('\0'))),
        ] {
            assert_eq!(text.parse::<Name>().map(|name| assert_eq!(name.as_str(), text)), wanted, "{text:?}");
        }
    }

    #[test]
    fn subjects_are_parsed() {
        for (uri, is_one) in [
            ("sandbar://c/node/n1", true),
            ("sandbar://c/tenant/n1/viewer/000102030405060708090a0b0c0d0e0f", true),
            ("sandbar://c/tenant/n1/submitter/000102030405060708090a0b0c0d0e0f", true),
            ("sandbar://c/tenant/n1/admin/000102030405060708090a0b0c0d0e0f", true),
            ("sandbar://c/tenant/n1", false),
            ("sandbar://c/tenant/n1/viewer", false),
            ("sandbar://c/tenant/n1/viewer/", false),
            ("sandbar://c/tenant/n1/viewer/00", false),
            ("sandbar://c/tenant/n1/viewer/000102030405060708090A0B0C0D0E0F", false),
            ("sandbar://c/tenant/n1/viewer/000102030405060708090a0b0c0d0e0f/", false),
            ("sandbar://c/tenant/n1/owner/000102030405060708090a0b0c0d0e0f", false),
            ("sandbar://c/node/n1/admin/000102030405060708090a0b0c0d0e0f", false),
            ("sandbar://c/admin/n1", false),
            ("sandbar://c/node/n1/", false),
            ("sandbar://c/node/", false),
            ("sandbar://c/node", false),
            ("sandbar:///node/n1", false),
            ("sandbar://c/node/N1", false),
            ("sandbar://c/node/n1?", false),
            ("Sandbar://c/node/n1", false),
            ("sandbar://c/Node/n1", false),
            ("", false),
        ] {
            let subject = Subject::from_uri(uri);
            assert_eq!(subject.as_ref().map(Subject::uri).as_deref(), is_one.then_some(uri));
        }
    }

    #[test]
    fn digests_are_read_as_they_are_shown() {
        let serial = Serial(std::array::from_fn(|i| i as u8 * 17));
        assert_eq!(serial.to_string().parse(), Ok(serial));
        for wrong in ["", "00", "+0112233445566778899aabbccddeeff", "0ä112233445566778899aabbccddeef"] {
            assert!(wrong.parse::<Serial>().is_err(), "{wrong}");
        }
    }
}
