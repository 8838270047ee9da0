//! A peer without this crate's protocol: plain QUIC with any certificate.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519, SanType};
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use sandbar_wire::*;

use self::accept_any_server::AcceptAnyServer;
use crate::support::*;

#[path = "../../src/transfer/tests/accept_any_server.rs"]
mod accept_any_server;

/// Returns the name of this version's protocol.
pub fn alpn() -> String {
    format!("sandbar/{PROTOCOL_VERSION}")
}

pub struct Raw {
    pub endpoint: quinn::Endpoint,
    chain: Vec<CertificateDer<'static>>,
    pub pair: KeyPair,
}

impl Raw {
    /// Creates a peer with a certificate of the cluster's authority.
    pub fn member(cluster: &Cluster, role: Role, name: &str) -> Raw {
        let pair = key();
        let request = CertificateParams::default().serialize_request(&pair).unwrap();
        let lifetime = Duration::from_secs(DAY);
        let certificate = cluster.authority.certify(request.der(), &principal(role, name), lifetime, now()).unwrap();
        Raw::with(pair, vec![certificate.into()])
    }

    /// Creates a peer with a self-signed certificate for given URIs.
    pub fn self_signed(uris: &[&str]) -> Raw {
        let pair = key();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        let certificate = params.self_signed(&pair).unwrap();
        Raw::with(pair, vec![certificate.into()])
    }

    pub fn with(pair: KeyPair, chain: Vec<CertificateDer<'static>>) -> Raw {
        Raw { endpoint: quinn::Endpoint::client(LOOPBACK).unwrap(), chain, pair }
    }

    pub fn config(&self, protocol: &str) -> quinn::ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider);
        let config = config.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyServer));
        let mut config = match self.chain.is_empty() {
            true => config.with_no_client_auth(),
            false => {
                let key = PrivatePkcs8KeyDer::from(self.pair.serialize_der());
                let key = rustls::crypto::ring::sign::any_eddsa_type(&key).unwrap();
                config.with_client_cert_resolver(Arc::new(FixedCertificate(Arc::new(CertifiedKey::new(
                    self.chain.clone(),
                    key,
                )))))
            }
        };
        config.alpn_protocols = vec![protocol.into()];
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
    }

    /// Returns a server configuration that does not authenticate clients.
    pub fn server(&self, protocol: &str) -> quinn::ServerConfig {
        let key = PrivatePkcs8KeyDer::from(self.pair.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider);
        let config = config.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_no_client_auth();
        let mut config = config.with_single_cert(self.chain.clone(), key).unwrap();
        config.alpn_protocols = vec![protocol.into()];
        quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(config).unwrap()))
    }

    pub async fn connect(&self, to: SocketAddr, protocol: &str) -> Result<quinn::Connection, quinn::ConnectionError> {
        self.endpoint.connect_with(self.config(protocol), to, "sandbar").unwrap().await
    }

    /// Connects and waits for admission.
    pub async fn connect_in(&self, to: &Endpoint) -> quinn::Connection {
        let quinn = self.connect(to.address().unwrap(), &alpn()).await.unwrap();
        let mut welcome = quinn.accept_uni().await.unwrap();
        assert_eq!(welcome.read_to_end(10).await.unwrap(), [1]);
        quinn
    }

    /// Returns why a server closed or refused the connection.
    pub async fn closed(&self, to: SocketAddr, protocol: &str) -> Result<(CloseCode, String), DisconnectReason> {
        let lost = match self.connect(to, protocol).await {
            Ok(quinn) => closed(&quinn).await,
            Err(error) => error.into(),
        };
        match lost {
            DisconnectReason::Closed { code, reason } => Ok((code, reason)),
            other => Err(other),
        }
    }
}

impl Raw {
    /// Starts a handshake of which only some datagrams are sent.
    pub fn begin(&self, from: IpAddr, to: SocketAddr, datagrams: usize) -> (quinn::Endpoint, quinn::Connecting) {
        let endpoint = limited_endpoint(from, datagrams, false);
        let connecting = endpoint.connect_with(self.config(&alpn()), to, "sandbar").unwrap();
        (endpoint, connecting)
    }
}

/// Creates a client that sends a limited number of datagrams, and optionally receives none.
pub fn limited_endpoint(from: IpAddr, datagrams: usize, is_deaf: bool) -> quinn::Endpoint {
    let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
    let socket = runtime.wrap_udp_socket(std::net::UdpSocket::bind((from, 0)).unwrap()).unwrap();
    let socket = Arc::new(LimitedSocket { socket, left: AtomicUsize::new(datagrams), is_deaf });
    quinn::Endpoint::new_with_abstract_socket(quinn::EndpointConfig::default(), None, socket, runtime).unwrap()
}

/// A socket that drops datagrams after a number of them, and optionally receives none.
#[derive(Debug)]
struct LimitedSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    left: AtomicUsize,
    is_deaf: bool,
}

impl AsyncUdpSocket for LimitedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.left.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => self.socket.try_send(transmit),
            Err(_) => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.is_deaf { Poll::Pending } else { self.socket.poll_recv(cx, buffers, meta) }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

pub async fn closed(quinn: &quinn::Connection) -> DisconnectReason {
    tokio::time::timeout(Duration::from_secs(10), quinn.closed()).await.expect("it was not closed").into()
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).unwrap()
}

/// Presents a fixed certificate.
#[derive(Debug)]
struct FixedCertificate(Arc<CertifiedKey>);

impl rustls::client::ResolvesClientCert for FixedCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
