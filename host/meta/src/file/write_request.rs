//! Requests that change the file, and their responses.

use crate::{GrantResponse, LeaseId, RevokeResponse, TransactResponse, Transaction};

/// A request to the writer.
#[derive(Debug)]
pub(super) enum WriteRequest {
    Transact(Transaction),
    /// Period in seconds.
    Grant(u32),
    Revoke(LeaseId),
    /// Ends expired leases, which precedes every request anyway.
    ExpireLeases,
}

/// Response to a write request.
#[derive(Debug)]
pub(super) enum WriteResponse {
    Transact(TransactResponse),
    Grant(GrantResponse),
    Revoke(LeaseId, RevokeResponse),
    Expired,
}
