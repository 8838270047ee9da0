//! The door of a node: where others come in.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;

use super::gate::{Place, Verdict};
use super::ground::canonical;
use super::peers::{Direction, close};
use super::{Shared, joins, transport};
use crate::connection::Connection;
use crate::identity::{PeerError, Side, is_stranger};
use crate::lost::Lost;
use crate::name::{PeerIdentity, Role};
use crate::protocol::{JOIN_ALPN, WELCOME, version_of};

/// Looks at each attempt to connect at once, and never waits for one: handshakes have tasks of their own. Ends with the
/// endpoint.
pub(super) async fn keep(shared: Arc<Shared>) {
    while let Some(incoming) = shared.quinn.accept().await {
        let address = incoming.remote_address().ip().to_canonical();
        match shared.gate.ask(address, incoming.remote_address_validated()) {
            Verdict::Begin(place) => drop(tokio::spawn(begin(shared.clone(), incoming, place))),
            Verdict::Prove => {
                shared.counts.asked_to_prove.fetch_add(1, Relaxed);
                // It may, as it has not proved it yet.
                let _ = incoming.retry();
            }
            Verdict::Ignore => {
                shared.counts.ignored.fetch_add(1, Relaxed);
                incoming.ignore();
            }
        }
    }
}

/// How a handshake ended.
enum Outcome {
    LetIn(Role),
    Joined,
    Refused,
    Failed,
}

async fn begin(shared: Arc<Shared>, incoming: quinn::Incoming, place: Place) {
    let from = canonical(incoming.remote_address());
    let address = from.ip();
    let time = Duration::from_millis(shared.limits.handshake_time_ms_max);
    let outcome = match timeout(time, async { incoming.accept()?.await }).await {
        Ok(Ok(quinn)) if protocol(&quinn) == JOIN_ALPN.as_bytes() => match joins::answer(&shared, &quinn).await {
            true => Outcome::Joined,
            false => Outcome::Refused,
        },
        Ok(Ok(quinn)) => timeout(time, let_in(&shared, &quinn)).await.unwrap_or(Outcome::Failed),
        Ok(Err(error)) => {
            match Lost::from(error) {
                // Who tried several addresses at once took another.
                lost @ (Lost::Silent | Lost::Closed { .. }) => log::debug!("{from} did not connect: {lost}"),
                lost => log::warn!("refused {from}: {lost}"),
            }
            Outcome::Failed
        }
        Err(_) => {
            log::debug!("{from} did not prove who it is within {} ms", time.as_millis());
            Outcome::Failed
        }
    };
    let counts = &shared.counts;
    let (count, keeps_place) = match outcome {
        Outcome::LetIn(role) => {
            shared.gate.let_in(address, role);
            (&counts.let_in, false)
        }
        Outcome::Joined => (&counts.joined, false),
        Outcome::Refused => (&counts.refused, true),
        Outcome::Failed => (&counts.failed, true),
    };
    count.fetch_add(1, Relaxed);
    if keeps_place {
        drop(shared);
        tokio::time::sleep(time).await;
    }
    drop(place);
}

async fn let_in(shared: &Arc<Shared>, quinn: &quinn::Connection) -> Outcome {
    match welcome(shared, quinn).await {
        Ok(Some(role)) => Outcome::LetIn(role),
        Ok(None) => Outcome::Failed,
        Err(reason) => {
            log::warn!("refused {}: {reason}", canonical(quinn.remote_address()));
            close(quinn, reason.close_code(), &reason.to_string());
            Outcome::Refused
        }
    }
}

/// Lets a peer in that is what it should be, and says as what. Nothing if it went away meanwhile.
async fn welcome(shared: &Arc<Shared>, quinn: &quinn::Connection) -> Result<Option<Role>, PeerError> {
    let peer = identify(shared, quinn)?;
    let queue = match peer.role {
        Role::Node => &shared.nodes,
        Role::Tenant => &shared.tenants,
    };
    let full = |_| PeerError::Full { of: format!("of {}s that wait", peer.role), most: shared.limits.accept_queue_max };
    let place = queue.clone().try_reserve_owned().map_err(full)?;
    let entry = shared.peers.enter(&peer, quinn, Direction::Incoming)?;
    transport::widen(quinn, &shared.limits, peer.role);
    let role = peer.role;
    let connection = Connection::new(quinn.clone(), peer, entry, &shared.limits, shared.clone());
    let said = async {
        let mut stream = quinn.open_uni().await.ok()?;
        stream.write_all(&[WELCOME]).await.ok()?;
        stream.finish().ok()
    };
    Ok(said.await.map(|()| {
        place.send(connection);
        role
    }))
}

fn identify(shared: &Shared, quinn: &quinn::Connection) -> Result<PeerIdentity, PeerError> {
    let (ours, trust) = (shared.ground.version, shared.identity().trust().clone());
    match version_of(&protocol(quinn)) {
        Some(theirs) if theirs != ours => return Err(PeerError::Version { ours, theirs }),
        _ => {}
    }
    let chain = chain(quinn);
    if chain.first().is_some_and(|certificate| is_stranger(certificate).is_some()) {
        return Err(PeerError::Stranger { ours: trust.cluster().clone() });
    }
    trust.identify(&chain, Side::Client, shared.ground.clock.now())
}

/// The application protocol that TLS agreed on.
pub(super) fn protocol(quinn: &quinn::Connection) -> Vec<u8> {
    let data = quinn.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.and_then(|data| data.protocol).unwrap_or_default()
}

/// The certificates that the other end showed.
pub(super) fn chain(quinn: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let chain = quinn.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}
