//! TLS configuration: version 1.3 only, few algorithms, certificates of one authority at both ends.
//!
//! TLS verifies the signer of a certificate and that the peer has its key.
//! [`TrustAnchor::identify`](crate::identity::TrustAnchor) checks everything else, such as the validity period, after
//! the handshake, so that the peer receives a reason if it is rejected.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use crate::identity::{
    HandshakeSide, Identity, IdentityError, Key, PeerError, TrustAnchor, algorithms, provider, self_signed_key,
};
use crate::name::Fingerprint;
use crate::protocol::{JOIN_ALPN, alpn, versions};

/// Server name that clients pass to TLS. Nothing checks it: the certificate's URI identifies the server.
pub(crate) const SERVER_NAME: &str = "sandbar";

/// Resolves the certificate that this end presents. A renewal replaces it for later handshakes.
#[derive(Debug)]
pub(crate) struct CertificateResolver {
    current: Mutex<Arc<Certificates>>,
}

#[derive(Debug)]
struct Certificates {
    alone: Arc<CertifiedKey>,
    /// Chain for joining clients, which know the authority's certificate only by its fingerprint.
    with_authority: Arc<CertifiedKey>,
}

impl CertificateResolver {
    pub(crate) fn new(identity: &Identity) -> Result<CertificateResolver, IdentityError> {
        Ok(CertificateResolver { current: Mutex::new(Arc::new(Certificates::from_identity(identity)?)) })
    }

    pub(crate) fn replace(&self, identity: &Identity) -> Result<(), IdentityError> {
        let next = Arc::new(Certificates::from_identity(identity)?);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn current(&self) -> Arc<Certificates> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Certificates {
    fn from_identity(identity: &Identity) -> Result<Certificates, IdentityError> {
        let (key, certificate) = (identity.key().signer()?, identity.certificate().clone());
        let both = vec![certificate.clone(), identity.trust().certificate().clone()];
        Ok(Certificates {
            alone: Arc::new(CertifiedKey::new(vec![certificate], key.clone())),
            with_authority: Arc::new(CertifiedKey::new(both, key)),
        })
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let joins = hello.alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == JOIN_ALPN.as_bytes()));
        let certificates = self.current();
        Some(if joins { certificates.with_authority.clone() } else { certificates.alone.clone() })
    }
}

impl ResolvesClientCert for CertificateResolver {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current().alone.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Returns a node's configuration. It completes handshakes with every version, in order to report its own, and with
/// clients without a certificate if `joins`.
pub(crate) fn server(
    resolver: Arc<CertificateResolver>,
    trust: &TrustAnchor,
    version: u8,
    joins: bool,
) -> Result<QuicServerConfig, IdentityError> {
    let clients = ClientVerifier { trust: trust.clone(), strangers: joins, algorithms: algorithms()? };
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider()?));
    let config = config.with_protocol_versions(&[&TLS13]).map_err(crypto)?;
    let mut config = config.with_client_cert_verifier(Arc::new(clients)).with_cert_resolver(resolver);
    config.alpn_protocols = std::iter::once(alpn(version).into_bytes()).chain(versions()).collect();
    if joins {
        config.alpn_protocols.push(JOIN_ALPN.into());
    }
    // A resumed session would not present its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(crypto)
}

/// Returns the configuration of a client that has a certificate.
pub(crate) fn client(
    resolver: Arc<CertificateResolver>,
    trust: &TrustAnchor,
    version: u8,
) -> Result<QuicClientConfig, IdentityError> {
    let servers = ServerVerifier { trusted: ServerTrust::Authority(trust.clone()), algorithms: algorithms()? };
    client_config(servers, resolver, alpn(version).into_bytes())
}

/// Returns the configuration of a client that has a join token, which names the authority.
pub(crate) fn joiner(key: &Key, authority: Fingerprint) -> Result<QuicClientConfig, IdentityError> {
    let servers = ServerVerifier { trusted: ServerTrust::Fingerprint(authority), algorithms: algorithms()? };
    let own = CertifiedKey::new(vec![key.self_signed_certificate()?], key.signer()?);
    client_config(servers, Arc::new(SelfSignedResolver(Arc::new(own))), JOIN_ALPN.into())
}

fn client_config(
    servers: ServerVerifier,
    resolver: Arc<dyn ResolvesClientCert>,
    protocol: Vec<u8>,
) -> Result<QuicClientConfig, IdentityError> {
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()?));
    let config = config.with_protocol_versions(&[&TLS13]).map_err(crypto)?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(servers));
    let mut config = config.with_client_cert_resolver(resolver);
    config.alpn_protocols = vec![protocol];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    QuicClientConfig::try_from(config).map_err(crypto)
}

#[derive(Debug)]
struct SelfSignedResolver(Arc<CertifiedKey>);

impl ResolvesClientCert for SelfSignedResolver {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Methods of a verifier with the field `algorithms` that check TLS 1.3 signatures and reject TLS 1.2.
macro_rules! signatures_of_tls_13 {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(no_tls_12())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            verify_tls13_signature(message, certificate, signed, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

/// Accepts clients with a certificate of the authority and, if joining is enabled, clients with a self-signed
/// certificate whose URI requests to join.
struct ClientVerifier {
    trust: TrustAnchor,
    strangers: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if self.strangers && others.is_empty() && self_signed_key(certificate).is_some() {
            return Ok(ClientCertVerified::assertion());
        }
        let signed = self.trust.signed(certificate, HandshakeSide::Client, now.into());
        signed.map(|()| ClientCertVerified::assertion()).map_err(refused)
    }

    signatures_of_tls_13!();
}

/// Accepts nodes of the authority.
struct ServerVerifier {
    trusted: ServerTrust,
    algorithms: WebPkiSupportedAlgorithms,
}

enum ServerTrust {
    Authority(TrustAnchor),
    Fingerprint(Fingerprint),
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let signed = match &self.trusted {
            ServerTrust::Authority(trust) => trust.signed(certificate, HandshakeSide::Server, now.into()),
            ServerTrust::Fingerprint(authority) => {
                let trust = authority_among(others, *authority)
                    .ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
                trust.signed(certificate, HandshakeSide::Server, now.into())
            }
        };
        signed.map(|()| ServerCertVerified::assertion()).map_err(refused)
    }

    signatures_of_tls_13!();
}

/// Returns the authority with that fingerprint, if its certificate is in a server's chain.
pub(crate) fn authority_among(chain: &[CertificateDer<'_>], fingerprint: Fingerprint) -> Option<TrustAnchor> {
    let found = chain.iter().find(|certificate| Fingerprint::from_certificate(certificate) == fingerprint)?;
    TrustAnchor::new(found.clone().into_owned()).ok()
}

/// Converts a rejection to the TLS alert that the peer receives. An alert carries no text, which is why most checks
/// come after the handshake.
fn refused(reason: PeerError) -> rustls::Error {
    rustls::Error::InvalidCertificate(match reason {
        PeerError::OtherAuthority { .. } => CertificateError::UnknownIssuer,
        _ => CertificateError::BadEncoding,
    })
}

fn no_tls_12() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not supported".to_owned())
}

fn crypto(error: impl fmt::Display) -> IdentityError {
    IdentityError::Crypto(error.to_string())
}

macro_rules! named {
    ($($name:ident),*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        })*
    };
}

named!(ClientVerifier, ServerVerifier);
