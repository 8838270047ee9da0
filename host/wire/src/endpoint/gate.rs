//! Who may begin a handshake: what strangers cost is bounded here, before anything is done for them.
//!
//! An attempt to connect is one packet, and its source address may be anybody's. A few handshakes at once are begun all
//! the same; beyond them the sender has to prove that it gets what is sent to its address (Retry), which costs this end
//! a packet and nothing to remember. Those who have proved it share a larger number of handshakes, and each prefix of
//! addresses has a smaller one. What is over that gets no answer: QUIC asks again by itself, and who floods learns
//! nothing.
//!
//! Addresses from which a node was let in before have a number of their own, and so do those of tenants, so that who was
//! there before comes back while others flood. A handshake that fails keeps its place for a while (see
//! [`handshake_time_ms_max`](crate::WireLimits::handshake_time_ms_max)), so that failing fast gains nobody anything.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::WireLimits;
use crate::name::Role;

/// What becomes of an attempt to connect.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It may; for as long as the place is kept.
    Begin(Place),
    /// It has to prove its address first.
    Prove,
    /// It gets no answer.
    Ignore,
}

/// The place of one handshake.
#[derive(Debug)]
pub(super) struct Place {
    gate: Arc<Gate>,
    from: Prefix,
    pool: Pool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    Unproved,
    Proved,
    /// From where one of this role was let in before.
    Familiar(Role),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Prefix(u128);

#[derive(Debug)]
pub(super) struct Gate {
    limits: WireLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    unproved: usize,
    proved: usize,
    /// Of those that are proved, how many of each prefix. No more entries than handshakes.
    of_prefix: HashMap<Prefix, usize>,
    nodes: Familiar,
    tenants: Familiar,
}

/// Addresses from which somebody was let in before.
#[derive(Debug, Default)]
struct Familiar {
    /// Handshakes from these.
    handshakes: usize,
    addresses: HashSet<IpAddr>,
    /// The same, the oldest first.
    since: VecDeque<IpAddr>,
}

impl State {
    fn familiar(&mut self, role: Role) -> &mut Familiar {
        match role {
            Role::Node => &mut self.nodes,
            Role::Tenant => &mut self.tenants,
        }
    }
}

impl Gate {
    pub(super) fn new(limits: &WireLimits) -> Arc<Gate> {
        Arc::new(Gate { limits: *limits, state: Mutex::default() })
    }

    /// Somebody wants to connect from an address, and has `proved` that it is its own.
    pub(super) fn ask(self: &Arc<Gate>, from: IpAddr, proved: bool) -> Verdict {
        let (address, limits) = (from.to_canonical(), &self.limits);
        let prefix = self.prefix(address);
        let state = &mut *self.lock();
        let begin = |pool| Verdict::Begin(Place { gate: self.clone(), from: prefix, pool });
        if !proved {
            if state.unproved >= limits.handshakes_unproved_max {
                return Verdict::Prove;
            }
            state.unproved += 1;
            return begin(Pool::Unproved);
        }
        let (pool, used) = if state.nodes.addresses.contains(&address) {
            (Pool::Familiar(Role::Node), &mut state.nodes.handshakes)
        } else if state.tenants.addresses.contains(&address) {
            (Pool::Familiar(Role::Tenant), &mut state.tenants.handshakes)
        } else {
            (Pool::Proved, &mut state.proved)
        };
        let of_prefix = state.of_prefix.entry(prefix).or_default();
        if *used >= limits.handshakes_max || *of_prefix >= limits.handshakes_per_prefix_max {
            if *of_prefix == 0 {
                state.of_prefix.remove(&prefix);
            }
            return Verdict::Ignore;
        }
        *used += 1;
        *of_prefix += 1;
        begin(pool)
    }

    /// One of this role was let in from this address.
    pub(super) fn let_in(&self, from: IpAddr, role: Role) {
        let (address, state) = (from.to_canonical(), &mut *self.lock());
        let familiar = state.familiar(role);
        if self.limits.familiar_max == 0 || !familiar.addresses.insert(address) {
            return;
        }
        familiar.since.push_back(address);
        if familiar.since.len() > self.limits.familiar_max
            && let Some(oldest) = familiar.since.pop_front()
        {
            familiar.addresses.remove(&oldest);
        }
    }

