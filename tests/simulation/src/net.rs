//! What the sockets of a simulation have in common: the weather, the time, and the record of all that happened.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::random::Random;

/// When simulations begin, in seconds since 1970.
pub const EPOCH_S: u64 = 1_800_000_000;

/// What becomes of datagrams; chances are of 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weather {
    /// Lost.
    pub lost: u64,
    /// Delivered twice.
    pub doubled: u64,
    /// With a bit that is another, or cut off.
    pub damaged: u64,
    /// After others that were sent later.
    pub late: u64,
    /// By how much at most, in milliseconds.
    pub late_ms_max: u64,
    /// Longer ones do not get through.
    pub bytes_max: usize,
}

impl Weather {
    /// Everything gets through.
    pub const FAIR: Weather =
        Weather { lost: 0, doubled: 0, damaged: 0, late: 0, late_ms_max: 1, bytes_max: u16::MAX as usize };
}

/// A network. Clones are the same one.
#[derive(Clone)]
pub struct Net(Arc<Mutex<State>>);

struct State {
    random: Random,
    weather: Weather,
    now_ms: u64,
    /// When a datagram last came whole, and how many did: to whom, from whom.
    heard: BTreeMap<(IpAddr, IpAddr), (u64, u64)>,
    record: Record,
}

#[derive(Default)]
struct Record {
    hash: u64,
    /// What happened, where somebody wants to read it.
    lines: Option<Vec<String>>,
}

/// What becomes of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    /// It comes after so many milliseconds.
    Comes(u64),
    /// And once more after so many.
    Twice(u64, u64),
    /// With this bit changed.
    Damaged(usize),
    /// With so many bytes left.
    Cut(usize),
}

impl Net {
    /// Of a seed. Lines are kept where somebody wants to read them.
    pub fn new(seed: u64, keeps_lines: bool) -> Net {
        Net(Arc::new(Mutex::new(State {
            random: Random::new(seed, 1),
            weather: Weather::FAIR,
            now_ms: 0,
            heard: BTreeMap::new(),
            record: Record { hash: 0xcbf2_9ce4_8422_2325, lines: keeps_lines.then(Vec::new) },
        })))
    }

    /// From now on.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Milliseconds since the simulation began.
    pub fn now_ms(&self) -> u64 {
        let here = turmoil::sim_elapsed().map(|elapsed| elapsed.as_millis() as u64);
        here.unwrap_or_else(|| self.state().now_ms)
    }

    /// The simulation has come so far. Whoever drives it says so after every step.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.state().now_ms = now_ms;
    }

    /// Writes down that something happened.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let now_ms = self.now_ms();
        self.state().record.note(now_ms, what);
    }

    /// A number that is another one when anything else happened.
    pub fn fingerprint(&self) -> u64 {
        self.state().record.hash
    }

    /// What happened, if that was kept.
    pub fn lines(&self) -> Vec<String> {
        self.state().record.lines.clone().unwrap_or_default()
    }

    /// When something last came to one host from another, and how many datagrams did.
    pub fn heard(&self, to: IpAddr, from: IpAddr) -> (u64, u64) {
        self.state().heard.get(&(to, from)).copied().unwrap_or_default()
    }

    pub(crate) fn hears(&self, to: IpAddr, from: IpAddr) {
        let now_ms = self.now_ms();
        let heard = &mut *self.state();
        let heard = heard.heard.entry((to, from)).or_default();
        *heard = (now_ms, heard.1 + 1);
    }

    /// What becomes of a datagram of so many bytes.
    pub(crate) fn fate(&self, len: usize) -> Fate {
        let state = &mut *self.state();
        let (weather, random) = (state.weather, &mut state.random);
        let happens = |chance: u64, random: &mut Random| chance > 0 && random.chance(chance, 10_000);
        if len > weather.bytes_max || happens(weather.lost, random) {
            return Fate::Lost;
        }
        if len > 0 && happens(weather.damaged, random) {
            return match random.chance(1, 4) {
                true => Fate::Cut(random.below(len as u64) as usize),
                false => Fate::Damaged(random.below(8 * len as u64) as usize),
            };
        }
        let late_ms = match happens(weather.late, random) {
            true => random.within(1, weather.late_ms_max),
            false => 0,
        };
        match happens(weather.doubled, random) {
            true => Fate::Twice(late_ms, random.within(0, weather.late_ms_max)),
            false => Fate::Comes(late_ms),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn note(&mut self, now_ms: u64, what: fmt::Arguments<'_>) {
        // Writing to a hash does not fail.
        let _ = write!(Hashing(&mut self.hash), "{now_ms} {what}");
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now_ms:>6} {what}"));
        }
    }
}

/// FNV-1a, of what is written.
struct Hashing<'a>(&'a mut u64);

impl Write for Hashing<'_> {
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
