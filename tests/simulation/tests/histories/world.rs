//! What the hosts of a history and who drives it have in common, and what must hold at every moment.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_simulation::{Net, Random};
use sandbar_wire::{Identity, LocationLimits, Locations};
use tokio::sync::mpsc;

use crate::command::Command;
use crate::people::people;
use crate::shape::Shape;

pub const PORT: u16 = 4_433;
/// How long the longest operation may take once nothing is in its way: a fetch that waits for the memory of others.
const OPERATION_MS_MAX: u64 = 100_000;
/// Hosts look at the network when a step begins, and a lost timer's tick is one.
pub const STEP_MS: u64 = 10;
pub const SLACK_MS: u64 = 3 * STEP_MS;

/// Clones are the same one.
#[derive(Clone)]
pub struct World(Arc<Inner>);

pub struct Inner {
    pub seed: u64,
    pub shape: Shape,
    pub net: Net,
    addresses: Vec<IpAddr>,
    state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub seats: Vec<Seat>,
    next: u64,
    links: BTreeMap<u64, Link>,
    /// What is under way, and until when it may be.
    pending: BTreeMap<u64, (String, u64)>,
    /// How often each request was answered.
    pub answered: BTreeMap<u64, u32>,
    pub locations: Locations,
    /// From then on nothing is in anybody's way.
    pub healed_ms: Option<u64>,
}

/// A connection that is counted as being there.
struct Link {
    /// At which host.
    at: usize,
    /// From or to which address.
    peer: IpAddr,
    since_ms: u64,
    /// Datagrams that had come from there before.
    before: u64,
}

/// A host: members first, then the liar, then the twin.
#[derive(Default)]
pub struct Seat {
    pub is_on: bool,
    /// Since when it listens.
    pub up_ms: Option<u64>,
    /// How often it was started.
    pub starts: u64,
    /// What it keeps when it dies.
    pub identity: Option<Identity>,
    pub commands: Option<mpsc::UnboundedSender<Command>>,
    /// Bytes of memory that its fetches have.
    pub reserved: u64,
}

impl World {
    pub fn new(seed: u64, shape: Shape, net: Net, addresses: Vec<IpAddr>) -> World {
        let mut seats: Vec<Seat> = addresses.iter().map(|_| Seat { is_on: true, ..Seat::default() }).collect();
        for (member, joins) in shape.joins.iter().enumerate().filter(|(_, joins)| !**joins) {
            let _ = joins;
            seats[member].identity = Some(people().member(member));
        }
        if let Some(twin) = shape.twin() {
            seats[twin].is_on = false;
        }
        let state = State { seats, locations: Locations::new(LocationLimits::default()), ..State::default() };
        World(Arc::new(Inner { seed, shape, net, addresses, state: Mutex::new(state) }))
    }

    pub fn address(&self, host: usize) -> SocketAddr {
        (self.addresses[host], PORT).into()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ms(&self) -> u64 {
        self.net.now_ms()
    }

    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.net.note(what);
    }

    /// What is drawn on a host, each time that it is started.
    pub fn random(&self, host: usize) -> Random {
        let starts = self.state().seats[host].starts;
        Random::new(self.seed, 10_000 + 100 * host as u64 + starts)
    }

    /// Whether things may go wrong that are nobody's fault.
    pub fn is_rough(&self) -> bool {
        !self.shape.is_calm
    }

    pub fn command(&self, host: usize, command: Command) -> bool {
        let commands = self.state().seats[host].commands.clone();
        commands.is_some_and(|commands| commands.send(command).is_ok())
    }

    /// Something is under way until what this gives is dropped; it may not be for ever.
    pub fn begin(&self, what: String) -> Pending {
        let now_ms = self.now_ms();
        let state = &mut *self.state();
        let number = state.number();
        state.pending.insert(number, (what, now_ms + OPERATION_MS_MAX));
        Pending { world: self.clone(), number }
    }

    /// A connection is counted as being there until what this gives is dropped.
    pub fn linked(&self, at: usize, peer: IpAddr) -> Linked {
        let (since_ms, (_, before)) = (self.now_ms(), self.net.heard(self.addresses[at], peer));
        let state = &mut *self.state();
        let number = state.number();
        state.links.insert(number, Link { at, peer, since_ms, before });
        Linked { world: self.clone(), number }
    }

    pub fn pending(&self) -> usize {
        self.state().pending.len()
    }

    /// Whether each of two hosts counts the other as connected, and has heard of it since nothing is in the way.
    pub fn are_connected(&self, a: usize, b: usize) -> bool {
        let state = self.state();
        let has = |at: usize, peer: usize| {
            let (here, there) = (self.addresses[at], self.addresses[peer]);
            let (heard_ms, _) = self.net.heard(here, there);
            let is_heard = state.healed_ms.is_none_or(|healed_ms| heard_ms > healed_ms);
            is_heard && state.links.values().any(|link| (link.at, link.peer) == (at, there))
        };
        has(a, b) && has(b, a)
    }

    /// What must hold at every moment.
    pub fn check(&self) {
        let now_ms = self.now_ms();
        let state = self.state();
        for (what, until_ms) in state.pending.values() {
            assert!(now_ms <= (*until_ms).max(state.healed_ms.unwrap_or(0) + OPERATION_MS_MAX), "{what} never ends");
        }
        for Link { at, peer, since_ms, before } in state.links.values() {
            let (heard_ms, count) = self.net.heard(self.addresses[*at], *peer);
            let most_ms = self.shape.silence_ms_max(count - before) + 2 * SLACK_MS;
            let silent_ms = now_ms.saturating_sub(heard_ms.max(*since_ms));
            assert!(
                silent_ms <= most_ms,
                "host {at} has heard nothing of {peer} for {silent_ms} ms, {most_ms} at most"
            );
        }
        for (host, seat) in state.seats.iter().enumerate() {
            assert!(seat.reserved <= self.shape.admission_bytes, "host {host} fetches into {} bytes", seat.reserved);
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Shape {
    pub fn liar(&self) -> Option<usize> {
        self.lie.map(|_| self.members)
    }

    pub fn twin(&self) -> Option<usize> {
        self.twin_of.map(|_| self.members + usize::from(self.lie.is_some()))
    }

    pub fn hosts(&self) -> usize {
        self.members + usize::from(self.lie.is_some()) + usize::from(self.twin_of.is_some())
    }
}

/// Something that is under way.
pub struct Pending {
    world: World,
    number: u64,
}

impl Pending {
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.world.state().pending.remove(&self.number);
    }
}

pub struct Linked {
    world: World,
    number: u64,
}

impl Linked {
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.world.state().links.remove(&self.number);
    }
}

/// Memory that a fetch has.
pub struct Reserved {
    world: World,
    host: usize,
    bytes: u64,
}

impl Reserved {
    pub fn new(world: &World, host: usize, bytes: u64) -> Reserved {
        world.state().seats[host].reserved += bytes;
        Reserved { world: world.clone(), host, bytes }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.world.state().seats[self.host].reserved -= self.bytes;
    }
}
