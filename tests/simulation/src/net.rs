//! State that the sockets of a simulation share: faults, time, and the record of events.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::random::Random;

/// Start of every simulation, in seconds since 1970.
pub const EPOCH_S: u64 = 1_800_000_000;

/// Faults of the network. Chances are out of 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkFaults {
    /// Chance that a datagram is lost.
    pub lost: u64,
    /// Chance that a datagram is delivered twice.
    pub duplicated: u64,
    /// Chance that a datagram is truncated or has a flipped bit.
    pub damaged: u64,
    /// Chance that a datagram is delayed past later ones.
    pub late: u64,
    /// Maximum delay, in milliseconds.
    pub late_ms_max: u64,
    /// Longer datagrams are lost.
    pub bytes_max: usize,
}

impl NetworkFaults {
    /// No faults.
    pub const NONE: NetworkFaults =
        NetworkFaults { lost: 0, duplicated: 0, damaged: 0, late: 0, late_ms_max: 1, bytes_max: u16::MAX as usize };
}

/// A network. Clones share it.
#[derive(Clone)]
pub struct Net(Arc<Mutex<State>>);

struct State {
    random: Random,
    faults: NetworkFaults,
    now_ms: u64,
    /// By receiver and sender: when the last intact datagram arrived, and how many did.
    received: BTreeMap<(IpAddr, IpAddr), (u64, u64)>,
    record: Record,
}

#[derive(Default)]
struct Record {
    hash: u64,
    /// The events as text, if they are kept.
    lines: Option<Vec<String>>,
}

/// How a datagram is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Lost,
    /// After this many milliseconds.
    Delayed(u64),
    /// Twice, each after this many milliseconds.
    Duplicated(u64, u64),
    /// With this bit flipped.
    Damaged(usize),
    /// With this many bytes left.
    Truncated(usize),
}

impl Net {
    /// Creates a network from a seed. `keeps_lines` keeps the events as text.
    pub fn new(seed: u64, keeps_lines: bool) -> Net {
        Net(Arc::new(Mutex::new(State {
            random: Random::new(seed, 1),
            faults: NetworkFaults::NONE,
            now_ms: 0,
            received: BTreeMap::new(),
            record: Record { hash: 0xcbf2_9ce4_8422_2325, lines: keeps_lines.then(Vec::new) },
        })))
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.state().faults = faults;
    }

    /// Returns milliseconds since the simulation began.
    pub fn now_ms(&self) -> u64 {
        let here = turmoil::sim_elapsed().map(|elapsed| elapsed.as_millis() as u64);
        here.unwrap_or_else(|| self.state().now_ms)
    }

    /// Sets the simulation's time. The driver calls it after every step.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.state().now_ms = now_ms;
    }

    /// Records an event.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        let now_ms = self.now_ms();
        self.state().record.note(now_ms, line);
    }

    /// Returns a hash of all events.
    pub fn fingerprint(&self) -> u64 {
        self.state().record.hash
    }

    /// Returns the events as text, if they are kept.
    pub fn lines(&self) -> Vec<String> {
        self.state().record.lines.clone().unwrap_or_default()
    }

    /// Returns when the last datagram from one host to another arrived, and how many did.
    pub fn last_received(&self, to: IpAddr, from: IpAddr) -> (u64, u64) {
        self.state().received.get(&(to, from)).copied().unwrap_or_default()
    }

    pub(crate) fn record_received(&self, to: IpAddr, from: IpAddr) {
        let now_ms = self.now_ms();
        let received = &mut *self.state();
        let received = received.received.entry((to, from)).or_default();
        *received = (now_ms, received.1 + 1);
    }

    /// Draws how a datagram of `len` bytes is delivered.
    pub(crate) fn draw_delivery(&self, len: usize) -> Delivery {
        let state = &mut *self.state();
        let (faults, random) = (state.faults, &mut state.random);
        let happens = |chance: u64, random: &mut Random| chance > 0 && random.chance(chance, 10_000);
        if len > faults.bytes_max || happens(faults.lost, random) {
            return Delivery::Lost;
        }
        if len > 0 && happens(faults.damaged, random) {
            return match random.chance(1, 4) {
                true => Delivery::Truncated(random.below(len as u64) as usize),
                false => Delivery::Damaged(random.below(8 * len as u64) as usize),
            };
        }
        let late_ms = match happens(faults.late, random) {
            true => random.within(1, faults.late_ms_max),
            false => 0,
        };
        match happens(faults.duplicated, random) {
            true => Delivery::Duplicated(late_ms, random.within(0, faults.late_ms_max)),
            false => Delivery::Delayed(late_ms),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn note(&mut self, now_ms: u64, line: fmt::Arguments<'_>) {
        // Writing to a hash does not fail.
        let _ = write!(Fnv1a(&mut self.hash), "{now_ms} {line}");
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now_ms:>6} {line}"));
        }
    }
}

/// FNV-1a hash of the written text.
struct Fnv1a<'a>(&'a mut u64);

impl Write for Fnv1a<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            *self.0 = (*self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Net")
    }
}
