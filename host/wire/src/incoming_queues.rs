//! Queues of incoming channels, requests and streams.

use tokio::sync::{Mutex, mpsc};

use crate::channel::{Frames, IncomingRequest};
use crate::limits::WireLimits;
use crate::protocol::Channel;

/// Bounded queues of streams that the peer opened and the application has not accepted yet. The router refuses streams beyond
/// them.
#[derive(Debug)]
pub(crate) struct IncomingQueues {
    pub(crate) channels: Mutex<mpsc::Receiver<(Channel, Frames)>>,
    pub(crate) requests: Mutex<mpsc::Receiver<IncomingRequest>>,
    pub(crate) raw: Mutex<mpsc::Receiver<RawStream>>,
}

impl IncomingQueues {
    /// Creates the queues, with the router's ends.
    pub(crate) fn new(limits: &WireLimits) -> (IncomingSenders, IncomingQueues) {
        let (channels, taken_channels) = mpsc::channel(limits.channels_max);
        let (requests, taken_requests) = mpsc::channel(limits.requests_waiting_max);
        let (raw, taken_raw) = mpsc::channel(limits.streams_max as usize);
        let queues = IncomingQueues {
            channels: Mutex::new(taken_channels),
            requests: Mutex::new(taken_requests),
            raw: Mutex::new(taken_raw),
        };
        (IncomingSenders { channels, requests, raw }, queues)
    }
}

/// The router's ends of [`IncomingQueues`].
#[derive(Debug)]
pub(crate) struct IncomingSenders {
    pub channels: mpsc::Sender<(Channel, Frames)>,
    pub requests: mpsc::Sender<IncomingRequest>,
    pub raw: mpsc::Sender<RawStream>,
}

/// A stream that another module of this crate handles, and its first byte.
#[derive(Debug)]
pub(crate) struct RawStream {
    pub head: u8,
    pub send: quinn::SendStream,
    pub receive: quinn::RecvStream,
}
