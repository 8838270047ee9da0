//! Order in which the requested pieces of a peer are sent.
//!
//! QUIC interleaves the packets of streams with equal priority. Two pieces of one fetch would then both complete late,
//! and the data of each would leave the receiver's cache between packets: transfers are 10 % slower. Pieces of one
//! fetch are therefore sent in sequence, and different fetches share the link packet by packet: start-time fair queuing
//! (Goyal, Vin, Cheng, 1996) with a piece as the unit. A piece's position is one after the later of the fetch's last
//! piece and the furthest completed piece, so that a new fetch neither waits for earlier fetches nor overtakes them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of positions of one [`Priority`](super::Priority). They wrap around.
pub(crate) const POSITIONS: u32 = 1 << 28;

/// Position of small objects, which delay no other transfer.
pub(crate) const FIRST_POSITION: u32 = 0;

/// The positions of one peer's pieces.
#[derive(Debug, Default)]
pub(crate) struct FairQueue(Mutex<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    /// Furthest completed position.
    done: u64,
    /// Fetches with requested pieces.
    open: HashMap<u32, OpenFetch>,
}

#[derive(Debug, Default)]
struct OpenFetch {
    last: u64,
    pieces: usize,
}

/// The position of a piece. Dropping it marks the piece as completed.
#[derive(Debug)]
pub(crate) struct QueueSlot<'a> {
    queue: &'a FairQueue,
    fetch: u32,
    number: u64,
}

impl FairQueue {
    /// Returns the position of a new piece.
    pub(crate) fn next(&self, fetch: u32) -> QueueSlot<'_> {
        let mut state = self.state();
        let done = state.done;
        let open = state.open.entry(fetch).or_default();
        open.last = open.last.max(done) + 1;
        open.pieces += 1;
        QueueSlot { queue: self, fetch, number: open.last }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // Poisoning is harmless: no code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueSlot<'_> {
    /// Returns the position among pieces of the same priority; lower ones are sent first.
    pub(crate) fn position(&self) -> u32 {
        FIRST_POSITION + 1 + (self.number % u64::from(POSITIONS - 1)) as u32
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
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
        let queue = FairQueue::default();
        let [a, b] = [1, 2];
        let mut long: Vec<QueueSlot<'_>> = Vec::new();
        for number in 0..500 {
            long.push(queue.next(a));
            if number > 1 {
                long.remove(0);
            }
        }
        let positions = |queue: &[QueueSlot<'_>]| queue.iter().map(QueueSlot::position).collect::<Vec<_>>();
        let before = positions(&long);
        assert!(before.is_sorted_by(|first, then| first < then), "{before:?}");
        // A later fetch shares positions with one in progress.
        let short = [queue.next(b), queue.next(b)];
        assert_eq!(positions(&short), before);
        drop(long);
        assert!(queue.next(b).position() > short[1].position());
        drop(short);
        assert!(queue.0.lock().unwrap().open.is_empty());
    }

    #[test]
    fn places_begin_again() {
        let queue = FairQueue::default();
        queue.state().done = u64::from(POSITIONS) - 3;
        let positions: Vec<u32> = (0..3).map(|fetch| queue.next(fetch).position()).collect();
        assert_eq!(positions, [POSITIONS - 1, FIRST_POSITION + 1, FIRST_POSITION + 2]);
    }
}
