//! Incoming connections of a node: handshake, checks, and the accept queues.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::timeout;

use super::environment::canonical;
use super::handshake::{negotiated_protocol, peer_chain};
use super::handshake_limiter::{HandshakeDecision, HandshakePermit};
use super::peers::Direction;
use super::state::EndpointState;
use super::{join_server, transport};
use crate::connection::Connection;
use crate::disconnect::{DisconnectReason, close};
use crate::identity::{HandshakeSide, PeerError, self_signed_key};
use crate::name::{PeerIdentity, Role};
use crate::protocol::{JOIN_ALPN, WELCOME, version_of};

/// Examines each connection attempt immediately, and spawns a task for each handshake. Ends with the endpoint.
pub(super) async fn accept_loop(shared: Arc<EndpointState>) {
    while let Some(incoming) = shared.quinn.accept().await {
        let address = incoming.remote_address().ip().to_canonical();
        match shared.limiter.admit(address, incoming.remote_address_validated()) {
            HandshakeDecision::Accept(permit) => drop(tokio::spawn(handshake(shared.clone(), incoming, permit))),
            HandshakeDecision::Retry => {
                shared.counts.retried.fetch_add(1, Relaxed);
                // Retry is allowed: the address is not validated yet.
                let _ = incoming.retry();
            }
            HandshakeDecision::Ignore => {
                shared.counts.ignored.fetch_add(1, Relaxed);
                incoming.ignore();
            }
        }
    }
}

/// Result of a handshake.
enum Outcome {
    Admitted(Role),
    Joined,
    Refused,
    Failed,
}

async fn handshake(shared: Arc<EndpointState>, incoming: quinn::Incoming, permit: HandshakePermit) {
    let from = canonical(incoming.remote_address());
    let address = from.ip();
    let time = Duration::from_millis(shared.limits.handshake_time_ms_max);
    let outcome = match timeout(time, async { incoming.accept()?.await }).await {
        Ok(Ok(quinn)) if negotiated_protocol(&quinn) == JOIN_ALPN.as_bytes() => {
            match join_server::serve(&shared, &quinn).await {
                true => Outcome::Joined,
                false => Outcome::Refused,
            }
        }
        Ok(Ok(quinn)) => timeout(time, admit(&shared, &quinn)).await.unwrap_or(Outcome::Failed),
        Ok(Err(error)) => {
            match DisconnectReason::from(error) {
                // A client that tries several addresses at once abandons all but one.
                reason @ (DisconnectReason::Silent | DisconnectReason::Closed { .. }) => {
                    log::debug!("{from} did not connect: {reason}")
                }
                reason => log::warn!("refused {from}: {reason}"),
            }
            Outcome::Failed
        }
        Err(_) => {
            log::debug!("{from} did not authenticate within {} ms", time.as_millis());
            Outcome::Failed
        }
    };
    let counts = &shared.counts;
    let (count, keeps_permit) = match outcome {
        Outcome::Admitted(role) => {
            shared.limiter.remember(address, role);
            (&counts.admitted, false)
        }
        Outcome::Joined => (&counts.joined, false),
        Outcome::Refused => (&counts.refused, true),
        Outcome::Failed => (&counts.failed, true),
    };
    count.fetch_add(1, Relaxed);
    if keeps_permit {
        drop(shared);
        tokio::time::sleep(time).await;
    }
    drop(permit);
}

async fn admit(shared: &Arc<EndpointState>, quinn: &quinn::Connection) -> Outcome {
    match welcome(shared, quinn).await {
        Ok(Some(role)) => Outcome::Admitted(role),
        Ok(None) => Outcome::Failed,
        Err(reason) => {
            log::warn!("refused {}: {reason}", canonical(quinn.remote_address()));
            close(quinn, reason.close_code(), &reason.to_string());
            Outcome::Refused
        }
    }
}

/// Checks a peer, enters it into the peer table and writes the welcome. Returns its role; `None` if it disconnected
/// meanwhile.
async fn welcome(shared: &Arc<EndpointState>, quinn: &quinn::Connection) -> Result<Option<Role>, PeerError> {
    let peer = identify(shared, quinn)?;
    if peer.role == Role::Tenant && shared.peers.check(&peer).is_err() {
        shared.read_access().await;
    }
    let queue = match peer.role {
        Role::Node => &shared.nodes,
        Role::Tenant => &shared.tenants,
    };
    let full = |_| PeerError::Full {
        group: format!("of {}s waiting to be accepted", peer.role),
        max: shared.limits.accept_queue_max,
    };
    let slot = queue.clone().try_reserve_owned().map_err(full)?;
    let entry = shared.peers.insert(&peer, quinn, Direction::Incoming)?;
    transport::raise_limits(quinn, &shared.limits, peer.role);
    let role = peer.role;
    let connection = Connection::new(quinn.clone(), peer, entry, &shared.limits, shared.clone());
    let welcome = async {
        let mut stream = quinn.open_uni().await.ok()?;
        stream.write_all(&[WELCOME]).await.ok()?;
        stream.finish().ok()
    };
    Ok(welcome.await.map(|()| {
        slot.send(connection);
        role
    }))
}

fn identify(shared: &EndpointState, quinn: &quinn::Connection) -> Result<PeerIdentity, PeerError> {
    let (ours, trust) = (shared.environment.version, shared.identity().trust().clone());
    match version_of(&negotiated_protocol(quinn)) {
        Some(theirs) if theirs != ours => return Err(PeerError::Version { ours, theirs }),
        _ => {}
    }
    let chain = peer_chain(quinn);
    if chain.first().is_some_and(|certificate| self_signed_key(certificate).is_some()) {
        return Err(PeerError::NoCertificate { ours: trust.cluster().clone() });
    }
    trust.identify(&chain, HandshakeSide::Client, shared.environment.clock.now())
}
