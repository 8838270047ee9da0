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

    /// That of the QUIC stream that carries it. Control streams have QUIC's default, zero, and go before all of these.
    pub(crate) fn of_stream(self) -> i32 {
        match self {
            Priority::Prefetch => -3,
            Priority::Argument => -2,
            Priority::Get => -1,
        }
    }
}
