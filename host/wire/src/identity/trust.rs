//! Verification of certificates against one authority. Only this module turns a certificate into a [`PeerIdentity`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::crypto::{algorithms, provider};
use super::key::{key_id, sha256};
use super::{IdentityError, PeerError};
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::name::{ClusterId, Fingerprint, PeerIdentity, SCHEME, Serial, Subject};

/// The end of a handshake whose certificate is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeSide {
    Client,
    Server,
}

/// The certificate of a cluster's authority, with the verifiers for certificates that it signed.
#[derive(Clone)]
pub struct TrustAnchor {
    authority: CertificateDer<'static>,
    cluster: ClusterId,
    fingerprint: Fingerprint,
    key: Arc<[u8]>,
    ends: Timestamp,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl TrustAnchor {
    /// Creates a trust anchor from an authority's certificate (DER). The caller vouches for it.
    ///
    /// # Errors
    /// The certificate is not an authority's.
    pub fn new(authority: CertificateDer<'static>) -> Result<TrustAnchor, IdentityError> {
        let malformed = |reason: String| IdentityError::Malformed { item: "the authority's certificate", reason };
        let (rest, parsed) = X509Certificate::from_der(&authority).map_err(|e| malformed(e.to_string()))?;
        let uri = only_uri(&parsed).and_then(|uri| uri.strip_prefix(SCHEME)?.strip_suffix(AUTHORITY));
        let cluster = uri.and_then(|name| name.parse().ok()).filter(|_| rest.is_empty() && parsed.is_ca());
        let cluster = ClusterId(cluster.ok_or_else(|| malformed("it is not an authority's".to_owned()))?);
        let key: Arc<[u8]> = parsed.public_key().subject_public_key.data.as_ref().into();
        let ends = seconds(parsed.validity().not_after.timestamp());
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(|e| malformed(e.to_string()))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(provider()?);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider).build();
        let clients = clients.map_err(|e| malformed(e.to_string()))?;
        let (fingerprint, algorithms) = (Fingerprint::from_certificate(&authority), algorithms()?);
        Ok(TrustAnchor { cluster, fingerprint, key, ends, roots, clients, algorithms, authority })
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// Returns the SHA-256 of the authority's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the authority's certificate (DER).
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// Returns the end of the validity of the authority's certificate.
    pub fn ends(&self) -> Timestamp {
        self.ends
    }

    /// Returns whether the authority signed a message.
    pub(super) fn signed_message(&self, message: &[u8], signature: &[u8]) -> bool {
        ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, &*self.key)
            .verify(message, signature)
            .is_ok()
    }

    /// Verifies a certificate chain and returns the peer's identity.
    ///
    /// # Errors
    /// The authority did not sign the certificate for this side, or it is not valid at `now`, with a tolerance of
    /// [`CLOCK_SKEW_S_MAX`].
    pub(crate) fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        side: HandshakeSide,
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

    /// Checks that the authority signed the certificate for this side, and ignores its validity period.
    pub(crate) fn signed(
        &self,
        certificate: &CertificateDer<'_>,
        side: HandshakeSide,
        now: Timestamp,
    ) -> Result<(), PeerError> {
        // webpki checks the validity period before the signature. If that fails, verify again as of a valid time.
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

    fn signed_at(
        &self,
        certificate: &CertificateDer<'_>,
        side: HandshakeSide,
        at: Timestamp,
    ) -> Result<(), rustls::Error> {
        match side {
            HandshakeSide::Client => self.clients.verify_client_cert(certificate, &[], at.unix()).map(drop),
            HandshakeSide::Server => {
                let parsed = ParsedCertificate::try_from(certificate)?;
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, &[], at.unix(), algorithms)
            }
        }
    }
}

impl Fingerprint {
    /// Returns the fingerprint of a certificate (DER).
    pub fn from_certificate(certificate: &[u8]) -> Fingerprint {
        Fingerprint(sha256(certificate))
    }
}

impl fmt::Debug for TrustAnchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustAnchor({}, {})", self.cluster, self.fingerprint)
    }
}

/// Suffix of the only URI of an authority's certificate.
pub(super) const AUTHORITY: &str = "/authority";

/// Parses the subject and the validity of a certificate, without verifying its signature.
fn parse(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, PeerError> {
    let malformed = |reason: &str| PeerError::Malformed(reason.to_owned());
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| malformed(&e.to_string()))?;
    let uri = only_uri(&parsed).ok_or_else(|| malformed("it does not have exactly one name, a URI"))?;
    let subject = Subject::from_uri(uri).ok_or_else(|| malformed("its URI names no node or tenant"))?;
    Ok(PeerIdentity {
        cluster: subject.cluster,
        role: subject.principal.role(),
        name: subject.principal.name().clone(),
        access: subject.principal.access(),
        serial: serial(parsed.raw_serial()).ok_or_else(|| malformed("its serial number is too long"))?,
        key: key_id(parsed.public_key().raw),
        begins: seconds(parsed.validity().not_before.timestamp()),
        expires: seconds(parsed.validity().not_after.timestamp()),
    })
}

/// Returns the URI of a certificate whose only subject alternative name is a URI.
fn only_uri<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let names = certificate.subject_alternative_name().ok()??;
    match names.value.general_names[..] {
        [GeneralName::URI(uri)] => Some(uri),
        _ => None,
    }
}

/// Parses a serial number of up to 16 bytes. DER omits leading zeros, or prefixes one.
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
        let parse_serial = |text: &str| text.parse::<Serial>().ok();
        for (raw, text) in [
            (&[1][..], "00000000000000000000000000000001"),
            (&[0, 0x80], "00000000000000000000000000000080"),
            (&[0; 20], "00000000000000000000000000000000"),
            (&[7; 16], "07070707070707070707070707070707"),
            (&[7; 17], ""),
        ] {
            assert_eq!(serial(raw), parse_serial(text), "{raw:?}");
        }
    }
}