    fn prefix(&self, address: IpAddr) -> Prefix {
        let (bits, width, kept) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32, u32::from(self.limits.prefix_v4_bits)),
            IpAddr::V6(v6) => (u128::from(v6), 128, u32::from(self.limits.prefix_v6_bits)),
        };
        let cut = width - kept.min(width);
        let kept = bits.checked_shr(cut).unwrap_or(0);
        // An IPv4 prefix may share its number with an IPv6 one of ::/8, which is nobody's.
        Prefix(kept)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn taken(&self) -> (usize, usize, usize, usize) {
        let state = self.lock();
        (state.unproved, state.proved, state.nodes.handshakes + state.tenants.handshakes, state.of_prefix.len())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let state = &mut *self.gate.lock();
        match self.pool {
            Pool::Unproved => {
                state.unproved -= 1;
                return;
            }
            Pool::Proved => state.proved -= 1,
            Pool::Familiar(role) => state.familiar(role).handshakes -= 1,
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

    /// Asks for each address; `b`egin, `p`rove or `i`gnore is what should come of it. Places are kept.
    fn check(gate: &Arc<Gate>, asked: &[(&str, bool, char)]) -> Vec<Place> {
        let mut places = Vec::new();
        for (number, (address, proved, wanted)) in asked.iter().enumerate() {
            let got = match gate.ask(address.parse().unwrap(), *proved) {
                Verdict::Begin(place) => {
                    places.push(place);
                    'b'
                }
                Verdict::Prove => 'p',
                Verdict::Ignore => 'i',
            };
            assert_eq!(got, *wanted, "{number}: {address}, proved: {proved}");
        }
        places
    }

    #[test]
    fn strangers_share_few_places_until_they_prove_their_address() {
        let gate = Gate::new(&LIMITS);
        let places = check(
            &gate,
            &[
                ("10.0.0.1", false, 'b'),
                ("10.0.0.1", false, 'b'),
                ("10.9.0.1", false, 'p'),
                ("10.9.0.1", true, 'b'),
                ("10.0.0.1", true, 'b'),
            ],
        );
        assert_eq!(gate.taken(), (2, 2, 0, 2));
        drop(places);
        assert_eq!(gate.taken(), (0, 0, 0, 0));
    }

    #[test]
    fn a_prefix_has_a_bound_of_its_own() {
        let gate = Gate::new(&LIMITS);
        let places = check(
            &gate,
            &[
                ("10.0.0.1", true, 'b'),
                ("10.0.0.2", true, 'b'),
                ("::ffff:10.0.0.3", true, 'b'),
                ("10.0.0.4", true, 'i'),
                ("10.0.1.4", true, 'b'),
                ("2001:db8::1", true, 'b'),
                ("2001:db8::1:2:3:4", true, 'b'),
                ("10.3.0.1", true, 'i'),
            ],
        );
        assert_eq!(gate.taken(), (0, 6, 0, 3));
        drop(places);
        check(&gate, &[("10.3.0.1", true, 'b')]);
        assert_eq!(gate.taken(), (0, 0, 0, 0));
    }

    #[test]
    fn who_was_there_before_comes_back_while_others_flood() {
        let gate = Gate::new(&LIMITS);
        for known in ["10.1.0.1", "10.1.0.1", "10.2.0.1", "10.3.0.1"] {
            gate.let_in(known.parse().unwrap(), Role::Node);
        }
        // Tenants, as many as there may be, push no node out.
        for known in ["10.4.0.1", "10.5.0.1", "10.6.0.1"] {
            gate.let_in(known.parse().unwrap(), Role::Tenant);
        }
        let floods: Vec<String> = (0..6).map(|n| format!("10.77.{n}.1")).collect();
        let flood: Vec<_> = floods.iter().map(|address| (address.as_str(), true, 'b')).collect();
        let _flood = check(&gate, &flood);
        // The first of them is too long ago.
        let _back = check(&gate, &[("10.1.0.1", true, 'i'), ("10.2.0.1", true, 'b'), ("10.3.0.1", true, 'b')]);
        assert_eq!(gate.taken(), (0, 6, 2, 8));
        let _tenants = check(&gate, &[("10.4.0.1", true, 'i'), ("10.5.0.1", true, 'b'), ("10.6.0.1", true, 'b')]);
        assert_eq!(gate.taken(), (0, 6, 4, 10));
    }
}
