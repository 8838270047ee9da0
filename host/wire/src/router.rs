//! Routing of the streams that a peer opens, by the first byte of each stream.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::channel::{Frames, IncomingRequest};
use crate::connection_state::ConnectionState;
use crate::disconnect::close;
use crate::incoming_queues::{IncomingSenders, RawStream};
use crate::limits::WireLimits;
use crate::protocol::{Channel, CloseCode, NEWER, RAW, RENEW, REQUEST, stream_code};

/// Handler of streams about certificates. Each call spawns a task with a deadline.
pub(crate) trait RenewalHandler: Send + Sync + std::fmt::Debug {
    /// Handles the peer's request for its next certificate.
    fn handle_renewal(
        self: Arc<Self>,
        connection: Weak<ConnectionState>,
        send: quinn::SendStream,
        receive: quinn::RecvStream,
    );
    /// Handles the peer's announcement of a newer certificate.
    fn handle_newer_certificate(self: Arc<Self>, connection: Weak<ConnectionState>, receive: quinn::RecvStream);
}

/// The accept task of a connection. It ends when the connection closes.
pub(crate) struct Router {
    quinn: quinn::Connection,
    connection: Weak<ConnectionState>,
    senders: IncomingSenders,
    limits: WireLimits,
    renewal_handler: Arc<dyn RenewalHandler>,
    /// One permit for each further channel that the peer may open.
    open_channels: Arc<Semaphore>,
}

/// A stream that the peer has opened.
struct PeerStream {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
}

impl Router {
    pub(crate) fn new(
        quinn: quinn::Connection,
        connection: Weak<ConnectionState>,
        senders: IncomingSenders,
        limits: WireLimits,
        renewal_handler: Arc<dyn RenewalHandler>,
    ) -> Router {
        let open_channels = Arc::new(Semaphore::new(limits.channels_max));
        Router { quinn, connection, senders, limits, renewal_handler, open_channels }
    }

    /// Accepts streams until the connection closes. All open streams wait concurrently for their first byte; the peer's
    /// stream limit bounds how many. Dropping `heads` aborts only reads of this connection.
    pub(crate) async fn run(self) {
        let head_time = Duration::from_millis(self.limits.stream_head_ms_max);
        let mut heads = JoinSet::new();
        loop {
            tokio::select! {
                opened = self.quinn.accept_bi() => match opened {
                    Ok((send, receive)) => {
                        heads.spawn(head(PeerStream { send, receive }, head_time));
                    }
                    Err(_) => break,
                },
                joined = heads.join_next(), if !heads.is_empty() => {
                    if let Some(Ok(Some((head, stream)))) = joined {
                        self.route(head, stream);
                    }
                }
            }
        }
    }

    fn route(&self, head: u8, stream: PeerStream) {
        let PeerStream { send, receive } = stream;
        if let Some(channel) = Channel::of_head(head) {
            let _ = send.set_priority(channel.priority());
            let Ok(permit) = self.open_channels.clone().try_acquire_owned() else { return refuse(send, receive) };
            let frames = Frames::new(self.quinn.clone(), send, receive, Some(permit), &self.limits);
            // Never full: the queue's capacity equals the maximum number of open channels.
            let _ = self.senders.channels.try_send((channel, frames));
            return;
        }
        match head {
            REQUEST => {
                let request = IncomingRequest::new(send, receive, &self.limits);
                if let Err(error) = self.senders.requests.try_send(request) {
                    error.into_inner().refuse(stream_code::BUSY);
                }
            }
            RENEW => self.renewal_handler.clone().handle_renewal(self.connection.clone(), send, receive),
            NEWER => self.renewal_handler.clone().handle_newer_certificate(self.connection.clone(), receive),
            RAW.. => {
                let Ok(permit) = self.senders.raw.try_reserve() else { return refuse(send, receive) };
                permit.send(RawStream { head, send, receive });
            }
            _ => close(&self.quinn, CloseCode::Malformed, &format!("unknown stream kind {head}")),
        }
    }
}

/// Reads the first byte of a stream. Resets the stream if it ends or times out before that byte.
async fn head(stream: PeerStream, time: Duration) -> Option<(u8, PeerStream)> {
    let PeerStream { send, mut receive } = stream;
    let mut head = [0];
    match timeout(time, receive.read_exact(&mut head)).await {
        Ok(Ok(())) => Some((head[0], PeerStream { send, receive })),
        Ok(Err(_)) => {
            refuse_with(send, receive, stream_code::UNHANDLED);
            None
        }
        Err(_) => {
            refuse_with(send, receive, stream_code::SLOW);
            None
        }
    }
}

fn refuse(send: quinn::SendStream, receive: quinn::RecvStream) {
    refuse_with(send, receive, stream_code::BUSY);
}

fn refuse_with(mut send: quinn::SendStream, mut receive: quinn::RecvStream, code: u32) {
    let _ = send.reset(code.into());
    let _ = receive.stop(code.into());
}
