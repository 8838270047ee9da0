//! What befalls datagrams on a way.

use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// What befalls datagrams on the way from one node to another. Shares are from 0 to 1, of datagrams of UDP; whatever else
/// is sent takes its time, and is cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Way {
    /// How long each takes.
    pub delay: Duration,
    /// How much longer it takes at most, each another time. What was sent first still comes first.
    pub jitter: Duration,
    /// How many are lost.
    pub loss: f64,
    /// How many come twice.
    pub duplicate: f64,
    /// How many come with another bit somewhere. The sum of UDP is none the wiser.
    pub corrupt: f64,
    /// How many are overtaken by what is sent after them.
    pub reorder: f64,
    /// And how much later they come.
    pub reorder_by: Duration,
    /// Nothing comes through.
    pub cut: bool,
}

impl Way {
    /// One that only takes its time.
    pub fn of_delay(delay: Duration) -> Way {
        Way { delay, ..Way::default() }
    }

    /// Whether all datagrams fare alike.
    pub(crate) fn is_plain(&self) -> bool {
        self.loss + self.duplicate + self.corrupt + self.reorder <= 0.0
    }
}

/// What befalls one datagram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    Comes,
    Lost,
    Twice,
    Damaged(usize),
    Late,
}

/// Draws what befalls the datagrams of a way.
#[derive(Debug)]
pub(crate) struct Draw {
    random: Xoshiro256PlusPlus,
    /// When the last one comes that keeps its turn.
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

    /// When what is sent now comes.
    pub(crate) fn due(&mut self, way: &Way, now: Instant) -> Instant {
        let jitter = match way.jitter.is_zero() {
            true => Duration::ZERO,
            false => way.jitter.mul_f64(self.share()),
        };
        // Also after the delay has become shorter: a way does not overtake itself.
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
        // On a way that has become shorter nothing overtakes either.
        let next = draw.due(&Way::of_delay(ms(1)), begun + ms(1000));
        assert!(next >= due[999] && next >= begun + ms(1001));
    }
}
