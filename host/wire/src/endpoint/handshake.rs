//! Results of a TLS handshake.

use quinn::crypto::rustls::HandshakeData;
use rustls::pki_types::CertificateDer;

/// Returns the application protocol that TLS negotiated.
pub(super) fn negotiated_protocol(quinn: &quinn::Connection) -> Vec<u8> {
    let data = quinn.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.and_then(|data| data.protocol).unwrap_or_default()
}

/// Returns the peer's certificate chain.
pub(super) fn peer_chain(quinn: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let chain = quinn.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}
