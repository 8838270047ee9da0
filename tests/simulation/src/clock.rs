//! Wall time of a host: that of the simulation, and a little off.

use sandbar_wire::{Clock, Timestamp};

use crate::net::{EPOCH_S, Net};

/// A host's clock.
#[derive(Debug, Clone)]
pub struct SimulatedClock {
    net: Net,
    off_s: i64,
}

impl SimulatedClock {
    /// One that is off by so many seconds.
    pub fn new(net: Net, off_s: i64) -> SimulatedClock {
        SimulatedClock { net, off_s }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        Timestamp((EPOCH_S + self.net.now_ms() / 1000).saturating_add_signed(self.off_s))
    }
}
