//! What comes first when not everything can.

use serde::{Deserialize, Serialize};

use super::turns::PLACES;

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

    /// That of a QUIC stream that carries it, at a [place](super::turns) among others of this kind. Control streams have zero
    /// or more, and go before all of these: packets of what is more urgent go in between.
    pub(crate) fn of_stream(self, place: u32) -> i32 {
        let before = match self {
            Priority::Get => 0,
            Priority::Argument => 1,
            Priority::Prefetch => 2,
        };
        -((before * PLACES + place + 1) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::FIRST_PLACE;
    use super::*;

    #[test]
    fn what_is_more_urgent_goes_first() {
        let places = [FIRST_PLACE, 1, PLACES - 1];
        let of = |priority: &Priority| places.map(|place| priority.of_stream(place));
        let order: Vec<i32> = Priority::ALL.iter().rev().flat_map(of).collect();
        assert!(order.is_sorted_by(|first, then| first > then) && order[0] < 0, "{order:?}");
    }
}
