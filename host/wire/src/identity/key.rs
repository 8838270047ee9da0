//! The private key of a node or tenant. It never leaves the machine: a join sends a certificate signing request.

use std::fmt;
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519, PublicKeyData, SanType, SerialNumber};
use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::IdentityError;
use super::crypto::{crypto_error, random_serial};
use crate::name::KeyId;

/// An Ed25519 key pair.
pub struct Key {
    pair: KeyPair,
    id: KeyId,
}

/// The only URI in the self-signed certificate of a client that joins.
const JOIN_URI: &str = "sandbar-join:";
/// Maximum bytes of a joining client's certificate, which has about 250.
const SELF_SIGNED_BYTES_MAX: usize = 1 << 10;

impl Key {
    /// Generates a key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> Result<Key, IdentityError> {
        KeyPair::generate_for(&PKCS_ED25519).map(Key::from_pair).map_err(crypto_error)
    }

    /// Decodes a key from PKCS #8 (DER).
    pub(super) fn from_der(der: &[u8]) -> Result<Key, IdentityError> {
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ED25519);
        let malformed = |e: rcgen::Error| IdentityError::Malformed { item: "the key", reason: e.to_string() };
        pair.map(Key::from_pair).map_err(malformed)
    }

    fn from_pair(pair: KeyPair) -> Key {
        let id = key_id(&pair.subject_public_key_info());
        Key { pair, id }
    }

    /// Returns the private key as PKCS #8 (DER).
    pub(super) fn der(&self) -> &[u8] {
        self.pair.serialized_der()
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// Returns the id of the public key.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Creates a certificate signing request (PKCS #10, DER). It contains no subject: the role and name are sent beside
    /// it.
    ///
    /// # Errors
    /// Signing failed.
    pub fn request(&self) -> Result<Vec<u8>, IdentityError> {
        let request = nameless().serialize_request(&self.pair).map_err(crypto_error)?;
        Ok(request.der().to_vec())
    }

    /// Creates the self-signed certificate of a client that joins. It proves only possession of the key.
    pub(crate) fn self_signed_certificate(&self) -> Result<CertificateDer<'static>, IdentityError> {
        let mut params = nameless();
        // A default serial number, derived from the key, sometimes begins with a zero byte, which DER omits.
        params.serial_number = Some(SerialNumber::from_slice(&random_serial()?.0));
        params.subject_alt_names = vec![SanType::URI(JOIN_URI.try_into().map_err(crypto_error)?)];
        Ok(params.self_signed(&self.pair).map_err(crypto_error)?.into())
    }

    /// Returns the signing key for TLS.
    pub(crate) fn signer(&self) -> Result<Arc<dyn rustls::sign::SigningKey>, IdentityError> {
        let der = PrivatePkcs8KeyDer::from(self.der());
        rustls::crypto::ring::sign::any_eddsa_type(&der).map_err(|e| IdentityError::Crypto(e.to_string()))
    }

    /// Derives 32 bytes from the key for a purpose. They reveal nothing about the key.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.der());
        let tag = ring::hmac::sign(&secret, purpose);
        std::array::from_fn(|i| tag.as_ref().get(i).copied().unwrap_or(0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

/// Returns the id of a public key given as SubjectPublicKeyInfo (DER).
pub(crate) fn key_id(public: &[u8]) -> KeyId {
    KeyId(sha256(public))
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest(&SHA256, bytes);
    std::array::from_fn(|i| digest.as_ref().get(i).copied().unwrap_or(0))
}

/// Returns the key of a joining client's self-signed certificate; `None` for any other certificate. The certificate
/// itself proves nothing: the TLS handshake, signed with the key, does.
pub(crate) fn self_signed_key(certificate: &CertificateDer<'_>) -> Option<KeyId> {
    // Anybody can send this certificate: a longer one is rejected without parsing.
    let small = certificate.get(..).filter(|bytes| bytes.len() <= SELF_SIGNED_BYTES_MAX)?;
    let (_, parsed) = X509Certificate::from_der(small).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let is_self_signed = matches!(names.value.general_names[..], [GeneralName::URI(JOIN_URI)]);
    is_self_signed.then(|| key_id(parsed.public_key().raw))
}

fn nameless() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulation replays histories by the lengths of datagrams, so lengths must not vary.
    #[test]
    fn all_strangers_have_certificates_of_one_length() {
        let certificate = || Key::generate().unwrap().self_signed_certificate().unwrap();
        let first = certificate();
        for _ in 0..2000 {
            let other = certificate();
            assert_eq!(other.len(), first.len());
            assert!(self_signed_key(&other).is_some());
        }
    }
}
