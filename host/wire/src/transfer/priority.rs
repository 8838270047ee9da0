//! What comes first when not everything can.

use serde::{Deserialize, Serialize};

/// How much an object is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Priority {
    /// Nobody waits yet.
    Prefetch,
    /// A task that has not begun waits for its arguments.
    Argument,
    /// A task that runs waits.
    Get,
}

impl Priority {
    /// From the least on.
    pub(crate) const ALL: [Priority; 3] = [Priority::Prefetch, Priority::Argument, Priority::Get];

    /// That of a QUIC stream that carries it. Control streams have zero or more, and go before all of these.
    ///
    /// Of streams with the same priority QUIC sends a packet of each in turn. Then all of them come late, and what came
    /// of one has left the processor's cache when the next of it comes: with two pieces in turn a transfer is a tenth
    /// slower. So they are sent in the order of their `turn`; packets of what is more urgent go in between.
    pub(crate) fn of_stream(self, turn: Turn) -> i32 {
        let before = match self {
            Priority::Get => 0,
            Priority::Argument => 1,
            Priority::Prefetch => 2,
        };
        -(before * TURNS + turn.0 + 1)
    }
}

/// Places of one [`Priority`]. The first of all streams is as urgent again after so many.
const TURNS: i32 = 1 << 28;

/// When a stream is sent, among those of a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(i32);

impl Turn {
    /// Of small objects: they keep nobody waiting.
    pub(crate) const FIRST: Turn = Turn(0);

    /// Of a peer's piece.
    pub(crate) fn of_piece(number: u32) -> Turn {
        Turn(1 + (number % (TURNS as u32 - 1)) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_urgent_goes_first_and_then_what_was_asked_for_first() {
        let turns = [Turn::FIRST, Turn::of_piece(0), Turn::of_piece(1), Turn::of_piece(TURNS as u32 - 2)];
        let order: Vec<i32> =
            Priority::ALL.iter().rev().flat_map(|priority| turns.map(|turn| priority.of_stream(turn))).collect();
        assert!(order.is_sorted_by(|first, then| first > then) && order[0] < 0, "{order:?}");
        assert_eq!(Turn::of_piece(TURNS as u32 - 1), Turn::of_piece(0));
    }
}
