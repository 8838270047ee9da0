//! Admission of handshakes, which bounds the work for unauthenticated clients.
//!
//! A connection attempt is one packet whose source address may be forged. A few handshakes are accepted from
//! unvalidated addresses; beyond that the client must validate its address (QUIC Retry), which costs this end one
//! packet and no state. Validated addresses share a larger number of handshakes, and each address prefix has a smaller
//! limit. Attempts beyond these get no answer: QUIC retransmits by itself, and a flooding client learns nothing.
//!
//! Addresses of previously admitted nodes, and those of tenants, have handshakes of their own, so that known peers can
//! reconnect during a flood. A failed handshake keeps its permit for a while (see
//! [`handshake_time_ms_max`](crate::WireLimits::handshake_time_ms_max)), so that failing fast gains nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::WireLimits;
use crate::name::Role;

/// Decision about a connection attempt.
#[derive(Debug)]
pub(super) enum HandshakeDecision {
    /// Accept it while the permit is held.
    Accept(HandshakePermit),
    /// Require address validation first.
    Retry,
    /// Send no answer.
    Ignore,
}

/// Permit of one handshake.
#[derive(Debug)]
pub(super) struct HandshakePermit {
    limiter: Arc<HandshakeLimiter>,
    from: Prefix,
    pool: Pool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    Unproved,
    Proved,
    /// An address from which a peer of this role was admitted before.
    Known(Role),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Prefix(u128);

#[derive(Debug)]
pub(super) struct HandshakeLimiter {
    limits: WireLimits,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    unproved: usize,
    proved: usize,
    /// Handshakes of each prefix, from validated addresses only. Bounded by the number of handshakes.
    of_prefix: HashMap<Prefix, usize>,
    nodes: KnownAddresses,
    tenants: KnownAddresses,
}

/// Addresses from which peers of one role were admitted before.
#[derive(Debug, Default)]
struct KnownAddresses {
    /// Current handshakes from these addresses.
    handshakes: usize,
    addresses: HashSet<IpAddr>,
    /// The same addresses, oldest first.
    since: VecDeque<IpAddr>,
}

impl LimiterState {
    fn known(&mut self, role: Role) -> &mut KnownAddresses {
        match role {
            Role::Node => &mut self.nodes,
            Role::Tenant => &mut self.tenants,
        }
    }
}

impl HandshakeLimiter {
    pub(super) fn new(limits: &WireLimits) -> Arc<HandshakeLimiter> {
        Arc::new(HandshakeLimiter { limits: *limits, state: Mutex::default() })
    }

    /// Decides about a connection attempt from an address; `proved` means that QUIC validated it.
    pub(super) fn admit(self: &Arc<HandshakeLimiter>, from: IpAddr, proved: bool) -> HandshakeDecision {
        let (address, limits) = (from.to_canonical(), &self.limits);
        let prefix = self.prefix(address);
        let state = &mut *self.lock();
        let accept = |pool| HandshakeDecision::Accept(HandshakePermit { limiter: self.clone(), from: prefix, pool });
        if !proved {
            if state.unproved >= limits.handshakes_unproved_max {
                return HandshakeDecision::Retry;
            }
            state.unproved += 1;
            return accept(Pool::Unproved);
        }
        let (pool, used) = if state.nodes.addresses.contains(&address) {
            (Pool::Known(Role::Node), &mut state.nodes.handshakes)
        } else if state.tenants.addresses.contains(&address) {
            (Pool::Known(Role::Tenant), &mut state.tenants.handshakes)
        } else {
            (Pool::Proved, &mut state.proved)
        };
        let of_prefix = state.of_prefix.entry(prefix).or_default();
        if *used >= limits.handshakes_max || *of_prefix >= limits.handshakes_per_prefix_max {
            if *of_prefix == 0 {
                state.of_prefix.remove(&prefix);
            }
            return HandshakeDecision::Ignore;
        }
        *used += 1;
        *of_prefix += 1;
        accept(pool)
    }

    /// Records that a peer of this role was admitted from an address.
    pub(super) fn remember(&self, from: IpAddr, role: Role) {
        let (address, state) = (from.to_canonical(), &mut *self.lock());
        let known = state.known(role);
        if self.limits.familiar_max == 0 || !known.addresses.insert(address) {
            return;
        }
        known.since.push_back(address);
        if known.since.len() > self.limits.familiar_max
            && let Some(oldest) = known.since.pop_front()
        {
            known.addresses.remove(&oldest);
        }
    }

