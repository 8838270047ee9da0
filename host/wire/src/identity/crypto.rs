//! Algorithms, randomness and errors of cryptography.

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use rustls::SignatureScheme;
use rustls::crypto::ring::{cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};

use super::IdentityError;
use crate::name::Serial;

/// Returns the crypto provider of both ends. One algorithm of each kind prevents downgrade attacks, and keeps
/// unauthenticated clients from choosing expensive ones.
pub(crate) fn provider() -> Result<CryptoProvider, IdentityError> {
    Ok(CryptoProvider {
        // QUIC requires the first; the second is for machines without AES instructions.
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
        kx_groups: vec![kx_group::X25519],
        signature_verification_algorithms: algorithms()?,
        ..rustls::crypto::ring::default_provider()
    })
}

/// Returns Ed25519 only: clients can't make this end verify an expensive signature.
pub(crate) fn algorithms() -> Result<WebPkiSupportedAlgorithms, IdentityError> {
    let all = rustls::crypto::ring::default_provider().signature_verification_algorithms.mapping;
    let entry = all.iter().find(|(scheme, _)| *scheme == SignatureScheme::ED25519);
    let entry = entry.ok_or_else(|| IdentityError::Crypto("TLS does not support Ed25519".to_owned()))?;
    Ok(WebPkiSupportedAlgorithms { all: entry.1, mapping: std::slice::from_ref(entry) })
}

pub(super) fn random_bytes<const N: usize>() -> Result<[u8; N], IdentityError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| IdentityError::Crypto("the system has no randomness".to_owned()))?;
    Ok(bytes)
}

pub(super) fn random_serial() -> Result<Serial, IdentityError> {
    let mut bytes = random_bytes::<16>()?;
    // In DER the number is then positive and of full length.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(Serial(bytes))
}

pub(super) fn crypto_error(error: impl fmt::Display) -> IdentityError {
    IdentityError::Crypto(error.to_string())
}
