//! QUIC configuration. QUIC's defaults do not bound the memory that a peer can use.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;

use super::environment::{EndpointEnvironment, QuicTime};
use crate::clock::Clock;
use crate::congestion;
use crate::identity::{Identity, IdentityError, Key, TrustAnchor};
use crate::limits::WireLimits;
use crate::name::{Fingerprint, Role};
use crate::tls::{self, CertificateResolver};

/// The welcome is the only unidirectional stream.
const WELCOMES: u32 = 1;

/// Returns the configuration of outgoing connections. Its full limits apply from the start: TLS authenticates the node
/// before buffers are used.
pub fn transport_config(limits: &WireLimits) -> TransportConfig {
    let mut config = TransportConfig::default();
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(limits.datagram_bytes_max);
    let idle = VarInt::from_u64(limits.idle_ms_max).unwrap_or(VarInt::MAX);
    config
        // A stream uses memory until its first byte arrives and the application accepts it.
        .max_concurrent_bidi_streams(limits.streams_max.into())
        .max_concurrent_uni_streams(WELCOMES.into())
        // Bytes received but not read: of one stream, and of all streams.
        .stream_receive_window(limits.stream_window_bytes.into())
        .receive_window(limits.node_window_bytes.into())
        // Bytes sent but not acknowledged; a peer's own window may be larger.
        .send_window(limits.send_window_bytes)
        // Nothing uses QUIC datagrams.
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .mtu_discovery_config(Some(mtu))
        .congestion_controller_factory(Arc::new(congestion::BypassOnCloseFactory::default()))
        // Handshake data received out of order. A chain of two certificates has about 1 KiB.
        .crypto_buffer_size(8 << 10)
        // Does not reveal round-trip times to the network.
        .allow_spin(false)
        .keep_alive_interval(Some(Duration::from_millis(limits.keep_alive_ms)))
        .max_idle_timeout(Some(idle.into()));
    config
}

/// Returns the configuration of incoming connections: one stream and few bytes until the peer is admitted.
pub(super) fn incoming(limits: &WireLimits) -> TransportConfig {
    let mut config = transport_config(limits);
    config.max_concurrent_bidi_streams(1_u32.into()).max_concurrent_uni_streams(0_u32.into());
    config.receive_window(limits.handshake_window_bytes.into());
    config
}

/// Raises the limits of an admitted peer. For a tenant the send window is limited to the receive window too.
pub(super) fn raise_limits(quinn: &quinn::Connection, limits: &WireLimits, role: Role) {
    let window_bytes = match role {
        Role::Node => limits.node_window_bytes,
        Role::Tenant => {
            quinn.set_send_window(limits.send_window_bytes.min(limits.tenant_window_bytes.into()));
            limits.tenant_window_bytes
        }
    };
    quinn.set_receive_window(window_bytes.into());
    quinn.set_max_concurrent_bi_streams(limits.streams_max.into());
}

/// Returns the endpoint configuration of a client without an identity.
pub(super) fn plain_endpoint(environment: &EndpointEnvironment, limits: &WireLimits) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    apply_common(&mut config, environment, limits);
    config
}

/// Returns the endpoint configuration for an identity. Its reset key and connection ids derive from the identity's key,
/// so they survive a restart: the restarted node can reset its peers' old connections (stateless reset), and peers need
/// not wait for the idle timeout.
pub(super) fn endpoint(environment: &EndpointEnvironment, limits: &WireLimits, identity: &Identity) -> EndpointConfig {
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.key().derive(b"sandbar: resets"));
    let ids = identity.key().derive(b"sandbar: connection ids");
    let ids = ids.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    apply_common(&mut config, environment, limits);
    config
}

fn apply_common(config: &mut EndpointConfig, environment: &EndpointEnvironment, limits: &WireLimits) {
    // Can't fail: `WireLimits::check` covers the range.
    let _ = config.max_udp_payload_size(limits.datagram_bytes_max);
    // Version 1 only. Without greasing, packets whose fixed bit is zero are discarded immediately.
    config.supported_versions(vec![1]).grease_quic_bit(false).rng_seed(environment.seed);
}

/// Returns the configuration of a node as a server.
pub(super) fn server(
    limits: &WireLimits,
    clock: &Arc<dyn Clock>,
    resolver: Arc<CertificateResolver>,
    trust: &TrustAnchor,
    version: u8,
    joins: bool,
) -> Result<quinn::ServerConfig, IdentityError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls::server(resolver, trust, version, joins)?));
    config
        .transport_config(Arc::new(incoming(limits)))
        // A peer that changes its address reconnects, so that the limits by address hold for a connection's whole life.
        .migration(false)
        .max_incoming(limits.handshakes_max)
        .incoming_buffer_size(limits.incoming_buffer_bytes_max)
        .incoming_buffer_size_total(limits.incoming_buffers_bytes_max)
        .retry_token_lifetime(Duration::from_millis(limits.handshake_time_ms_max))
        .time_source(Arc::new(QuicTime(clock.clone())));
    Ok(config)
}

/// Returns the configuration of outgoing connections.
pub(super) fn client(
    limits: &WireLimits,
    resolver: Arc<CertificateResolver>,
    trust: &TrustAnchor,
    version: u8,
) -> Result<quinn::ClientConfig, IdentityError> {
    let mut config = quinn::ClientConfig::new(Arc::new(tls::client(resolver, trust, version)?));
    config.transport_config(Arc::new(transport_config(limits)));
    Ok(config)
}

/// Returns the configuration of a connection that joins.
pub(super) fn joiner(
    limits: &WireLimits,
    key: &Key,
    authority: Fingerprint,
) -> Result<quinn::ClientConfig, IdentityError> {
    let mut config = quinn::ClientConfig::new(Arc::new(tls::joiner(key, authority)?));
    let mut transport = transport_config(limits);
    // The node opens no stream to a joining client.
    transport.max_concurrent_bidi_streams(0_u32.into()).max_concurrent_uni_streams(0_u32.into());
    config.transport_config(Arc::new(transport));
    Ok(config)
}
