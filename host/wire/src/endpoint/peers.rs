//! Who is connected: where a peer is let in, and where it is put out again.
//!
//! Whether a peer was revoked, how many there are and whether its name is connected already is looked at under one lock
//! with its being let in: a revocation that comes at the same time finds it either not in yet or in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::VarInt;

use super::congestion::let_through;
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::identity::PeerError;
use crate::limits::WireLimits;
use crate::name::{Name, PeerIdentity, Role, Serial, TokenId};
use crate::protocol::{CloseCode, REASON_BYTES_MAX};

/// What was taken back. Who holds a cluster's state sets it, whole, whenever it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked {
    /// Certificates, by number.
    pub serials: BTreeSet<Serial>,
    /// All certificates of a name.
    pub names: BTreeSet<(Role, Name)>,
    /// Join tokens that were not used, or are not to be used again.
    pub tokens: BTreeSet<TokenId>,
}

impl Revoked {
    fn has(&self, peer: &PeerIdentity) -> bool {
        self.serials.contains(&peer.serial) || self.names.iter().any(|(r, n)| *r == peer.role && *n == peer.name)
    }
}

/// Who connected to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Incoming,
    Outgoing,
}

#[derive(Debug)]
pub(super) struct Peers {
    limits: WireLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    revoked: Revoked,
    next: u64,
    /// In the order in which they came, so that a simulation closes them in the same one again.
    live: BTreeMap<u64, Live>,
}

#[derive(Debug)]
struct Live {
    quinn: quinn::Connection,
    peer: PeerIdentity,
    direction: Direction,
}

/// That a connection is in the table, until this is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    peers: Arc<Peers>,
    number: u64,
}

impl Peers {
    pub(super) fn new(limits: &WireLimits) -> Arc<Peers> {
        Arc::new(Peers { limits: *limits, state: Mutex::default() })
    }

    /// Lets a peer in. A node has one connection to this end: where it has one already, the newer certificate wins, and
    /// of one certificate the newer connection, as a node that was started again knows nothing of the one before.
    ///
    /// # Errors
    /// When it was revoked, there are as many as there may be, or it has a newer certificate.
    pub(super) fn enter(
        self: &Arc<Peers>,
        peer: &PeerIdentity,
        quinn: &quinn::Connection,
        direction: Direction,
    ) -> Result<Entry, PeerError> {
        let state = &mut *self.lock();
        if state.revoked.has(peer) {
            return Err(revoked(peer));
        }
        if direction == Direction::Incoming {
            match peer.role {
                Role::Node => state.make_way(peer, self.limits.nodes_max)?,
                Role::Tenant => {
                    state.room(Some(&peer.name), self.limits.connections_per_tenant_max)?;
                    state.room(None, self.limits.tenants_max)?;
                }
            }
        }
        let number = state.next;
        state.next += 1;
        state.live.insert(number, Live { quinn: quinn.clone(), peer: peer.clone(), direction });
        Ok(Entry { peers: self.clone(), number })
    }

    /// From now on these are revoked, and connected no more.
    pub(super) fn revoke(&self, revoked_now: Revoked) {
        let state = &mut *self.lock();
        state.revoked = revoked_now;
        let State { revoked: set, live, .. } = state;
        live.values().filter(|live| set.has(&live.peer)).for_each(|live| live.close(&revoked(&live.peer)));
    }

    pub(super) fn is_token_revoked(&self, token: &TokenId) -> bool {
        self.lock().revoked.tokens.contains(token)
    }

    /// Closes connections of peers whose certificates have ended meanwhile, and that have not shown newer ones.
    pub(super) fn sweep(&self, now: Timestamp) {
        let ended = now.before(Duration::from_secs(CLOCK_SKEW_S_MAX));
        for live in self.lock().live.values().filter(|live| live.peer.expires < ended) {
            live.close(&PeerError::Expired { ended: live.peer.expires, now });
        }
    }

    /// All connections, to tell something to each.
    pub(super) fn all(&self) -> Vec<quinn::Connection> {
        self.lock().live.values().map(|live| live.quinn.clone()).collect()
    }

    pub(super) fn count(&self, direction: Direction) -> usize {
        self.lock().live.values().filter(|live| live.direction == direction && live.is_open()).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn incoming(&self, role: Role) -> impl Iterator<Item = &Live> {
        let is_one =
            move |live: &&Live| live.direction == Direction::Incoming && live.peer.role == role && live.is_open();
        self.live.values().filter(is_one)
    }

    fn make_way(&self, peer: &PeerIdentity, most: usize) -> Result<(), PeerError> {
        let before = self.incoming(Role::Node).find(|live| live.peer.name == peer.name);
        match before {
            Some(live) if live.peer.begins > peer.begins => return Err(PeerError::Older(peer.to_string())),
            Some(live) => live.close(&PeerError::Again(peer.to_string())),
            None if self.incoming(Role::Node).count() >= most => {
                return Err(PeerError::Full { of: "of nodes".to_owned(), most });
            }
            None => {}
        }
        Ok(())
    }

    fn room(&self, of: Option<&Name>, most: usize) -> Result<(), PeerError> {
        let count = self.incoming(Role::Tenant).filter(|live| of.is_none_or(|name| live.peer.name == *name)).count();
        let of = || of.map_or("of tenants".to_owned(), |name| format!("of tenant {name:?}"));
        if count < most { Ok(()) } else { Err(PeerError::Full { of: of(), most }) }
    }
}

impl Live {
    fn is_open(&self) -> bool {
        self.quinn.close_reason().is_none()
    }

    fn close(&self, reason: &PeerError) {
        close(&self.quinn, reason.close_code(), &reason.to_string());
    }
}

impl Entry {
    /// The peer has shown a newer certificate.
    ///
    /// # Errors
    /// When that one is revoked.
    pub(crate) fn renewed(&self, peer: PeerIdentity) -> Result<(), PeerError> {
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

impl Drop for Entry {
    fn drop(&mut self) {
        self.peers.lock().live.remove(&self.number);
    }
}

/// Closes a connection with a code, and words for whoever reads logs.
pub(crate) fn close(quinn: &quinn::Connection, code: CloseCode, reason: &str) {
    let number = VarInt::from_u64(code.number()).unwrap_or(VarInt::MAX);
    let cut = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
    let_through(quinn);
    quinn.close(number, &reason.as_bytes()[..cut]);
}

fn revoked(peer: &PeerIdentity) -> PeerError {
    PeerError::Revoked { who: peer.to_string(), serial: peer.serial }
}
