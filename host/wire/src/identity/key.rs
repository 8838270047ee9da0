//! The key of a node or tenant. It never leaves the machine: what is sent is a request for a certificate, signed by it.

use std::fmt;
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519, PublicKeyData, SanType, SerialNumber};
use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::IdentityError;
use super::authority::draw_serial;
use crate::name::KeyId;

/// An Ed25519 key.
pub struct Key {
    pair: KeyPair,
    id: KeyId,
}

/// The only URI in the certificate of who has none of the authority's yet.
const STRANGER: &str = "sandbar-join:";
/// The certificate of a stranger has about 250 bytes.
const STRANGER_BYTES_MAX: usize = 1 << 10;

impl Key {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<Key, IdentityError> {
        KeyPair::generate_for(&PKCS_ED25519).map(Key::of).map_err(crypto)
    }

    /// From PKCS #8 (DER).
    pub(super) fn from_der(der: &[u8]) -> Result<Key, IdentityError> {
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ED25519);
        let malformed = |e: rcgen::Error| IdentityError::Malformed { what: "the key", reason: e.to_string() };
        pair.map(Key::of).map_err(malformed)
    }

    fn of(pair: KeyPair) -> Key {
        let id = key_id(&pair.subject_public_key_info());
        Key { pair, id }
    }

    /// As PKCS #8 (DER). It is the secret itself.
    pub(super) fn der(&self) -> &[u8] {
        self.pair.serialized_der()
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// Which key it is: nothing of the secret.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// A certificate signing request (PKCS #10, DER). Who it is for stands beside it, not in it.
    ///
    /// # Errors
    /// When signing fails.
    pub fn request(&self) -> Result<Vec<u8>, IdentityError> {
        let request = nameless().serialize_request(&self.pair).map_err(crypto)?;
        Ok(request.der().to_vec())
    }

    /// The certificate of a stranger: it proves that who shows it has the key, and nothing else.
    pub(crate) fn stranger(&self) -> Result<CertificateDer<'static>, IdentityError> {
        let mut params = nameless();
        // What is made of the key otherwise begins with a zero now and then, which DER leaves out.
        params.serial_number = Some(SerialNumber::from_slice(&draw_serial()?.0));
        params.subject_alt_names = vec![SanType::URI(STRANGER.try_into().map_err(crypto)?)];
        Ok(params.self_signed(&self.pair).map_err(crypto)?.into())
    }

    /// For TLS.
    pub(crate) fn signer(&self) -> Result<Arc<dyn rustls::sign::SigningKey>, IdentityError> {
        let der = PrivatePkcs8KeyDer::from(self.der());
        rustls::crypto::ring::sign::any_eddsa_type(&der).map_err(|e| IdentityError::Crypto(e.to_string()))
    }

    /// Bytes that follow from the key and a purpose, and say nothing of the key.
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

/// Which key a SubjectPublicKeyInfo (DER) is.
pub(crate) fn key_id(public: &[u8]) -> KeyId {
    KeyId(sha256(public))
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest(&SHA256, bytes);
    std::array::from_fn(|i| digest.as_ref().get(i).copied().unwrap_or(0))
}

/// The key of a stranger's certificate; none if it is any other certificate. Nothing is proved by it but by TLS, whose
/// handshake is signed with the key.
pub(crate) fn is_stranger(certificate: &CertificateDer<'_>) -> Option<KeyId> {
    // Whoever likes sends it: one that is longer is none, and is not read.
    let small = certificate.get(..).filter(|bytes| bytes.len() <= STRANGER_BYTES_MAX)?;
    let (_, parsed) = X509Certificate::from_der(small).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let is_stranger = matches!(names.value.general_names[..], [GeneralName::URI(STRANGER)]);
    is_stranger.then(|| key_id(parsed.public_key().raw))
}

fn nameless() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
}

pub(super) fn crypto(error: impl fmt::Display) -> IdentityError {
    IdentityError::Crypto(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulation plays histories again by the lengths of what is sent.
    #[test]
    fn all_strangers_have_certificates_of_one_length() {
        let certificate = || Key::generate().unwrap().stranger().unwrap();
        let first = certificate();
        for _ in 0..2000 {
            let other = certificate();
            assert_eq!(other.len(), first.len());
            assert!(is_stranger(&other).is_some());
        }
    }
}
