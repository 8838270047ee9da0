//! How long things may take.

use std::time::Duration;

use sandbar_core::Seed;

/// How long to wait for members of a cluster, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdTimes {
    /// For a connection.
    pub connect_ms_max: u32,
    /// For one member's answer. A cluster that chooses a leader anew takes one to two seconds by its defaults.
    pub attempt_ms_max: u32,
    /// For a call, all members and repetitions together; for a watch that was lost, before it says so.
    pub call_ms_max: u32,
    /// A member that answered so lately is asked to change something right away. Any other is asked to read first: what is
    /// sent to one that hangs has an unknown outcome.
    pub fresh_ms: u32,
    /// Between looks at whether the member behind a watch still lives. etcd drops who looks more often than every 5 s
    /// (`--grpc-keepalive-min-time`).
    pub ping_ms: u32,
    /// For the answer to such a look.
    pub ping_answer_ms_max: u32,
    /// Before members are asked again that all failed: the first time, half to all of it, and twice as much each time.
    pub pause_ms: u32,
    /// At most so much.
    pub pause_ms_max: u32,
}

impl Default for EtcdTimes {
    fn default() -> Self {
        EtcdTimes {
            connect_ms_max: 1000,
            attempt_ms_max: 3000,
            call_ms_max: 10_000,
            fresh_ms: 1000,
            ping_ms: 6000,
            ping_answer_ms_max: 2000,
            pause_ms: 20,
            pause_ms_max: 500,
        }
    }
}

/// Milliseconds.
pub(super) fn ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

/// Pauses between repetitions: twice as long each time, less a random part, so that many clients don't come back at once.
#[derive(Debug)]
pub(super) struct Pauses {
    next_ms: u32,
    ms_max: u32,
}

impl Pauses {
    pub(super) fn new(times: &EtcdTimes) -> Pauses {
        Pauses { next_ms: times.pause_ms.max(1), ms_max: times.pause_ms_max.max(1) }
    }

    pub(super) fn next(&mut self, seed: &mut Seed) -> Duration {
        let most = self.next_ms.min(self.ms_max);
        self.next_ms = most.saturating_mul(2);
        let random_us = seed.below(most.saturating_mul(500));
        ms(most) - Duration::from_micros(random_us.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let times = EtcdTimes::default();
        let pauses_of = |seed: u64| -> Vec<Duration> {
            let (mut pauses, mut seed) = (Pauses::new(&times), Seed::new(seed));
            (0..10).map(|_| pauses.next(&mut seed)).collect()
        };
        for (number, pause) in pauses_of(1).into_iter().enumerate() {
            let most = ms((20 << number).min(500));
            assert!(pause > most / 2 - ms(1) && pause <= most, "{number}: {pause:?}");
        }
        assert_eq!(pauses_of(1), pauses_of(1));
        assert_ne!(pauses_of(1), pauses_of(2));
    }
}
