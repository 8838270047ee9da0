//! A holder that a fetch uses: its connection state and its measured rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn::Connection;

use super::clock::{Instant, ms_since, now, seconds_since};
use super::{Holder, HolderError, TransferLimits};

/// Connection state of a holder.
#[derive(Debug)]
pub(crate) enum HolderState {
    Connecting,
    Ready(Connection),
    /// The holder had nothing yet; further requests pause.
    Resting(Connection),
    /// The fetch does not use the holder any more.
    Dropped,
}

/// A holder that a fetch uses.
#[derive(Debug)]
pub(crate) struct ActiveHolder {
    pub(crate) holder: Holder,
    pub(crate) state: HolderState,
    /// Reconnects since the holder last delivered a group.
    pub(crate) reconnects: u32,
    /// Requested pieces that have not ended.
    pub(crate) in_flight: usize,
    /// Bytes received from it.
    pub(crate) count: Arc<AtomicU64>,
    /// Time of its last verified group, or of the first request.
    last_delivery: Option<Instant>,
    /// Start of the stall watch.
    watched: Option<ByteMark>,
    /// The last rate measurement.
    measured: ByteMark,
    rate: Option<f64>,
}

/// A time, and the bytes received from a holder by then.
#[derive(Debug, Clone, Copy)]
struct ByteMark {
    time: Instant,
    bytes: u64,
}

/// Minimum concurrent pieces of a holder: one transfers while the next is requested.
const PIECES_MIN: usize = 2;

/// Minimum duration of a rate measurement, in round trips.
const ROUND_TRIPS: f64 = 1.5;

/// Weight of a new measurement in the moving average.
const NEW: f64 = 0.3;

impl ActiveHolder {
    pub(crate) fn new(holder: Holder) -> ActiveHolder {
        ActiveHolder {
            holder,
            state: HolderState::Connecting,
            reconnects: 0,
            in_flight: 0,
            count: Arc::default(),
            last_delivery: None,
            watched: None,
            measured: ByteMark { time: now(), bytes: 0 },
            rate: None,
        }
    }

    pub(crate) fn is_dropped(&self) -> bool {
        matches!(self.state, HolderState::Dropped)
    }

    /// Returns its connection, if requests can be sent to the holder.
    pub(crate) fn ready(&self) -> Option<&Connection> {
        match &self.state {
            HolderState::Ready(connection) => Some(connection),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn mark(&self) -> ByteMark {
        ByteMark { time: now(), bytes: self.bytes() }
    }

    /// Records the request of a piece.
    pub(crate) fn record_request(&mut self) {
        self.last_delivery.get_or_insert_with(now);
        if self.in_flight == 0 {
            self.measured = self.mark();
            self.watched = Some(self.measured);
        }
        self.in_flight += 1;
    }

    /// Records the end of a piece, whatever its result.
    pub(crate) fn record_end(&mut self, delivered: bool) {
        self.in_flight -= 1;
        self.watched = (self.in_flight > 0).then(|| self.mark());
        if delivered {
            self.last_delivery = Some(now());
        }
    }

    /// Restarts the stall and idle watches, as the holder had a reason to send nothing.
    pub(crate) fn restart_watches(&mut self) {
        self.last_delivery = self.last_delivery.map(|_| now());
        self.watched = (self.in_flight > 0).then(|| self.mark());
    }

    /// Returns an error if the holder sent too little for too long.
    pub(crate) fn stall_error(&mut self, limits: &TransferLimits) -> Option<HolderError> {
        let watched = self.watched?;
        let (ms, bytes) = (ms_since(watched.time), self.bytes() - watched.bytes);
        if ms < limits.stall_ms_max {
            return None;
        }
        self.watched = Some(self.mark());
        (bytes < limits.stall_bytes_min).then_some(HolderError::Stalled { ms, bytes })
    }

    /// Returns an error if the holder had nothing for too long.
    pub(crate) fn idle_error(&self, limits: &TransferLimits) -> Option<HolderError> {
        let ms = ms_since(self.last_delivery?);
        (ms >= limits.idle_ms_max).then_some(HolderError::Idle { ms })
    }

    /// Returns whether the holder may be fast: it has been measured, or has received no request.
    pub(crate) fn may_be_fast(&self) -> bool {
        self.rate.is_some() || self.last_delivery.is_none()
    }

    /// Updates the measured rate.
    pub(crate) fn measure(&mut self) {
        let seconds = seconds_since(self.measured.time);
        // Within a round trip of the request no bytes can arrive, so that time does not show the rate.
        let round_trip = self.ready().map_or(0.0, |connection| connection.rtt().as_secs_f64());
        if self.in_flight == 0 || seconds <= ROUND_TRIPS * round_trip {
            return;
        }
        let rate = (self.bytes() - self.measured.bytes) as f64 / seconds;
        self.rate = Some(self.rate.map_or(rate, |old| old + NEW * (rate - old)));
        self.measured = self.mark();
    }

    /// Returns how many pieces to request concurrently: twice the bandwidth-delay product. More pieces would only leave
    /// the processor's cache before they are used, and be lost with their holder.
    pub(crate) fn pieces(&self, piece_bytes: u64) -> usize {
        let Some(connection) = self.ready() else { return 0 };
        let in_round_trip = self.rate.unwrap_or(0.0) * connection.rtt().as_secs_f64();
        PIECES_MIN.max((2.0 * in_round_trip / piece_bytes.max(1) as f64).ceil() as usize)
    }

    /// Returns the measured bytes a second while pieces are requested; `None` before the first measurement.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }
}
