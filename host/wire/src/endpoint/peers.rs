//! The table of connected peers: admission, revocation and expiry.
//!
//! One lock covers the checks of certificates, limits and duplicate names, and the insertion. A concurrent change of the
//! accepted certificates therefore happens entirely before or entirely after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::disconnect::close;
use crate::identity::PeerError;
use crate::limits::WireLimits;
use crate::name::{KeyId, Name, PeerIdentity, Role, TokenId};

/// Which certificates of the authority are accepted. The owner of the cluster's state replaces the whole list on every
/// change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessList {
    /// Keys of nodes all of whose certificates are revoked.
    pub revoked_keys: BTreeSet<KeyId>,
    /// Certificates of tenants that are accepted.
    pub tenants: AcceptedTenants,
}

/// Certificates of tenants that are accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AcceptedTenants {
    /// All that the authority issued.
    #[default]
    All,
    /// None, for now: this end does not know which tenants exist.
    Unknown,
    /// Those of these tenants and of these tokens.
    Tokens(BTreeMap<Name, BTreeSet<TokenId>>),
}

impl AccessList {
    /// Checks that a certificate is accepted.
    fn check(&self, peer: &PeerIdentity) -> Result<(), PeerError> {
        let is_accepted = match (&peer.access, &self.tenants) {
            (None, _) => !self.revoked_keys.contains(&peer.key),
            (Some(_), AcceptedTenants::All) => true,
            (Some(_), AcceptedTenants::Unknown) => return Err(PeerError::Unchecked),
            (Some(access), AcceptedTenants::Tokens(tenants)) => {
                tenants.get(&peer.name).is_some_and(|tokens| tokens.contains(&access.token))
            }
        };
        let token = peer.access.map(|access| access.token);
        let revoked = || PeerError::Revoked { peer: peer.to_string(), token, serial: peer.serial };
        is_accepted.then_some(()).ok_or_else(revoked)
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
    accepted: AccessList,
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
    /// The certificate is not accepted, a limit is reached, or the same name is connected with a newer certificate or
    /// another key.
    pub(super) fn insert(
        self: &Arc<PeerTable>,
        peer: &PeerIdentity,
        quinn: &quinn::Connection,
        direction: Direction,
    ) -> Result<PeerEntry, PeerError> {
        let state = &mut *self.lock();
        state.accepted.check(peer)?;
        if direction == Direction::Incoming {
            match peer.role {
                Role::Node => state.replace_node(peer, self.limits.nodes_max)?,
                Role::Tenant => state.make_room_for_tenant(&peer.name, &self.limits)?,
            }
        }
        let number = state.next;
        state.next += 1;
        state.live.insert(number, LiveConnection { quinn: quinn.clone(), peer: peer.clone(), direction });
        Ok(PeerEntry { peers: self.clone(), number })
    }

    /// Checks that a certificate is accepted.
    pub(super) fn check(&self, peer: &PeerIdentity) -> Result<(), PeerError> {
        self.lock().accepted.check(peer)
    }

    /// Replaces the list of accepted certificates, and closes connections of others.
    pub(super) fn set_accepted(&self, accepted: AccessList) {
        let state = &mut *self.lock();
        state.accepted = accepted;
        for live in state.live.values() {
            if let Err(reason) = state.accepted.check(&live.peer) {
                live.close(&reason);
            }
        }
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
            Some(live) if live.peer.key != peer.key => return Err(PeerError::OtherKey(peer.to_string())),
            Some(live) if live.peer.begins > peer.begins => return Err(PeerError::OlderCertificate(peer.to_string())),
            Some(live) => live.close(&PeerError::Reconnected(peer.to_string())),
            None if self.incoming(Role::Node).count() >= max => {
                return Err(PeerError::Full { group: "of nodes".to_owned(), max });
            }
            None => {}
        }
        Ok(())
    }

    /// Checks that a tenant may have one more connection. If all connections are in use, the tenant with the most
    /// connections loses its newest one, unless the applicant has nearly as many.
    fn make_room_for_tenant(&self, tenant: &Name, limits: &WireLimits) -> Result<(), PeerError> {
        let mut newest: BTreeMap<&Name, (usize, &LiveConnection)> = BTreeMap::new();
        for live in self.incoming(Role::Tenant) {
            let count = newest.get(&live.peer.name).map_or(0, |(count, _)| *count);
            newest.insert(&live.peer.name, (count + 1, live));
        }
        let own = newest.get(tenant).map_or(0, |(count, _)| *count);
        if own >= limits.connections_per_tenant_max {
            return Err(PeerError::Full {
                group: format!("of tenant {tenant:?}"),
                max: limits.connections_per_tenant_max,
            });
        }
        let all: usize = newest.values().map(|(count, _)| count).sum();
        if all < limits.tenants_max {
            return Ok(());
        }
        let full = || PeerError::Full { group: "of tenants".to_owned(), max: limits.tenants_max };
        let (_, (count, live)) = newest.into_iter().max_by_key(|(_, (count, _))| *count).ok_or_else(full)?;
        if count <= own + 1 {
            return Err(full());
        }
        live.close(&full());
        Ok(())
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
    /// That certificate is not accepted.
    pub(crate) fn set_peer(&self, peer: PeerIdentity) -> Result<(), PeerError> {
        let state = &mut *self.peers.lock();
        state.accepted.check(&peer)?;
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
