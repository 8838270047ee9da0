//! Signatures of components with keys of their authors: Ed25519 (RFC 8032).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rcgen::{PublicKeyData as _, SigningKey as _};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use super::crypto::crypto_error;
use super::{IdentityError, Key};
use crate::name::{PublicKey, Signature};

/// Maximum bytes of a key file, which has about 120.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// A key file in error messages.
const ITEM: &str = "the signing key";

/// A private key that signs components.
#[derive(Debug)]
pub struct SigningKey(Key);

impl SigningKey {
    /// Reads a key from a file, as `openssl genpkey -algorithm ed25519` writes it (PKCS #8 as PEM).
    ///
    /// # Errors
    /// Fails if the file can't be read, other users can read it, or it has no Ed25519 key.
    pub fn read(path: &Path) -> Result<SigningKey, IdentityError> {
        let io = |reason| IdentityError::Io { path: path.to_owned(), reason };
        let file = File::open(path).map_err(io)?;
        super::folder::check(path, &file.metadata().map_err(io)?)?;
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(io)?;
        let malformed =
            |e: rustls::pki_types::pem::Error| IdentityError::Malformed { item: ITEM, reason: e.to_string() };
        let der = PrivatePkcs8KeyDer::from_pem_slice(&text).map_err(malformed)?;
        Key::from_der(der.secret_pkcs8_der()).map(SigningKey)
    }

    /// Returns the public key.
    ///
    /// # Errors
    /// Fails if the key is not one of Ed25519.
    pub fn public(&self) -> Result<PublicKey, IdentityError> {
        self.0.pair().der_bytes().try_into().map(PublicKey).map_err(crypto_error)
    }

    /// Signs a message.
    ///
    /// # Errors
    /// Fails if the signature can't be computed.
    pub fn sign(&self, message: &[u8]) -> Result<Signature, IdentityError> {
        let signature = self.0.pair().sign(message).map_err(crypto_error)?;
        signature.try_into().map(Signature).map_err(|_| crypto_error("a signature of another length"))
    }
}

impl PublicKey {
    /// Returns whether the key signed a message.
    pub fn has_signed(&self, message: &[u8], signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, &signature.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A key of `openssl genpkey -algorithm ed25519`, its public key by `openssl pkey -pubout`, and a signature by
    /// `openssl pkeyutl -sign -rawin`.
    const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJq8KYki7c5x9fDTOnHf93bRqTygDsSkX+8yMZ+MtInd\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "7a435441be76099947999f4b00d4a700456d87c4dc1d61138508c5818b18fdb0";
    const SIGNATURE: &str = "9fe5994ba49da42a93a462a3a86ae50c846124e1d1b4924a253ae45f5e5d86628353c4bfe7270413b77c444f8eb52e507eb72e8db573b5bc47f06d64aa715007";

    #[test]
    fn keys_and_signatures_are_those_of_openssl() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        let write = |text: &str, mode: u32| {
            let _ = fs::remove_file(&path);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        write(PEM, 0o600);
        let key = SigningKey::read(&path).unwrap();
        let (public, signature) = (key.public().unwrap(), key.sign(b"message").unwrap());
        assert_eq!((public.to_string(), signature.to_string()), (PUBLIC.to_owned(), SIGNATURE.to_owned()));
        assert!(public.has_signed(b"message", &signature));
        assert!(!public.has_signed(b"messagf", &signature));
        assert!(!PublicKey([1; 32]).has_signed(b"message", &signature));
        assert!(!public.has_signed(b"message", &Signature([0; 64])));
        for (text, mode, code) in [
            (PEM, 0o644, "identity-exposed"),
            ("", 0o600, "identity-malformed"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "identity-malformed"),
        ] {
            write(text, mode);
            assert_eq!(SigningKey::read(&path).unwrap_err().code(), code, "{text}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(SigningKey::read(&path).unwrap_err().code(), "identity-io");
    }
}
