//! Whom to believe: one authority. Here alone a certificate becomes a [`PeerIdentity`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::IdentityError;
use super::key::{key_id, sha256};
use crate::blame::Blame;
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::name::{ClusterId, Fingerprint, Name, PeerIdentity, Role, SCHEME, Serial, Subject};
use crate::protocol::{CloseCode, alpn};

/// Why a peer is not let in, or not what this end wants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It shows no certificate, or one too many.
    #[error("{0} certificates are shown, not one")]
    Count(usize),
    /// It is not what the authority makes.
    #[error("the certificate shown is malformed: {0}")]
    Malformed(String),
    /// It was signed by somebody else, or changed since.
    #[error("the certificate shown was not signed by the authority of cluster {ours}; join that cluster first")]
    OtherAuthority {
        /// This end's cluster.
        ours: ClusterId,
    },
    /// It has no certificate of an authority, and did not come to join.
    #[error("no certificate of cluster {ours} is shown; join that cluster first")]
    Stranger {
        /// This end's cluster.
        ours: ClusterId,
    },
    /// It is too early.
    #[error("the certificate shown begins {begins}, and the clock here says {now}; look at both clocks")]
    NotYet {
        /// From when on it counts.
        begins: Timestamp,
        /// This end's clock.
        now: Timestamp,
    },
    /// It is too late.
    #[error("the certificate shown ended {ended}, and the clock here says {now}; renew it or join again")]
    Expired {
        /// Until when it counted.
        ended: Timestamp,
        /// This end's clock.
        now: Timestamp,
    },
    /// It was taken back.
    #[error("{who} was removed (certificate {serial}); join again if it was not meant")]
    Revoked {
        /// Who.
        who: String,
        /// Which certificate.
        serial: Serial,
    },
    /// It is something else.
    #[error("a {wanted} is due here, not a {got}")]
    Role {
        /// What is due.
        wanted: Role,
        /// What it is.
        got: Role,
    },
    /// It is somebody else.
    #[error("{wanted:?} was expected, and this is {got:?}; look at the address")]
    Name {
        /// Who was expected.
        wanted: Name,
        /// Who it is.
        got: Name,
    },
    /// It speaks another version.
    #[error("{} is spoken here, not {}; update one of them", alpn(*.ours), alpn(*.theirs))]
    Version {
        /// This end's.
        ours: u8,
        /// Its.
        theirs: u8,
    },
    /// The same name is connected already, with a newer certificate.
    #[error("{0} is connected with a newer certificate; one process at a time is a node")]
    Older(String),
    /// The same name connected again.
    #[error("{0} connected again")]
    Again(String),
    /// There are as many as there may be.
    #[error("there are {most} connections {of} already; come back later")]
    Full {
        /// Of whom.
        of: String,
        /// How many there may be.
        most: usize,
    },
}

impl PeerError {
    /// What the peer is told.
    pub fn close_code(&self) -> CloseCode {
        match self {
            PeerError::Count(_)
            | PeerError::Malformed(_)
            | PeerError::OtherAuthority { .. }
            | PeerError::Stranger { .. } => CloseCode::Untrusted,
            PeerError::NotYet { .. } | PeerError::Expired { .. } => CloseCode::Expired,
            PeerError::Revoked { .. } => CloseCode::Revoked,
            PeerError::Role { .. } => CloseCode::Role,
            PeerError::Name { .. } => CloseCode::Name,
            PeerError::Version { .. } => CloseCode::Version,
            PeerError::Older(_) | PeerError::Again(_) => CloseCode::Replaced,
            PeerError::Full { .. } => CloseCode::Busy,
        }
    }

    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            PeerError::NotYet { .. } | PeerError::Expired { .. } | PeerError::Version { .. } => Blame::Operator,
            PeerError::Name { .. } | PeerError::Full { .. } => Blame::Operator,
            _ => Blame::Peer,
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        self.close_code().as_str()
    }
}

/// Which end of a connection shows a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The authority of a cluster, as others know it: its certificate.
#[derive(Clone)]
pub struct Trust {
    authority: CertificateDer<'static>,
    cluster: ClusterId,
    fingerprint: Fingerprint,
    key: Arc<[u8]>,
    ends: Timestamp,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Ed25519 alone: a stranger's certificate can't name a key that is dear to check.
pub(crate) fn algorithms() -> Result<WebPkiSupportedAlgorithms, IdentityError> {
    let all = rustls::crypto::ring::default_provider().signature_verification_algorithms.mapping;
    let entry = all.iter().find(|(scheme, _)| *scheme == SignatureScheme::ED25519);
    let entry = entry.ok_or_else(|| IdentityError::Crypto("TLS knows no Ed25519".to_owned()))?;
    Ok(WebPkiSupportedAlgorithms { all: entry.1, mapping: std::slice::from_ref(entry) })
}

impl Trust {
    /// In whom an authority's certificate (DER) has one trust. Whoever calls has reason to.
    ///
    /// # Errors
    /// When it is not one of an authority.
    pub fn new(authority: CertificateDer<'static>) -> Result<Trust, IdentityError> {
        let malformed = |reason: String| IdentityError::Malformed { what: "the authority's certificate", reason };
        let (rest, parsed) = X509Certificate::from_der(&authority).map_err(|e| malformed(e.to_string()))?;
        let uri = only_uri(&parsed).and_then(|uri| uri.strip_prefix(SCHEME)?.strip_suffix(AUTHORITY));
        let cluster = uri.and_then(|name| name.parse().ok()).filter(|_| rest.is_empty() && parsed.is_ca());
        let cluster = ClusterId(cluster.ok_or_else(|| malformed("it is not an authority's".to_owned()))?);
        let key: Arc<[u8]> = parsed.public_key().subject_public_key.data.as_ref().into();
        let ends = seconds(parsed.validity().not_after.timestamp());
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(|e| malformed(e.to_string()))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(crate::tls::provider()?);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider).build();
        let clients = clients.map_err(|e| malformed(e.to_string()))?;
        let (fingerprint, algorithms) = (Fingerprint::of(&authority), algorithms()?);
        Ok(Trust { cluster, fingerprint, key, ends, roots, clients, algorithms, authority })
    }

