//! An authenticated connection to a peer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;

use crate::channel::{ByteLimit, ChannelError, Frames, IncomingRequest, send_request};
use crate::connection_state::ConnectionState;
use crate::disconnect::{DisconnectReason, close};
use crate::endpoint::{PeerEntry, canonical};
use crate::incoming_queues::{IncomingQueues, RawStream};
use crate::limits::WireLimits;
use crate::name::PeerIdentity;
use crate::protocol::{Channel, CloseCode, REQUEST};
use crate::router::{RenewalHandler, Router};

/// A connection. Clones share it; dropping the last clone closes it.
#[derive(Debug, Clone)]
pub struct Connection {
    inner: Arc<ConnectionState>,
}

impl Connection {
    pub(crate) fn new(
        quinn: quinn::Connection,
        peer: PeerIdentity,
        entry: PeerEntry,
        limits: &WireLimits,
        renewal_handler: Arc<dyn RenewalHandler>,
    ) -> Connection {
        let (senders, incoming) = IncomingQueues::new(limits);
        let inner = Arc::new(ConnectionState {
            quinn: quinn.clone(),
            peer,
            limits: *limits,
            entry,
            incoming,
            renewed: Default::default(),
        });
        let connection: Weak<ConnectionState> = Arc::downgrade(&inner);
        tokio::spawn(Router::new(quinn, connection, senders, *limits, renewal_handler).run());
        Connection { inner }
    }

    /// Returns the peer's authenticated identity. A certificate renewal does not change it.
    pub fn peer(&self) -> &PeerIdentity {
        &self.inner.peer
    }

    /// Returns the peer's address.
    pub fn address(&self) -> std::net::SocketAddr {
        canonical(self.inner.quinn.remote_address())
    }

    /// Returns whether both are clones of one connection.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns QUIC's estimate of the round-trip time.
    pub fn round_trip(&self) -> Duration {
        self.inner.quinn.rtt()
    }

    /// Opens a channel. The peer receives it from [`accept`](Connection::accept), before the first frame. Waits while
    /// the peer's stream limit is reached.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn open(&self, channel: Channel) -> Result<Frames, ChannelError> {
        let (mut send, receive) = self.inner.quinn.open_bi().await?;
        let _ = send.set_priority(channel.priority());
        send.write_all(&[channel.number()]).await?;
        Ok(Frames::new(self.inner.quinn.clone(), send, receive, None, &self.inner.limits))
    }

    /// Returns the next channel that the peer opens.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn accept(&self) -> Result<(Channel, Frames), ChannelError> {
        let next = self.inner.incoming.channels.lock().await.recv().await;
        next.ok_or_else(|| self.closed_error())
    }

    /// Sends a request and waits for the answer; `time` covers both.
    ///
    /// # Errors
    /// The request or the answer is too long or too slow, the peer does not answer, or the connection is closed.
    pub async fn request(&self, request: &[u8], time: Duration) -> Result<Bytes, ChannelError> {
        let max = u64::from(self.inner.limits.request_bytes_max);
        let bytes = request.len() as u64;
        if bytes > max {
            return Err(ChannelError::Oversized { kind: "request", bytes, max, limit: "request_bytes_max" });
        }
        let response_limit =
            ByteLimit { kind: "answer", bytes: self.inner.limits.response_bytes_max, limit: "response_bytes_max" };
        send_request(&self.inner.quinn, &[&[REQUEST], request], response_limit, time).await
    }

    /// Returns the peer's next request.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn next_request(&self) -> Result<IncomingRequest, ChannelError> {
        let next = self.inner.incoming.requests.lock().await.recv().await;
        next.ok_or_else(|| self.closed_error())
    }

    /// Returns the next stream whose first byte is at least [`RAW`](crate::protocol::RAW).
    pub(crate) async fn next_raw(&self) -> Result<RawStream, ChannelError> {
        let next = self.inner.incoming.raw.lock().await.recv().await;
        next.ok_or_else(|| self.closed_error())
    }

    /// Returns the QUIC connection, for other modules of this crate.
    pub(crate) fn quic(&self) -> &quinn::Connection {
        &self.inner.quinn
    }

    /// Closes the connection with a code, and a reason for the peer's log. Data sent just before may be lost.
    pub fn close(&self, code: CloseCode, reason: &str) {
        close(&self.inner.quinn, code, reason);
    }

    /// Returns whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.quinn.close_reason().is_some()
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) -> DisconnectReason {
        self.inner.quinn.closed().await.into()
    }

    /// Returns why the connection ended; `None` while it is open.
    pub fn disconnect_reason(&self) -> Option<DisconnectReason> {
        self.inner.quinn.close_reason().map(DisconnectReason::from)
    }

    fn closed_error(&self) -> ChannelError {
        ChannelError::Disconnected(self.disconnect_reason().unwrap_or(DisconnectReason::Local))
    }
}
