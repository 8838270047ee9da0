//! State that a history's driver and hosts share, and the invariants that hold at every step.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_simulation::{Net, Random};
use sandbar_wire::{Identity, LocationLimits, Locations};
use tokio::sync::mpsc;

use crate::command::Command;
use crate::identities::identities;
use crate::scenario::Scenario;

pub const PORT: u16 = 4_433;
/// Maximum duration of an operation without faults, in milliseconds: a fetch that waits for the memory of others.
const OPERATION_MS_MAX: u64 = 100_000;
/// Duration of a step, in milliseconds. Hosts read the network at the start of a step.
pub const STEP_MS: u64 = 10;
pub const SLACK_MS: u64 = 3 * STEP_MS;

/// The shared state. Clones share it.
#[derive(Clone)]
pub struct World(Arc<WorldShared>);

pub struct WorldShared {
    pub seed: u64,
    pub scenario: Scenario,
    pub net: Net,
    addresses: Vec<IpAddr>,
    state: Mutex<WorldState>,
}

#[derive(Default)]
pub struct WorldState {
    pub hosts: Vec<HostState>,
    next: u64,
    links: BTreeMap<u64, OpenLink>,
    /// Running operations, each with its deadline in milliseconds.
    pending: BTreeMap<u64, (String, u64)>,
    /// How often each request was answered.
    pub answered: BTreeMap<u64, u32>,
    pub locations: Locations,
    /// Time from which there are no faults, in milliseconds.
    pub healed_ms: Option<u64>,
}

/// A connection that a host considers open.
struct OpenLink {
    /// The host.
    at: usize,
    /// The peer's address.
    peer: IpAddr,
    since_ms: u64,
    /// Datagrams that had arrived from there before.
    before: u64,
}

/// State of a host. Members come first, then the liar, then the twin.
#[derive(Default)]
pub struct HostState {
    pub is_on: bool,
    /// Time since which it listens, in milliseconds.
    pub up_ms: Option<u64>,
    /// Number of starts.
    pub starts: u64,
    /// The identity, which survives a crash.
    pub identity: Option<Identity>,
    pub commands: Option<mpsc::UnboundedSender<Command>>,
    /// Bytes of memory that its fetches hold.
    pub reserved: u64,
}

impl World {
    pub fn new(seed: u64, scenario: Scenario, net: Net, addresses: Vec<IpAddr>) -> World {
        let mut hosts: Vec<HostState> =
            addresses.iter().map(|_| HostState { is_on: true, ..HostState::default() }).collect();
        for (member, joins) in scenario.joins.iter().enumerate().filter(|(_, joins)| !**joins) {
            let _ = joins;
            hosts[member].identity = Some(identities().member(member));
        }
        if let Some(twin) = scenario.twin() {
            hosts[twin].is_on = false;
        }
        let state = WorldState { hosts, locations: Locations::new(LocationLimits::default()), ..WorldState::default() };
        World(Arc::new(WorldShared { seed, scenario, net, addresses, state: Mutex::new(state) }))
    }

    pub fn address(&self, host: usize) -> SocketAddr {
        (self.addresses[host], PORT).into()
    }

    pub fn state(&self) -> MutexGuard<'_, WorldState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ms(&self) -> u64 {
        self.net.now_ms()
    }

    pub fn note(&self, line: fmt::Arguments<'_>) {
        self.net.note(line);
    }

    /// Returns a host's random numbers, independent for each start.
    pub fn random(&self, host: usize) -> Random {
        let starts = self.state().hosts[host].starts;
        Random::new(self.seed, 10_000 + 100 * host as u64 + starts)
    }

    /// Returns whether faults may make operations fail.
    pub fn is_rough(&self) -> bool {
        !self.scenario.is_calm
    }

    pub fn command(&self, host: usize, command: Command) -> bool {
        let commands = self.state().hosts[host].commands.clone();
        commands.is_some_and(|commands| commands.send(command).is_ok())
    }

    /// Registers a running operation with a deadline, until the guard is dropped.
    pub fn begin(&self, line: String) -> OperationGuard {
        let now_ms = self.now_ms();
        let state = &mut *self.state();
        let number = state.number();
        state.pending.insert(number, (line, now_ms + OPERATION_MS_MAX));
        OperationGuard { world: self.clone(), number }
    }

    /// Registers an open connection until the guard is dropped.
    pub fn track_link(&self, at: usize, peer: IpAddr) -> LinkGuard {
        let (since_ms, (_, before)) = (self.now_ms(), self.net.last_received(self.addresses[at], peer));
        let state = &mut *self.state();
        let number = state.number();
        state.links.insert(number, OpenLink { at, peer, since_ms, before });
        LinkGuard { world: self.clone(), number }
    }

    pub fn pending(&self) -> usize {
        self.state().pending.len()
    }

    /// Returns whether each of two hosts considers the other connected, and has received from it since faults ended.
    pub fn are_connected(&self, a: usize, b: usize) -> bool {
        let state = self.state();
        let has = |at: usize, peer: usize| {
            let (here, there) = (self.addresses[at], self.addresses[peer]);
            let (received_ms, _) = self.net.last_received(here, there);
            let is_received = state.healed_ms.is_none_or(|healed_ms| received_ms > healed_ms);
            is_received && state.links.values().any(|link| (link.at, link.peer) == (at, there))
        };
        has(a, b) && has(b, a)
    }

    /// Checks the invariants.
    pub fn check(&self) {
        let now_ms = self.now_ms();
        let state = self.state();
        for (line, until_ms) in state.pending.values() {
            assert!(now_ms <= (*until_ms).max(state.healed_ms.unwrap_or(0) + OPERATION_MS_MAX), "{line} never ends");
        }
        for OpenLink { at, peer, since_ms, before } in state.links.values() {
            let (received_ms, count) = self.net.last_received(self.addresses[*at], *peer);
            let max_ms = self.scenario.silence_ms_max(count - before) + 2 * SLACK_MS;
            let silent_ms = now_ms.saturating_sub(received_ms.max(*since_ms));
            assert!(
                silent_ms <= max_ms,
                "host {at} has received nothing from {peer} for {silent_ms} ms, {max_ms} at most"
            );
        }
        for (host, host_state) in state.hosts.iter().enumerate() {
            assert!(
                host_state.reserved <= self.scenario.admission_bytes,
                "host {host} fetches into {} bytes",
                host_state.reserved
            );
        }
    }
}

impl WorldState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl std::ops::Deref for World {
    type Target = WorldShared;

    fn deref(&self) -> &WorldShared {
        &self.0
    }
}

impl Scenario {
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

/// Guard of a running operation.
pub struct OperationGuard {
    world: World,
    number: u64,
}

impl OperationGuard {
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        self.world.state().pending.remove(&self.number);
    }
}

pub struct LinkGuard {
    world: World,
    number: u64,
}

impl LinkGuard {
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.world.state().links.remove(&self.number);
    }
}

/// Guard of memory that a fetch holds.
pub struct ReservationGuard {
    world: World,
    host: usize,
    bytes: u64,
}

impl ReservationGuard {
    pub fn new(world: &World, host: usize, bytes: u64) -> ReservationGuard {
        world.state().hosts[host].reserved += bytes;
        ReservationGuard { world: world.clone(), host, bytes }
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        self.world.state().hosts[self.host].reserved -= self.bytes;
    }
}
