//! Errors of reaching an address, of connections and of joins.

use std::net::SocketAddr;

use crate::blame::Blame;

/// Why no node was reached at an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// No packet can be sent to the address.
    #[error("can't connect to {address}: {reason}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The node did not answer in time.
    #[error("no answer from {address} within {ms} ms; check the address, firewalls (UDP), and whether the node runs")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// Time waited, in milliseconds.
        ms: u64,
    },
}

impl ReachError {
    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            ReachError::Address { .. } => Blame::Operator,
            ReachError::Unreachable { .. } => Blame::Network,
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            ReachError::Address { .. } => "address",
            ReachError::Unreachable { .. } => "unreachable",
        }
    }

    /// Returns whether retrying without a change may succeed.
    pub fn may_retry(&self) -> bool {
        matches!(self, ReachError::Unreachable { .. })
    }

    /// Returns a conversion from the reason why no packet can be sent to an address.
    pub(super) fn bad_address(address: SocketAddr) -> impl Fn(&dyn ToString) -> ReachError {
        move |reason| ReachError::Address { address, reason: reason.to_string() }
    }
}
