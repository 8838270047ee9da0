//! Congestion control that never delays the close packet of a connection.
//!
//! QUIC (quinn-proto 0.11) applies the congestion window to the CONNECTION_CLOSE packet too. Once the connection is
//! closed, no acknowledgement opens the window any more, so a full window drops the packet, and the peer never learns
//! the reason. Before closing a connection this module therefore makes its window unlimited.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;

/// Window of a closing connection: larger than any amount in flight, small enough for arithmetic without overflow.
const UNLIMITED_BYTES: u64 = 1 << 40;

struct BypassOnClose {
    inner: Box<dyn Controller>,
    is_closing: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
pub(crate) struct BypassOnCloseFactory {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for BypassOnCloseFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.cubic.clone().build(now, current_mtu);
        Box::new(BypassOnClose { inner, is_closing: Arc::default() })
    }
}

/// Makes the congestion window of a connection unlimited from now on.
pub(crate) fn bypass_for_close(quinn: &quinn::Connection) {
    // quinn returns a clone of the controller, which shares the flag.
    if let Ok(control) = quinn.congestion_state().into_any().downcast::<BypassOnClose>() {
        control.is_closing.store(true, Ordering::Relaxed);
    }
}

impl Controller for BypassOnClose {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.is_closing.load(Ordering::Relaxed) { UNLIMITED_BYTES } else { self.inner.window() }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(BypassOnClose { inner: self.inner.clone_box(), is_closing: self.is_closing.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
