//! The table of connected peers: admission, revocation and expiry.
//!
//! One lock covers the checks for revocation, limits and duplicate names, and the insertion. A concurrent revocation
//! therefore happens entirely before or entirely after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::disconnect::close;
use crate::identity::PeerError;
use crate::limits::WireLimits;
use crate::name::{Name, PeerIdentity, Role, Serial, TokenId};

/// Revoked certificates, names and tokens. The owner of the cluster's state replaces the whole list on every change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevocationList {
    /// Serial numbers of revoked certificates.
    pub serials: BTreeSet<Serial>,
    /// Names all of whose certificates are revoked.
    pub names: BTreeSet<(Role, Name)>,
    /// Join tokens that must not be used any more.
    pub tokens: BTreeSet<TokenId>,
}

impl RevocationList {
    fn has(&self, peer: &PeerIdentity) -> bool {
        self.serials.contains(&peer.serial) || self.names.iter().any(|(r, n)| *r == peer.role && *n == peer.name)
    }
}

/// Which end initiated a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Incoming,
    Outgoing,
}

#[derive(Debug)]
pub(super) struct PeerTable {
    limits: WireLimits,
    state: Mutex<PeersState>,
}

#[derive(Debug, Default)]
struct PeersState {
    revoked: RevocationList,
    next: u64,
    /// Ordered by arrival, so that a simulation closes connections in a reproducible order.
    live: BTreeMap<u64, LiveConnection>,
}

#[derive(Debug)]
struct LiveConnection {
    quinn: quinn::Connection,
    peer: PeerIdentity,
    direction: Direction,
}

/// Membership of a connection in the table; dropping it removes the connection.
#[derive(Debug)]
pub(crate) struct PeerEntry {
    peers: Arc<PeerTable>,
    number: u64,
}

impl PeerTable {
    pub(super) fn new(limits: &WireLimits) -> Arc<PeerTable> {
        Arc::new(PeerTable { limits: *limits, state: Mutex::default() })
    }

    /// Adds a peer. A node has at most one connection to this end. On a duplicate the newer certificate wins; with the
    /// same certificate the newer connection wins, as a restarted node does not know its older one.
    ///
    /// # Errors
    /// The peer is revoked, a limit is reached, or the same name is connected with a newer certificate.
    pub(super) fn insert(
        self: &Arc<PeerTable>,
        peer: &PeerIdentity,
        quinn: &quinn::Connection,
        direction: Direction,
    ) -> Result<PeerEntry, PeerError> {
        let state = &mut *self.lock();
        if state.revoked.has(peer) {
            return Err(revoked(peer));
        }
        if direction == Direction::Incoming {
            match peer.role {
                Role::Node => state.replace_node(peer, self.limits.nodes_max)?,
                Role::Tenant => {
                    state.check_tenant_limit(Some(&peer.name), self.limits.connections_per_tenant_max)?;
                    state.check_tenant_limit(None, self.limits.tenants_max)?;
                }
            }
        }
        let number = state.next;
        state.next += 1;
        state.live.insert(number, LiveConnection { quinn: quinn.clone(), peer: peer.clone(), direction });
        Ok(PeerEntry { peers: self.clone(), number })
    }

    /// Replaces the revocation list and closes revoked connections.
    pub(super) fn revoke(&self, revoked_now: RevocationList) {
        let state = &mut *self.lock();
        state.revoked = revoked_now;
        let PeersState { revoked: set, live, .. } = state;
        live.values().filter(|live| set.has(&live.peer)).for_each(|live| live.close(&revoked(&live.peer)));
    }

    pub(super) fn is_token_revoked(&self, token: &TokenId) -> bool {
        self.lock().revoked.tokens.contains(token)
    }

    /// Closes connections whose certificate expired without being renewed.
    pub(super) fn sweep(&self, now: Timestamp) {
        let ended = now.before(Duration::from_secs(CLOCK_SKEW_S_MAX));
        for live in self.lock().live.values().filter(|live| live.peer.expires < ended) {
            live.close(&PeerError::Expired { ended: live.peer.expires, now });
        }
    }

    /// Returns all connections.
    pub(super) fn all(&self) -> Vec<quinn::Connection> {
        self.lock().live.values().map(|live| live.quinn.clone()).collect()
    }

    pub(super) fn count(&self, direction: Direction) -> usize {
        self.lock().live.values().filter(|live| live.direction == direction && live.is_open()).count()
    }

    fn lock(&self) -> MutexGuard<'_, PeersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeersState {
    fn incoming(&self, role: Role) -> impl Iterator<Item = &LiveConnection> {
        let is_one = move |live: &&LiveConnection| {
            live.direction == Direction::Incoming && live.peer.role == role && live.is_open()
        };
        self.live.values().filter(is_one)
    }

    fn replace_node(&self, peer: &PeerIdentity, max: usize) -> Result<(), PeerError> {
        let before = self.incoming(Role::Node).find(|live| live.peer.name == peer.name);
        match before {
            Some(live) if live.peer.begins > peer.begins => return Err(PeerError::OlderCertificate(peer.to_string())),
            Some(live) => live.close(&PeerError::Reconnected(peer.to_string())),
            None if self.incoming(Role::Node).count() >= max => {
                return Err(PeerError::Full { group: "of nodes".to_owned(), max });
            }
            None => {}
        }
        Ok(())
    }

    fn check_tenant_limit(&self, tenant: Option<&Name>, max: usize) -> Result<(), PeerError> {
        let count =
            self.incoming(Role::Tenant).filter(|live| tenant.is_none_or(|name| live.peer.name == *name)).count();
        let group = || tenant.map_or("of tenants".to_owned(), |name| format!("of tenant {name:?}"));
        if count < max { Ok(()) } else { Err(PeerError::Full { group: group(), max }) }
    }
}

impl LiveConnection {
    fn is_open(&self) -> bool {
        self.quinn.close_reason().is_none()
    }

    fn close(&self, reason: &PeerError) {
        close(&self.quinn, reason.close_code(), &reason.to_string());
    }
}

impl PeerEntry {
    /// Records the peer's newer certificate.
    ///
    /// # Errors
    /// That certificate is revoked.
    pub(crate) fn set_peer(&self, peer: PeerIdentity) -> Result<(), PeerError> {
        let state = &mut *self.peers.lock();
        if state.revoked.has(&peer) {
            return Err(revoked(&peer));
        }
        match state.live.get_mut(&self.number) {
            Some(live) if live.peer.expires < peer.expires => live.peer = peer,
            _ => {}
        }
        Ok(())
    }
}

impl Drop for PeerEntry {
    fn drop(&mut self) {
        self.peers.lock().live.remove(&self.number);
    }
}

fn revoked(peer: &PeerIdentity) -> PeerError {
    PeerError::Revoked { peer: peer.to_string(), serial: peer.serial }
}
