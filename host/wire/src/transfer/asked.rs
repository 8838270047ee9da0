//! A holder that is being asked: whether it can be, and how well it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn::Connection;

use super::clock::{Instant, ms_since, now, seconds_since};
use super::{Holder, HolderError, TransferLimits};

/// Whether a holder can be asked.
#[derive(Debug)]
pub(crate) enum Standing {
    Connecting,
    Ready(Connection),
    /// It has nothing yet: it is left alone for a while.
    Resting(Connection),
    /// It is asked for nothing any more.
    Gone,
}

/// A holder that is being asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) holder: Holder,
    pub(crate) standing: Standing,
    /// How often its connection was made again.
    pub(crate) reconnects: u32,
    /// Pieces that it was asked for and has not ended.
    pub(crate) in_flight: usize,
    /// Bytes that came from it.
    pub(crate) count: Arc<AtomicU64>,
    /// When it gave something last, or was first asked.
    gave: Option<Instant>,
    /// Since when it is watched for a stall, and what it had sent by then.
    watched: Option<(Instant, u64)>,
    /// When its rate was taken, and what it had sent by then.
    measured: (Instant, u64),
    rate: Option<f64>,
}

/// Pieces that a holder is asked for at once, when nothing speaks for more: one comes while the next is asked for.
const PIECES_MIN: usize = 2;

/// Round trips that a measurement takes at least.
const ROUND_TRIPS: f64 = 1.5;

/// How much a new measurement counts for.
const NEW: f64 = 0.3;

impl Asked {
    pub(crate) fn new(holder: Holder) -> Asked {
        Asked {
            holder,
            standing: Standing::Connecting,
            reconnects: 0,
            in_flight: 0,
            count: Arc::default(),
            gave: None,
            watched: None,
            measured: (now(), 0),
            rate: None,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.standing, Standing::Gone)
    }

    /// Its connection, when it can be asked for something.
    pub(crate) fn ready(&self) -> Option<&Connection> {
        match &self.standing {
            Standing::Ready(connection) => Some(connection),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// It was asked for a piece.
    pub(crate) fn begin(&mut self) {
        self.gave.get_or_insert_with(now);
        if self.in_flight == 0 {
            self.watched = Some((now(), self.bytes()));
            self.measured = (now(), self.bytes());
        }
        self.in_flight += 1;
    }

    /// A piece has ended, in whatever way.
    pub(crate) fn end(&mut self, gave_something: bool) {
        self.in_flight -= 1;
        self.watched = (self.in_flight > 0).then(|| (now(), self.bytes()));
        if gave_something {
            self.gave = Some(now());
        }
    }

    /// It had a reason not to send, nor to have anything.
    pub(crate) fn excuse(&mut self) {
        self.gave = self.gave.map(|_| now());
        self.watched = (self.in_flight > 0).then(|| (now(), self.bytes()));
    }

    /// Whether it is to be given up for what it does not send.
    pub(crate) fn stall(&mut self, limits: &TransferLimits) -> Option<HolderError> {
        let (since, before) = self.watched?;
        let (ms, bytes) = (ms_since(since), self.bytes() - before);
        if ms < limits.stall_ms_max {
            return None;
        }
        self.watched = Some((now(), self.bytes()));
        (bytes < limits.stall_bytes_min).then_some(HolderError::Stalled { ms, bytes })
    }

    /// Whether it is to be given up for having had nothing for too long.
    pub(crate) fn idle(&self, limits: &TransferLimits) -> Option<HolderError> {
        let ms = ms_since(self.gave?);
        (ms >= limits.idle_ms_max).then_some(HolderError::Idle { ms })
    }

    /// Whether it can be expected to be quick: it has been, or was never asked.
    pub(crate) fn is_promising(&self) -> bool {
        self.rate.is_some() || self.gave.is_none()
    }

    /// Measures how many bytes come from it.
    pub(crate) fn measure(&mut self) {
        let (since, before) = self.measured;
        let seconds = seconds_since(since);
        // What it was asked for just now can't have come: that it has not says nothing of how quick it is.
        let round_trip = self.ready().map_or(0.0, |connection| connection.rtt().as_secs_f64());
        if self.in_flight == 0 || seconds <= ROUND_TRIPS * round_trip {
            return;
        }
        let rate = (self.bytes() - before) as f64 / seconds;
        self.rate = Some(self.rate.map_or(rate, |old| old + NEW * (rate - old)));
        self.measured = (now(), self.bytes());
    }

    /// Pieces that it is to be asked for at once: twice what comes in a round trip. More would only lie about until they
    /// are not in the processor's cache any more, and be lost with their holder.
    pub(crate) fn pieces(&self, piece_bytes: u64) -> usize {
        let Some(connection) = self.ready() else { return 0 };
        let in_round_trip = self.rate.unwrap_or(0.0) * connection.rtt().as_secs_f64();
        PIECES_MIN.max((2.0 * in_round_trip / piece_bytes.max(1) as f64).ceil() as usize)
    }

    /// Bytes a second that come from it while it is asked; none when that has not been measured.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }
}
