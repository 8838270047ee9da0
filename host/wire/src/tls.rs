//! TLS as QUIC needs it here: version 1.3 alone, few algorithms, certificates of one authority on both ends.
//!
//! TLS asks who signed a certificate, and whether the other end has its key. All else, its time first, is asked when the
//! handshake is done, by [`Trust::identify`](crate::identity::Trust): so that the other end learns why it is not let in.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::ring::{cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use crate::identity::{Identity, IdentityError, Key, PeerError, Side, Trust, algorithms, is_stranger};
use crate::name::Fingerprint;
use crate::protocol::{JOIN_ALPN, alpn, versions};

/// What both ends can do. Each is the field's first choice; with one of each nobody can be talked into a worse one, and a
/// stranger can't choose what is dear.
pub(crate) fn provider() -> Result<CryptoProvider, IdentityError> {
    Ok(CryptoProvider {
        // QUIC asks for the first; the second is for machines without AES.
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
        kx_groups: vec![kx_group::X25519],
        signature_verification_algorithms: algorithms()?,
        ..rustls::crypto::ring::default_provider()
    })
}

/// The name that clients ask for: none is looked at, the certificate's URI is.
pub(crate) const SERVER_NAME: &str = "sandbar";

/// What an end shows, which changes when it renews. Handshakes that begin later show the newer.
#[derive(Debug)]
pub(crate) struct Shown {
    now: Mutex<Arc<Certificates>>,
}

#[derive(Debug)]
struct Certificates {
    alone: Arc<CertifiedKey>,
    /// For those who join: they know the authority's certificate by its fingerprint alone.
    with_authority: Arc<CertifiedKey>,
}

impl Shown {
    pub(crate) fn new(identity: &Identity) -> Result<Shown, IdentityError> {
        Ok(Shown { now: Mutex::new(Arc::new(Certificates::of(identity)?)) })
    }

    pub(crate) fn show(&self, identity: &Identity) -> Result<(), IdentityError> {
        let next = Arc::new(Certificates::of(identity)?);
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn now(&self) -> Arc<Certificates> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Certificates {
    fn of(identity: &Identity) -> Result<Certificates, IdentityError> {
        let (key, certificate) = (identity.key().signer()?, identity.certificate().clone());
        let both = vec![certificate.clone(), identity.trust().certificate().clone()];
        Ok(Certificates {
            alone: Arc::new(CertifiedKey::new(vec![certificate], key.clone())),
            with_authority: Arc::new(CertifiedKey::new(both, key)),
        })
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let joins = hello.alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == JOIN_ALPN.as_bytes()));
        let certificates = self.now();
        Some(if joins { certificates.with_authority.clone() } else { certificates.alone.clone() })
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now().alone.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// For a node: it completes handshakes with every version, to name its own to them, and with strangers if it takes them in.
pub(crate) fn server(
    shown: Arc<Shown>,
    trust: &Trust,
    version: u8,
    joins: bool,
) -> Result<QuicServerConfig, IdentityError> {
    let clients = Clients { trust: trust.clone(), strangers: joins, algorithms: algorithms()? };
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider()?));
    let config = config.with_protocol_versions(&[&TLS13]).map_err(crypto)?;
    let mut config = config.with_client_cert_verifier(Arc::new(clients)).with_cert_resolver(shown);
    config.alpn_protocols = std::iter::once(alpn(version).into_bytes()).chain(versions()).collect();
    if joins {
        config.alpn_protocols.push(JOIN_ALPN.into());
    }
    // A resumed session would not show its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(crypto)
}

/// For who has a certificate.
pub(crate) fn client(shown: Arc<Shown>, trust: &Trust, version: u8) -> Result<QuicClientConfig, IdentityError> {
    let servers = Servers { trusted: Trusted::Authority(trust.clone()), algorithms: algorithms()? };
    client_config(servers, shown, alpn(version).into_bytes())
}

/// For who has a token, which names the authority.
pub(crate) fn joiner(key: &Key, authority: Fingerprint) -> Result<QuicClientConfig, IdentityError> {
    let servers = Servers { trusted: Trusted::Fingerprint(authority), algorithms: algorithms()? };
    let own = CertifiedKey::new(vec![key.stranger()?], key.signer()?);
    client_config(servers, Arc::new(Stranger(Arc::new(own))), JOIN_ALPN.into())
}

fn client_config(
    servers: Servers,
    shown: Arc<dyn ResolvesClientCert>,
    protocol: Vec<u8>,
) -> Result<QuicClientConfig, IdentityError> {
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()?));
    let config = config.with_protocol_versions(&[&TLS13]).map_err(crypto)?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(servers));
    let mut config = config.with_client_cert_resolver(shown);
    config.alpn_protocols = vec![protocol];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    QuicClientConfig::try_from(config).map_err(crypto)
}

#[derive(Debug)]
struct Stranger(Arc<CertifiedKey>);

impl ResolvesClientCert for Stranger {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Lets through who has a certificate of the authority and, where somebody may join, who has none and says so.
struct Clients {
    trust: Trust,
    strangers: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if self.strangers && others.is_empty() && is_stranger(certificate).is_some() {
            return Ok(ClientCertVerified::assertion());
        }
        let signed = self.trust.signed(certificate, Side::Client, now.into());
        signed.map(|()| ClientCertVerified::assertion()).map_err(refused)
    }

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
}

/// Lets through nodes of the authority.
struct Servers {
    trusted: Trusted,
    algorithms: WebPkiSupportedAlgorithms,
}

enum Trusted {
    Authority(Trust),
    Fingerprint(Fingerprint),
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let signed = match &self.trusted {
            Trusted::Authority(trust) => trust.signed(certificate, Side::Server, now.into()),
            Trusted::Fingerprint(authority) => {
                let trust = authority_among(others, *authority)
                    .ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
                trust.signed(certificate, Side::Server, now.into())
            }
        };
        signed.map(|()| ServerCertVerified::assertion()).map_err(refused)
    }

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
}

/// The authority of that fingerprint, if its certificate is among those that a server shows.
pub(crate) fn authority_among(shown: &[CertificateDer<'_>], wanted: Fingerprint) -> Option<Trust> {
    let found = shown.iter().find(|certificate| Fingerprint::of(certificate) == wanted)?;
    Trust::new(found.clone().into_owned()).ok()
}

/// As the alert that the other end gets: it has no words, so that they are said when the handshake is done.
fn refused(reason: PeerError) -> rustls::Error {
    rustls::Error::InvalidCertificate(match reason {
        PeerError::OtherAuthority { .. } => CertificateError::UnknownIssuer,
        _ => CertificateError::BadEncoding,
    })
}

fn no_tls_12() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not spoken here".to_owned())
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

named!(Clients, Servers);
