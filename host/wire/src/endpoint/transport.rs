//! QUIC's settings. Its defaults bound nothing: a peer could have any number of bytes kept for it.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;

use super::congestion;
use super::ground::{Ground, QuicTime};
use crate::clock::Clock;
use crate::identity::{Identity, IdentityError, Key, Trust};
use crate::limits::WireLimits;
use crate::name::{Fingerprint, Role};
use crate::tls::{self, Shown};

/// The only unidirectional stream is the welcome.
const WELCOMES: u32 = 1;

/// QUIC's settings of a connection to others: TLS has let through a node before anything is kept for it.
pub fn transport_config(limits: &WireLimits) -> TransportConfig {
    let mut config = TransportConfig::default();
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(limits.datagram_bytes_max);
    let idle = VarInt::from_u64(limits.idle_ms_max).unwrap_or(VarInt::MAX);
    config
        // One waits in memory for as long as its first byte does not come, or nobody takes it.
        .max_concurrent_bidi_streams(limits.streams_max.into())
        .max_concurrent_uni_streams(WELCOMES.into())
        // What has come and was not read, of a stream and of all of them.
        .stream_receive_window(limits.stream_window_bytes.into())
        .receive_window(limits.node_window_bytes.into())
        // What was written and not acknowledged: a peer may allow more than this end likes to keep.
        .send_window(limits.send_window_bytes)
        // Nobody here sends datagrams, so nobody's are kept.
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .mtu_discovery_config(Some(mtu))
        .congestion_controller_factory(Arc::new(congestion::Factory::default()))
        // Parts of a handshake that came before others; a chain of two certificates has a kilobyte.
        .crypto_buffer_size(8 << 10)
        // Round trips are nobody's business on the way.
        .allow_spin(false)
        .keep_alive_interval(Some(Duration::from_millis(limits.keep_alive_ms)))
        .max_idle_timeout(Some(idle.into()));
    config
}

/// Of connections from others, who may be anybody: one stream and few bytes, until they are let in.
pub(super) fn incoming(limits: &WireLimits) -> TransportConfig {
    let mut config = transport_config(limits);
    config.max_concurrent_bidi_streams(1_u32.into()).max_concurrent_uni_streams(0_u32.into());
    config.receive_window(limits.handshake_window_bytes.into());
    config
}

/// What a peer may have once it is let in. What is written for a tenant and not acknowledged is as much as may come of it.
pub(super) fn widen(quinn: &quinn::Connection, limits: &WireLimits, role: Role) {
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

/// Of an end that only connects, and has no key yet.
pub(super) fn plain_endpoint(ground: &Ground, limits: &WireLimits) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    settle(&mut config, ground, limits);
    config
}

/// Of an end that has a key. What it derives from that is the same when it starts again: then it can tell peers of before
/// that their connections are gone (a stateless reset), and they need not wait until these are idle.
pub(super) fn endpoint(ground: &Ground, limits: &WireLimits, identity: &Identity) -> EndpointConfig {
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.key().derive(b"sandbar: resets"));
    let ids = identity.key().derive(b"sandbar: connection ids");
    let ids = ids.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    settle(&mut config, ground, limits);
    config
}

fn settle(config: &mut EndpointConfig, ground: &Ground, limits: &WireLimits) {
    // Checked: what can be wrong with it was looked at with the limits.
    let _ = config.max_udp_payload_size(limits.datagram_bytes_max);
    // Version 1 alone. And who does not set a bit that QUIC has set sends garbage, which costs nothing then.
    config.supported_versions(vec![1]).grease_quic_bit(false).rng_seed(ground.seed);
}

/// Of a node.
pub(super) fn server(
    limits: &WireLimits,
    ground_clock: &Arc<dyn Clock>,
    shown: Arc<Shown>,
    trust: &Trust,
    version: u8,
    joins: bool,
) -> Result<quinn::ServerConfig, IdentityError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls::server(shown, trust, version, joins)?));
    config
        .transport_config(Arc::new(incoming(limits)))
        // A peer that moves to another address connects again: bounds on addresses hold for as long as a connection.
        .migration(false)
        .max_incoming(limits.handshakes_max)
        .incoming_buffer_size(limits.incoming_buffer_bytes_max)
        .incoming_buffer_size_total(limits.incoming_buffers_bytes_max)
        .retry_token_lifetime(Duration::from_millis(limits.handshake_time_ms_max))
        .time_source(Arc::new(QuicTime(ground_clock.clone())));
    Ok(config)
}

/// Of connections to others.
pub(super) fn client(
    limits: &WireLimits,
    shown: Arc<Shown>,
    trust: &Trust,
    version: u8,
) -> Result<quinn::ClientConfig, IdentityError> {
    let mut config = quinn::ClientConfig::new(Arc::new(tls::client(shown, trust, version)?));
    config.transport_config(Arc::new(transport_config(limits)));
    Ok(config)
}

/// Of a connection to join.
pub(super) fn joiner(
    limits: &WireLimits,
    key: &Key,
    authority: Fingerprint,
) -> Result<quinn::ClientConfig, IdentityError> {
    let mut config = quinn::ClientConfig::new(Arc::new(tls::joiner(key, authority)?));
    let mut transport = transport_config(limits);
    // Nobody opens a stream to who joins.
    transport.max_concurrent_bidi_streams(0_u32.into()).max_concurrent_uni_streams(0_u32.into());
    config.transport_config(Arc::new(transport));
    Ok(config)
}
