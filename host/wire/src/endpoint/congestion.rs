//! QUIC's congestion control, which lets the last packet of a connection through.
//!
//! QUIC (quinn-proto 0.11) holds the packet that says why a connection is closed back like any other while more is on its
//! way than the network is thought to carry, and once the connection is closed nothing is acknowledged any more: so it is
//! never sent, and the peer learns nothing but that the connection is gone. So a connection that is to be closed is first
//! told that the network carries anything.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;

/// More than is ever on its way, and little enough to be reckoned with.
const ANYTHING: u64 = 1 << 40;

struct LetsCloseThrough {
    inner: Box<dyn Controller>,
    is_closing: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
pub(super) struct Factory {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.cubic.clone().build(now, current_mtu);
        Box::new(LetsCloseThrough { inner, is_closing: Arc::default() })
    }
}

/// What is sent on this connection from now on is not held back.
pub(super) fn let_through(quinn: &quinn::Connection) {
    // A copy: but for what they share.
    if let Ok(control) = quinn.congestion_state().into_any().downcast::<LetsCloseThrough>() {
        control.is_closing.store(true, Ordering::Relaxed);
    }
}

impl Controller for LetsCloseThrough {
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
        if self.is_closing.load(Ordering::Relaxed) { ANYTHING } else { self.inner.window() }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(LetsCloseThrough { inner: self.inner.clone_box(), is_closing: self.is_closing.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
