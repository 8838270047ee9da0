//! Faults of the link from one node to another.

use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// Delay and faults of the link from one node to another. Shares are from 0 to 1 and apply to UDP datagrams; the delay
/// and `cut` apply to all packets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkFaults {
    /// Delay of each packet.
    pub delay: Duration,
    /// Maximum additional delay, drawn per packet. Jitter keeps packets in order.
    pub jitter: Duration,
    /// Share of datagrams that are dropped.
    pub loss: f64,
    /// Share of datagrams that arrive twice.
    pub duplicate: f64,
    /// Share of datagrams that arrive with a flipped bit and a valid UDP checksum.
    pub corrupt: f64,
    /// Share of datagrams that are overtaken by later ones.
    pub reorder: f64,
    /// Additional delay of an overtaken datagram.
    pub reorder_by: Duration,
    /// Drops all packets.
    pub cut: bool,
}

impl LinkFaults {
    /// Returns a link without faults that delays packets.
    pub fn of_delay(delay: Duration) -> LinkFaults {
        LinkFaults { delay, ..LinkFaults::default() }
    }

    /// Returns whether no datagram is lost, duplicated, corrupted or reordered.
    pub(crate) fn is_plain(&self) -> bool {
        self.loss + self.duplicate + self.corrupt + self.reorder <= 0.0
    }
}

/// Delivery of one datagram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Delivery {
    OnTime,
    Lost,
    Twice,
    Damaged(usize),
    Late,
}

/// Draws the delivery and delay of each datagram of one link.
#[derive(Debug)]
pub(crate) struct FaultSampler {
    random: Xoshiro256PlusPlus,
    /// Latest due time so far, of datagrams that keep their order.
    last: Instant,
}

impl FaultSampler {
    pub(crate) fn new(seed: u64) -> FaultSampler {
        FaultSampler { random: Xoshiro256PlusPlus::seed_from_u64(seed), last: Instant::now() }
    }

    pub(crate) fn next_delivery(&mut self, link: &LinkFaults) -> Delivery {
        let shares = [link.loss, link.duplicate, link.corrupt, link.reorder];
        let mut drawn = self.share();
        let which = shares.iter().position(|share| {
            drawn -= share;
            drawn < 0.0
        });
        match which {
            Some(0) => Delivery::Lost,
            Some(1) => Delivery::Twice,
            Some(2) => Delivery::Damaged((self.random.next_u64() >> 40) as usize),
            Some(_) => Delivery::Late,
            None => Delivery::OnTime,
        }
    }

    /// Returns the time at which a packet sent now arrives.
    pub(crate) fn due(&mut self, link: &LinkFaults, now: Instant) -> Instant {
        let jitter = match link.jitter.is_zero() {
            true => Duration::ZERO,
            false => link.jitter.mul_f64(self.share()),
        };
        // Packets keep their order after the delay was reduced, too.
        self.last = self.last.max(now + link.delay + jitter);
        self.last
    }

    fn share(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_seeds_too() {
        let link = LinkFaults { loss: 0.1, duplicate: 0.2, corrupt: 0.3, reorder: 0.05, ..LinkFaults::default() };
        let draws = |seed| {
            let mut draw = FaultSampler::new(seed);
            (0..10_000).map(|_| draw.next_delivery(&link)).collect::<Vec<_>>()
        };
        let all = draws(7);
        let count = |is: fn(&Delivery) -> bool| all.iter().filter(|next_delivery| is(next_delivery)).count();
        for (found, expected) in [
            (count(|next_delivery| *next_delivery == Delivery::Lost), 1000),
            (count(|next_delivery| *next_delivery == Delivery::Twice), 2000),
            (count(|next_delivery| matches!(next_delivery, Delivery::Damaged(_))), 3000),
            (count(|next_delivery| *next_delivery == Delivery::Late), 500),
        ] {
            assert!(found.abs_diff(expected) < 200, "{found} are not about {expected}");
        }
        assert!(all == draws(7) && all != draws(8));
    }

    #[test]
    fn no_turn_is_lost_by_jitter() {
        let ms = Duration::from_millis;
        let link = LinkFaults { delay: ms(10), jitter: ms(10), ..LinkFaults::default() };
        let (mut draw, started) = (FaultSampler::new(1), Instant::now());
        let sent: Vec<Instant> = (0..1000).map(|i| started + ms(i)).collect();
        let due: Vec<Instant> = sent.iter().map(|sent| draw.due(&link, *sent)).collect();
        assert!(due.is_sorted());
        assert!(sent.iter().zip(&due).all(|(sent, due)| (ms(10)..=ms(20)).contains(&(*due - *sent))));
        // A packet on a link whose delay was reduced overtakes none.
        let next = draw.due(&LinkFaults::of_delay(ms(1)), started + ms(1000));
        assert!(next >= due[999] && next >= started + ms(1001));
    }
}
