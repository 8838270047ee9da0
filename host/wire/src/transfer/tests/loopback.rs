//! Endpoints without authentication, for tests and benchmarks on one machine.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, Runtime, ServerConfig, TokioRuntime, TransportConfig};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use self::accept_any_server::AcceptAnyServer;

#[path = "accept_any_server.rs"]
mod accept_any_server;

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone()
}

/// Address of endpoints. `SANDBAR_ADDRESS` sets it for tests on another network.
pub fn address() -> Ipv4Addr {
    std::env::var("SANDBAR_ADDRESS").map_or(Ipv4Addr::LOCALHOST, |text| text.parse().unwrap())
}

/// Certificate of all endpoints of this process.
fn certificate() -> &'static (CertificateDer<'static>, Vec<u8>) {
    static CERTIFICATE: OnceLock<(CertificateDer<'static>, Vec<u8>)> = OnceLock::new();
    CERTIFICATE.get_or_init(|| {
        let generated = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (generated.cert.der().clone(), generated.signing_key.serialize_der())
    })
}

pub fn server_config(transport: Arc<TransportConfig>) -> ServerConfig {
    let (certificate, key) = certificate();
    let tls = rustls::ServerConfig::builder_with_provider(provider());
    let tls = tls.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_no_client_auth();
    let mut tls =
        tls.with_single_cert(vec![certificate.clone()], PrivatePkcs8KeyDer::from(key.clone()).into()).unwrap();
    tls.alpn_protocols = vec![b"sandbar-test".to_vec()];
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    config.transport_config(transport);
    config
}

pub fn client_config(transport: Arc<TransportConfig>) -> ClientConfig {
    let tls = rustls::ClientConfig::builder_with_provider(provider());
    let tls = tls.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().dangerous();
    let mut tls = tls.with_custom_certificate_verifier(Arc::new(AcceptAnyServer)).with_no_client_auth();
    tls.alpn_protocols = vec![b"sandbar-test".to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(transport);
    config
}

/// Creates an endpoint for both directions on a free port.
pub fn endpoint(transport: Arc<TransportConfig>) -> Endpoint {
    let socket = UdpSocket::bind(SocketAddr::from((address(), 0))).unwrap();
    for buffer in [rustix::net::sockopt::set_socket_recv_buffer_size, rustix::net::sockopt::set_socket_send_buffer_size]
    {
        buffer(&socket, super::SOCKET_BUFFER_BYTES).unwrap();
    }
    let socket = TokioRuntime.wrap_udp_socket(socket).unwrap();
    let server = Some(server_config(transport.clone()));
    let mut config = quinn::EndpointConfig::default();
    config.max_udp_payload_size(super::WireLimits::default().datagram_bytes_max).unwrap();
    let mut endpoint = Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime)).unwrap();
    endpoint.set_default_client_config(client_config(transport));
    endpoint
}