    fn prefix(&self, address: IpAddr) -> Prefix {
        let (bits, width, kept) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32, u32::from(self.limits.prefix_v4_bits)),
            IpAddr::V6(v6) => (u128::from(v6), 128, u32::from(self.limits.prefix_v6_bits)),
        };
        let cut = width - kept.min(width);
        let kept = bits.checked_shr(cut).unwrap_or(0);
        // An IPv4 prefix may collide with an IPv6 one in ::/8, which is reserved.
        Prefix(kept)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn counts(&self) -> (usize, usize, usize, usize) {
        let state = self.lock();
        (state.unproved, state.proved, state.nodes.handshakes + state.tenants.handshakes, state.of_prefix.len())
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let state = &mut *self.limiter.lock();
        match self.pool {
            Pool::Unproved => {
                state.unproved -= 1;
                return;
            }
            Pool::Proved => state.proved -= 1,
            Pool::Known(role) => state.known(role).handshakes -= 1,
        }
        if let Some(count) = state.of_prefix.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                state.of_prefix.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WireLimits = WireLimits {
        handshakes_unproved_max: 2,
        handshakes_max: 6,
        handshakes_per_prefix_max: 3,
        familiar_max: 2,
        prefix_v4_bits: 24,
        ..WireLimits::DEFAULT
    };

    /// Requests admission for each address and expects `a` (accept), `r` (retry) or `i` (ignore). Returns the permits.
    fn check(limiter: &Arc<HandshakeLimiter>, requests: &[(&str, bool, char)]) -> Vec<HandshakePermit> {
        let mut permits = Vec::new();
        for (number, (address, proved, expected)) in requests.iter().enumerate() {
            let decision = match limiter.admit(address.parse().unwrap(), *proved) {
                HandshakeDecision::Accept(permit) => {
                    permits.push(permit);
                    'a'
                }
                HandshakeDecision::Retry => 'r',
                HandshakeDecision::Ignore => 'i',
            };
            assert_eq!(decision, *expected, "{number}: {address}, proved: {proved}");
        }
        permits
    }

    #[test]
    fn strangers_share_few_places_until_they_prove_their_address() {
        let limiter = HandshakeLimiter::new(&LIMITS);
        let permits = check(
            &limiter,
            &[
                ("10.0.0.1", false, 'a'),
                ("10.0.0.1", false, 'a'),
                ("10.9.0.1", false, 'r'),
                ("10.9.0.1", true, 'a'),
                ("10.0.0.1", true, 'a'),
            ],
        );
        assert_eq!(limiter.counts(), (2, 2, 0, 2));
        drop(permits);
        assert_eq!(limiter.counts(), (0, 0, 0, 0));
    }

    #[test]
    fn a_prefix_has_a_bound_of_its_own() {
        let limiter = HandshakeLimiter::new(&LIMITS);
        let permits = check(
            &limiter,
            &[
                ("10.0.0.1", true, 'a'),
                ("10.0.0.2", true, 'a'),
                ("::ffff:10.0.0.3", true, 'a'),
                ("10.0.0.4", true, 'i'),
                ("10.0.1.4", true, 'a'),
                ("2001:db8::1", true, 'a'),
                ("2001:db8::1:2:3:4", true, 'a'),
                ("10.3.0.1", true, 'i'),
            ],
        );
        assert_eq!(limiter.counts(), (0, 6, 0, 3));
        drop(permits);
        check(&limiter, &[("10.3.0.1", true, 'a')]);
        assert_eq!(limiter.counts(), (0, 0, 0, 0));
    }

    #[test]
    fn known_peers_reconnect_during_a_flood() {
        let limiter = HandshakeLimiter::new(&LIMITS);
        for known in ["10.1.0.1", "10.1.0.1", "10.2.0.1", "10.3.0.1"] {
            limiter.remember(known.parse().unwrap(), Role::Node);
        }
        // The maximum number of known tenants displaces no node.
        for known in ["10.4.0.1", "10.5.0.1", "10.6.0.1"] {
            limiter.remember(known.parse().unwrap(), Role::Tenant);
        }
        let floods: Vec<String> = (0..6).map(|n| format!("10.77.{n}.1")).collect();
        let flood: Vec<_> = floods.iter().map(|address| (address.as_str(), true, 'a')).collect();
        let _flood = check(&limiter, &flood);
        // The oldest known node was displaced.
        let _back = check(&limiter, &[("10.1.0.1", true, 'i'), ("10.2.0.1", true, 'a'), ("10.3.0.1", true, 'a')]);
        assert_eq!(limiter.counts(), (0, 6, 2, 8));
        let _tenants = check(&limiter, &[("10.4.0.1", true, 'i'), ("10.5.0.1", true, 'a'), ("10.6.0.1", true, 'a')]);
        assert_eq!(limiter.counts(), (0, 6, 4, 10));
    }
}
