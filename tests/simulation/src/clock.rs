//! Wall clock of a simulated host, with an offset.

use sandbar_wire::{Clock, Timestamp};

use crate::net::{EPOCH_S, Net};

/// A host's clock.
#[derive(Debug, Clone)]
pub struct SimulatedClock {
    net: Net,
    off_s: i64,
}

impl SimulatedClock {
    /// Creates a clock that is off by a number of seconds.
    pub fn new(net: Net, off_s: i64) -> SimulatedClock {
        SimulatedClock { net, off_s }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        Timestamp((EPOCH_S + self.net.now_ms() / 1000).saturating_add_signed(self.off_s))
    }
}
