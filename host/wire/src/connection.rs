//! A connection to a peer that has been let in.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use crate::channel::{ChannelError, Frames, Most, Request, ask};
use crate::endpoint::{Entry, Renewals, canonical, close};
use crate::limits::WireLimits;
use crate::lost::Lost;
use crate::name::PeerIdentity;
use crate::protocol::{Channel, CloseCode, REQUEST};
use crate::router::Router;

/// A connection. Clones are the same one, and it is closed when the last is dropped.
#[derive(Debug, Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    quinn: quinn::Connection,
    peer: PeerIdentity,
    limits: WireLimits,
    pub(crate) entry: Entry,
    arrivals: Arrivals,
    renewed: std::sync::Mutex<Option<Instant>>,
}

/// What the peer has opened and nobody has taken yet: bounded, what is over is refused.
#[derive(Debug)]
struct Arrivals {
    channels: Mutex<mpsc::Receiver<(Channel, Frames)>>,
    requests: Mutex<mpsc::Receiver<Request>>,
    raw: Mutex<mpsc::Receiver<RawStream>>,
}

/// Where the router puts them.
#[derive(Debug)]
pub(crate) struct Sinks {
    pub channels: mpsc::Sender<(Channel, Frames)>,
    pub requests: mpsc::Sender<Request>,
    pub raw: mpsc::Sender<RawStream>,
}

/// A stream that is for another half of this room, and its first byte.
#[derive(Debug)]
pub(crate) struct RawStream {
    pub head: u8,
    pub send: quinn::SendStream,
    pub receive: quinn::RecvStream,
}

impl Connection {
    pub(crate) fn new(
        quinn: quinn::Connection,
        peer: PeerIdentity,
        entry: Entry,
        limits: &WireLimits,
        renewals: Arc<dyn Renewals>,
    ) -> Connection {
        let (channels, taken_channels) = mpsc::channel(limits.channels_max);
        let (requests, taken_requests) = mpsc::channel(limits.requests_waiting_max);
        let (raw, taken_raw) = mpsc::channel(limits.streams_max as usize);
        let arrivals = Arrivals {
            channels: Mutex::new(taken_channels),
            requests: Mutex::new(taken_requests),
            raw: Mutex::new(taken_raw),
        };
        let inner = Arc::new(Inner {
            quinn: quinn.clone(),
            peer,
            limits: *limits,
            entry,
            arrivals,
            renewed: Default::default(),
        });
        let sinks = Sinks { channels, requests, raw };
        let connection: Weak<Inner> = Arc::downgrade(&inner);
        tokio::spawn(Router::new(quinn, connection, sinks, *limits, renewals).run());
        Connection { inner }
    }

    /// Who the peer has proved to be. A peer that renews its certificate meanwhile stays who it is.
    pub fn peer(&self) -> &PeerIdentity {
        &self.inner.peer
    }

    /// The peer's address.
    pub fn address(&self) -> std::net::SocketAddr {
        canonical(self.inner.quinn.remote_address())
    }

    /// Whether both are clones of one connection.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How long a packet and its acknowledgement take, as QUIC estimates it.
    pub fn round_trip(&self) -> Duration {
        self.inner.quinn.rtt()
    }

    /// Opens a channel. The peer gets it by [`accept`](Connection::accept), before the first frame. Waits while the peer
    /// has as many streams open as it allows.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn open(&self, channel: Channel) -> Result<Frames, ChannelError> {
        let (mut send, receive) = self.inner.quinn.open_bi().await?;
        let _ = send.set_priority(channel.priority());
        send.write_all(&[channel.number()]).await?;
        Ok(Frames::new(self.inner.quinn.clone(), send, receive, None, &self.inner.limits))
    }

    /// The next channel that the peer opens.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn accept(&self) -> Result<(Channel, Frames), ChannelError> {
        let next = self.inner.arrivals.channels.lock().await.recv().await;
        next.ok_or_else(|| self.gone())
    }

    /// Asks the peer, and waits for its answer: `time` for both together.
    ///
    /// # Errors
    /// When the request or the answer is too long or too slow, the peer does not answer, or the connection is gone.
    pub async fn request(&self, request: &[u8], time: Duration) -> Result<Bytes, ChannelError> {
        let most = u64::from(self.inner.limits.request_bytes_max);
        let bytes = request.len() as u64;
        if bytes > most {
            return Err(ChannelError::Oversized { what: "request", bytes, most, limit: "request_bytes_max" });
        }
        let answer = Most { what: "answer", bytes: self.inner.limits.answer_bytes_max, limit: "answer_bytes_max" };
        ask(&self.inner.quinn, &[&[REQUEST], request], answer, time).await
    }

    /// The next request of the peer.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn next_request(&self) -> Result<Request, ChannelError> {
        let next = self.inner.arrivals.requests.lock().await.recv().await;
        next.ok_or_else(|| self.gone())
    }

    /// The next stream whose first byte is [`RAW`](crate::protocol::RAW) or more.
    pub(crate) async fn next_raw(&self) -> Result<RawStream, ChannelError> {
        let next = self.inner.arrivals.raw.lock().await.recv().await;
        next.ok_or_else(|| self.gone())
    }

    /// For other halves of this room.
    pub(crate) fn quic(&self) -> &quinn::Connection {
        &self.inner.quinn
    }

    /// Closes the connection, with words for whoever reads the peer's logs. What was sent just before may be lost.
    pub fn close(&self, code: CloseCode, reason: &str) {
        close(&self.inner.quinn, code, reason);
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.inner.quinn.close_reason().is_some()
    }

    /// Waits until the connection is gone.
    pub async fn closed(&self) -> Lost {
        self.inner.quinn.closed().await.into()
    }

    /// How the connection ended; none while it is there.
    pub fn lost(&self) -> Option<Lost> {
        self.inner.quinn.close_reason().map(Lost::from)
    }

    fn gone(&self) -> ChannelError {
        ChannelError::Lost(self.lost().unwrap_or(Lost::Local))
    }
}

impl Inner {
    pub(crate) fn quinn(&self) -> &quinn::Connection {
        &self.quinn
    }

    pub(crate) fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// Whether the peer has not renewed its certificate for so long. Then it does now.
    pub(crate) fn may_renew(&self, interval: Duration) -> bool {
        let (now, mut renewed) = (Instant::now(), self.renewed.lock().unwrap_or_else(PoisonError::into_inner));
        let may = renewed.is_none_or(|before| now.duration_since(before) >= interval);
        if may {
            *renewed = Some(now);
        }
        may
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        close(&self.quinn, CloseCode::Done, "nobody needs it any more");
    }
}