    /// The cluster.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// The SHA-256 of the authority's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The authority's certificate (DER).
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// Until when the authority's certificate counts.
    pub fn ends(&self) -> Timestamp {
        self.ends
    }

    /// Whether the authority signed a message.
    pub(super) fn signed_message(&self, message: &[u8], signature: &[u8]) -> bool {
        ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, &*self.key)
            .verify(message, signature)
            .is_ok()
    }

    /// Who a peer is, by the chain that it shows.
    ///
    /// # Errors
    /// When the authority did not sign it for that, or it does not count at this time, up to [`CLOCK_SKEW_S_MAX`].
    pub(crate) fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        side: Side,
        now: Timestamp,
    ) -> Result<PeerIdentity, PeerError> {
        let certificate = chain.first().filter(|_| chain.len() <= 2).ok_or(PeerError::Count(chain.len()))?;
        self.signed(certificate, side, now)?;
        let peer = parse(certificate)?;
        if peer.cluster != self.cluster {
            return Err(PeerError::Malformed(format!("it is of cluster {}", peer.cluster)));
        }
        let skew = Duration::from_secs(CLOCK_SKEW_S_MAX);
        match now {
            _ if now.after(skew) < peer.begins => Err(PeerError::NotYet { begins: peer.begins, now }),
            _ if now.before(skew) > peer.expires => Err(PeerError::Expired { ended: peer.expires, now }),
            _ => Ok(peer),
        }
    }

    /// Whether the authority signed it, whatever the time.
    pub(crate) fn signed(&self, certificate: &CertificateDer<'_>, side: Side, now: Timestamp) -> Result<(), PeerError> {
        // What has ended or not begun is refused before its signature is looked at: so it is asked again, as of then.
        let error = match self.signed_at(certificate, side, now) {
            Ok(()) => return Ok(()),
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                self.signed_at(certificate, side, not_after.into()).err()
            }
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                self.signed_at(certificate, side, not_before.into()).err()
            }
            Err(error) => Some(error),
        };
        let Some(error) = error else { return Ok(()) };
        Err(match error {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                PeerError::OtherAuthority { ours: self.cluster.clone() }
            }
            error => PeerError::Malformed(error.to_string()),
        })
    }

    fn signed_at(&self, certificate: &CertificateDer<'_>, side: Side, at: Timestamp) -> Result<(), rustls::Error> {
        match side {
            Side::Client => self.clients.verify_client_cert(certificate, &[], at.unix()).map(drop),
            Side::Server => {
                let parsed = ParsedCertificate::try_from(certificate)?;
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, &[], at.unix(), algorithms)
            }
        }
    }
}

impl Fingerprint {
    /// Of a certificate (DER).
    pub fn of(certificate: &[u8]) -> Fingerprint {
        Fingerprint(sha256(certificate))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({}, {})", self.cluster, self.fingerprint)
    }
}

/// How the only URI of an authority's certificate ends.
pub(super) const AUTHORITY: &str = "/authority";

/// Who a certificate is for, and until when. It says nothing of who signed it.
fn parse(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, PeerError> {
    let malformed = |reason: &str| PeerError::Malformed(reason.to_owned());
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| malformed(&e.to_string()))?;
    let uri = only_uri(&parsed).ok_or_else(|| malformed("it does not have exactly one name, a URI"))?;
    let subject = Subject::from_uri(uri).ok_or_else(|| malformed("its URI names no node or tenant"))?;
    Ok(PeerIdentity {
        cluster: subject.cluster,
        role: subject.role,
        name: subject.name,
        serial: serial(parsed.raw_serial()).ok_or_else(|| malformed("its serial number is too long"))?,
        key: key_id(parsed.public_key().raw),
        begins: seconds(parsed.validity().not_before.timestamp()),
        expires: seconds(parsed.validity().not_after.timestamp()),
    })
}

/// The URI of a certificate that has one, and no name beside it.
fn only_uri<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let names = certificate.subject_alternative_name().ok()??;
    match names.value.general_names[..] {
        [GeneralName::URI(uri)] => Some(uri),
        _ => None,
    }
}

/// A number of up to 16 bytes: DER leaves zeros out, or puts one before it.
fn serial(raw: &[u8]) -> Option<Serial> {
    let zeros = raw.iter().take_while(|byte| **byte == 0).count();
    let digits = &raw[zeros..];
    let mut bytes = [0; 16];
    bytes.get_mut(16_usize.checked_sub(digits.len())?..)?.copy_from_slice(digits);
    Some(Serial(bytes))
}

fn seconds(since_1970: i64) -> Timestamp {
    Timestamp(since_1970.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_have_one_form() {
        let wanted = |text: &str| text.parse::<Serial>().ok();
        for (raw, text) in [
            (&[1][..], "00000000000000000000000000000001"),
            (&[0, 0x80], "00000000000000000000000000000080"),
            (&[0; 20], "00000000000000000000000000000000"),
            (&[7; 16], "07070707070707070707070707070707"),
            (&[7; 17], ""),
        ] {
            assert_eq!(serial(raw), wanted(text), "{raw:?}");
        }
    }
}
