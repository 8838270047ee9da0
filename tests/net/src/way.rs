//! Faults of the link from one node to another.

use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// Delay and faults of the link from one node to another. Shares are from 0 to 1 and apply to UDP datagrams; the delay
/// and `cut` apply to all packets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Way {
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

impl Way {
    /// Returns a link without faults that delays packets.
    pub fn of_delay(delay: Duration) -> Way {
        Way { delay, ..Way::default() }
    }

    /// Returns whether no datagram is lost, duplicated, corrupted or reordered.
    pub(crate) fn is_plain(&self) -> bool {
        self.loss + self.duplicate + self.corrupt + self.reorder <= 0.0
    }
}

/// Fate of one datagram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    Comes,
    Lost,
    Twice,
    Damaged(usize),
    Late,
}

/// Draws the fates and delays of the datagrams of one link.
#[derive(Debug)]
pub(crate) struct Draw {
    random: Xoshiro256PlusPlus,
    /// Latest due time so far, of datagrams that keep their order.
    last: Instant,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw { random: Xoshiro256PlusPlus::seed_from_u64(seed), last: Instant::now() }
    }

    pub(crate) fn fate(&mut self, way: &Way) -> Fate {
        let shares = [way.loss, way.duplicate, way.corrupt, way.reorder];
        let mut drawn = self.share();
        let which = shares.iter().position(|share| {
            drawn -= share;
            drawn < 0.0
        });
        match which {
            Some(0) => Fate::Lost,
            Some(1) => Fate::Twice,
            Some(2) => Fate::Damaged((self.random.next_u64() >> 40) as usize),
            Some(_) => Fate::Late,
            None => Fate::Comes,
        }
    }

    /// Returns the time at which a packet sent now arrives.
    pub(crate) fn due(&mut self, way: &Way, now: Instant) -> Instant {
        let jitter = match way.jitter.is_zero() {
            true => Duration::ZERO,
            false => way.jitter.mul_f64(self.share()),
        };
        // Packets keep their order after the delay was reduced, too.
        self.last = self.last.max(now + way.delay + jitter);
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
        let way = Way { loss: 0.1, duplicate: 0.2, corrupt: 0.3, reorder: 0.05, ..Way::default() };
        let draws = |seed| {
            let mut draw = Draw::new(seed);
            (0..10_000).map(|_| draw.fate(&way)).collect::<Vec<_>>()
        };
        let all = draws(7);
        let count = |is: fn(&Fate) -> bool| all.iter().filter(|fate| is(fate)).count();
        for (found, wanted) in [
            (count(|fate| *fate == Fate::Lost), 1000),
            (count(|fate| *fate == Fate::Twice), 2000),
            (count(|fate| matches!(fate, Fate::Damaged(_))), 3000),
            (count(|fate| *fate == Fate::Late), 500),
        ] {
            assert!(found.abs_diff(wanted) < 200, "{found} are not about {wanted}");
        }
        assert!(all == draws(7) && all != draws(8));
    }

    #[test]
    fn no_turn_is_lost_by_jitter() {
        let ms = Duration::from_millis;
        let way = Way { delay: ms(10), jitter: ms(10), ..Way::default() };
        let (mut draw, begun) = (Draw::new(1), Instant::now());
        let sent: Vec<Instant> = (0..1000).map(|i| begun + ms(i)).collect();
        let due: Vec<Instant> = sent.iter().map(|sent| draw.due(&way, *sent)).collect();
        assert!(due.is_sorted());
        assert!(sent.iter().zip(&due).all(|(sent, due)| (ms(10)..=ms(20)).contains(&(*due - *sent))));
        // A packet on a link whose delay was reduced overtakes none.
        let next = draw.due(&Way::of_delay(ms(1)), begun + ms(1000));
        assert!(next >= due[999] && next >= begun + ms(1001));
    }
}
