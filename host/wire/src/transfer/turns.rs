//! In which order the pieces that a peer asked for are sent.
//!
//! Of streams with the same priority QUIC sends a packet of each in turn. Of two pieces of a fetch both come late then, and
//! what came of one has left the processor's cache when the next of it comes: a transfer is a tenth slower. So those of
//! one fetch are sent one after another, and different fetches share the link, packet by packet: start-time fair queuing
//! (Goyal, Vin, Cheng, 1996), with a piece as the unit. A piece's place is one behind the fetch's last, or one behind the
//! furthest that is done where that is further, so that a fetch that comes later neither waits for what is ahead of it nor
//! goes before that.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Places of one [`Priority`](super::Priority). Behind the last comes the first again.
pub(crate) const PLACES: u32 = 1 << 28;

/// Of small objects: they keep nobody waiting.
pub(crate) const FIRST_PLACE: u32 = 0;

/// Whose turn is when, of one peer.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The furthest that is done.
    done: u64,
    /// Fetches that something is asked for by.
    open: HashMap<u32, Open>,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    pieces: usize,
}

/// The turn of a piece, which is done when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    fetch: u32,
    number: u64,
}

impl Turns {
    /// That of a piece that is asked for.
    pub(crate) fn next(&self, fetch: u32) -> Turn<'_> {
        let mut state = self.state();
        let done = state.done;
        let open = state.open.entry(fetch).or_default();
        open.last = open.last.max(done) + 1;
        open.pieces += 1;
        Turn { turns: self, fetch, number: open.last }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Its place among those of its priority, the first of all that are not done going first.
    pub(crate) fn place(&self) -> u32 {
        FIRST_PLACE + 1 + (self.number % u64::from(PLACES - 1)) as u32
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.done = state.done.max(self.number);
        if let Some(open) = state.open.get_mut(&self.fetch) {
            open.pieces -= 1;
            if open.pieces == 0 {
                state.open.remove(&self.fetch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_fetch_are_in_order_and_fetches_share() {
        let turns = Turns::default();
        let [a, b] = [1, 2];
        let mut long: Vec<Turn<'_>> = Vec::new();
        for number in 0..500 {
            long.push(turns.next(a));
            if number > 1 {
                long.remove(0);
            }
        }
        let places = |turns: &[Turn<'_>]| turns.iter().map(Turn::place).collect::<Vec<_>>();
        let before = places(&long);
        assert!(before.is_sorted_by(|first, then| first < then), "{before:?}");
        // Who comes later is beside what is under way.
        let short = [turns.next(b), turns.next(b)];
        assert_eq!(places(&short), before);
        drop(long);
        assert!(turns.next(b).place() > short[1].place());
        drop(short);
        assert!(turns.0.lock().unwrap().open.is_empty());
    }

    #[test]
    fn places_begin_again() {
        let turns = Turns::default();
        turns.state().done = u64::from(PLACES) - 3;
        let places: Vec<u32> = (0..3).map(|fetch| turns.next(fetch).place()).collect();
        assert_eq!(places, [PLACES - 1, FIRST_PLACE + 1, FIRST_PLACE + 2]);
    }
}
