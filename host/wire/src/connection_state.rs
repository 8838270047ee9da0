//! State of a connection, which its clones and its tasks share.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::disconnect::close;
use crate::endpoint::PeerEntry;
use crate::incoming_queues::IncomingQueues;
use crate::limits::WireLimits;
use crate::name::PeerIdentity;
use crate::protocol::CloseCode;

/// State of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) quinn: quinn::Connection,
    pub(crate) peer: PeerIdentity,
    pub(crate) limits: WireLimits,
    pub(crate) entry: PeerEntry,
    pub(crate) incoming: IncomingQueues,
    pub(crate) renewed: Mutex<Option<Instant>>,
}

impl ConnectionState {
    /// Rate-limits renewals: returns whether the last one is at least `interval` ago, and if so records this one.
    pub(crate) fn may_renew(&self, interval: Duration) -> bool {
        let (now, mut renewed) = (Instant::now(), self.renewed.lock().unwrap_or_else(PoisonError::into_inner));
        let may = renewed.is_none_or(|before| now.duration_since(before) >= interval);
        if may {
            *renewed = Some(now);
        }
        may
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        close(&self.quinn, CloseCode::Done, "no longer needed");
    }
}
