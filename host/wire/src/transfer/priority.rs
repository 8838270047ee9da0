//! Priorities of fetches and of their QUIC streams.

use serde::{Deserialize, Serialize};

use super::fair_queue::POSITIONS;

/// Priority of a fetch, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Priority {
    /// No task waits for the object yet.
    Prefetch,
    /// A task that has not started needs it as an argument.
    Argument,
    /// A running task waits for it.
    Get,
}

impl Priority {
    /// All priorities, lowest first.
    pub(crate) const ALL: [Priority; 3] = [Priority::Prefetch, Priority::Argument, Priority::Get];

    /// Returns the priority of a QUIC stream at a [position](super::fair_queue) among streams of the same kind. It is
    /// negative, below control streams, whose priority is zero or more: packets of urgent streams go in between.
    pub(crate) fn of_stream(self, position: u32) -> i32 {
        let before = match self {
            Priority::Get => 0,
            Priority::Argument => 1,
            Priority::Prefetch => 2,
        };
        -((before * POSITIONS + position + 1) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fair_queue::FIRST_POSITION;
    use super::*;

    #[test]
    fn urgent_transfers_go_first() {
        let positions = [FIRST_POSITION, 1, POSITIONS - 1];
        let stream_priorities = |priority: &Priority| positions.map(|position| priority.of_stream(position));
        let order: Vec<i32> = Priority::ALL.iter().rev().flat_map(stream_priorities).collect();
        assert!(order.is_sorted_by(|first, then| first > then) && order[0] < 0, "{order:?}");
    }
}
