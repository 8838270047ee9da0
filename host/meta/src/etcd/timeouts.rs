//! Time-outs and retry intervals of an etcd client.

use std::time::Duration;

use sandbar_core::Seed;

/// Time-outs and intervals for members of a cluster, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdTimeouts {
    /// Time-out of connecting.
    pub connect_ms_max: u32,
    /// Time-out of one member's response. An election takes one to two seconds with etcd's defaults.
    pub attempt_ms_max: u32,
    /// Time-out of a call across all members and retries, and of re-opening a lost watch.
    pub call_ms_max: u32,
    /// Maximum age of a member's last response for sending it a write directly. Any other member gets a read first: a
    /// write to a member that hangs has an unknown outcome.
    pub fresh_ms: u32,
    /// Interval of keep-alive pings on a watch connection. etcd disconnects clients that ping more often than every 5 s
    /// (`--grpc-keepalive-min-time`).
    pub ping_ms: u32,
    /// Time-out of the response to a ping.
    pub ping_response_ms_max: u32,
    /// Initial back-off after all members failed: a random half to all of it, doubled each time.
    pub pause_ms: u32,
    /// Maximum back-off.
    pub pause_ms_max: u32,
}

impl Default for EtcdTimeouts {
    fn default() -> Self {
        EtcdTimeouts {
            connect_ms_max: 1000,
            attempt_ms_max: 3000,
            call_ms_max: 10_000,
            fresh_ms: 1000,
            ping_ms: 6000,
            ping_response_ms_max: 2000,
            pause_ms: 20,
            pause_ms_max: 500,
        }
    }
}

/// Converts milliseconds.
pub(super) fn ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

/// Exponential back-off with a random part, so that many clients do not retry at once.
#[derive(Debug)]
pub(super) struct Backoff {
    next_ms: u32,
    ms_max: u32,
}

impl Backoff {
    pub(super) fn new(times: &EtcdTimeouts) -> Backoff {
        Backoff { next_ms: times.pause_ms.max(1), ms_max: times.pause_ms_max.max(1) }
    }

    pub(super) fn next(&mut self, seed: &mut Seed) -> Duration {
        let delay_max = self.next_ms.min(self.ms_max);
        self.next_ms = delay_max.saturating_mul(2);
        let random_us = seed.below(delay_max.saturating_mul(500));
        ms(delay_max) - Duration::from_micros(random_us.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let times = EtcdTimeouts::default();
        let pauses_of = |seed: u64| -> Vec<Duration> {
            let (mut pauses, mut seed) = (Backoff::new(&times), Seed::new(seed));
            (0..10).map(|_| pauses.next(&mut seed)).collect()
        };
        for (number, pause) in pauses_of(1).into_iter().enumerate() {
            let delay_max = ms((20 << number).min(500));
            assert!(pause > delay_max / 2 - ms(1) && pause <= delay_max, "{number}: {pause:?}");
        }
        assert_eq!(pauses_of(1), pauses_of(1));
        assert_ne!(pauses_of(1), pauses_of(2));
    }
}
