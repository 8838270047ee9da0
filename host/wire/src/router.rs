//! What becomes of the streams that a peer opens: the first byte of each says it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::channel::{Frames, Request};
use crate::connection::{Inner, RawStream, Sinks};
use crate::endpoint::{Renewals, close};
use crate::limits::WireLimits;
use crate::protocol::{Channel, CloseCode, NEWER, RAW, RENEW, REQUEST, stream_code};

/// The task of a connection. It ends with the connection.
pub(crate) struct Router {
    quinn: quinn::Connection,
    connection: Weak<Inner>,
    sinks: Sinks,
    limits: WireLimits,
    renewals: Arc<dyn Renewals>,
    /// A permit for each channel that the peer may open beside those that it has open.
    open_channels: Arc<Semaphore>,
}

type Stream = (quinn::SendStream, quinn::RecvStream);

impl Router {
    pub(crate) fn new(
        quinn: quinn::Connection,
        connection: Weak<Inner>,
        sinks: Sinks,
        limits: WireLimits,
        renewals: Arc<dyn Renewals>,
    ) -> Router {
        let open_channels = Arc::new(Semaphore::new(limits.channels_max));
        Router { quinn, connection, sinks, limits, renewals, open_channels }
    }

    /// Streams wait for their first byte side by side, as many as the peer may have open; what is dropped here when the
    /// connection ends is of that connection.
    pub(crate) async fn run(self) {
        let head_time = Duration::from_millis(self.limits.stream_head_ms_max);
        let mut heads = JoinSet::new();
        loop {
            tokio::select! {
                opened = self.quinn.accept_bi() => match opened {
                    Ok(stream) => {
                        heads.spawn(head(stream, head_time));
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

    fn route(&self, head: u8, (send, receive): Stream) {
        if let Some(channel) = Channel::of_head(head) {
            let _ = send.set_priority(channel.priority());
            let Ok(place) = self.open_channels.clone().try_acquire_owned() else { return refuse(send, receive) };
            let frames = Frames::new(self.quinn.clone(), send, receive, Some(place), &self.limits);
            // There is room: it holds as many as there may be.
            let _ = self.sinks.channels.try_send((channel, frames));
            return;
        }
        match head {
            REQUEST => {
                let request = Request::new(send, receive, &self.limits);
                if let Err(error) = self.sinks.requests.try_send(request) {
                    error.into_inner().refuse(stream_code::BUSY);
                }
            }
            RENEW => self.renewals.clone().renew(self.connection.clone(), send, receive),
            NEWER => self.renewals.clone().newer(self.connection.clone(), receive),
            RAW.. => {
                let Ok(place) = self.sinks.raw.try_reserve() else { return refuse(send, receive) };
                place.send(RawStream { head, send, receive });
            }
            _ => close(&self.quinn, CloseCode::Malformed, &format!("no stream begins with {head}")),
        }
    }
}

/// The first byte of a stream. One that ends or does not come in time makes the stream none.
async fn head((send, mut receive): Stream, time: Duration) -> Option<(u8, Stream)> {
    let mut head = [0];
    match timeout(time, receive.read_exact(&mut head)).await {
        Ok(Ok(())) => Some((head[0], (send, receive))),
        Ok(Err(_)) => {
            refuse_with(send, receive, stream_code::NOBODY);
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
