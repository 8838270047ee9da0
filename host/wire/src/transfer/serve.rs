//! Answering peers.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use sandbar_core::{NodeId, ObjectId};
use tokio::sync::Semaphore;

use super::Transfers;
use super::clock::within_ms;
use super::message::{Refusal, Request, TRANSFER_STREAM};
use super::piece::NO_TIME;
use super::progress::Progress;
use super::turns::{FIRST_PLACE, Turn, Turns};

/// The bytes of an object, wherever they lie.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Which objects peers may have.
pub trait Source: Send + Sync {
    /// What there is of an object for a peer. Called for every request, so that it should take no time.
    fn find(&self, peer: NodeId, object: ObjectId) -> Held;
}

/// What there is of an object.
#[derive(Clone)]
pub enum Held {
    /// All of it.
    Whole(SharedBytes),
    /// What was fetched of it so far; the rest is to come.
    Partial(Partial),
    /// Nothing that the peer may have.
    NotHere,
}

/// An object that is being fetched: what is verified may be had by others.
#[derive(Debug, Clone)]
pub struct Partial(pub(crate) Arc<Progress>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Whole(bytes) => write!(f, "Whole({} bytes)", (**bytes).as_ref().len()),
            Held::Partial(partial) => partial.fmt(f),
            Held::NotHere => f.write_str("NotHere"),
        }
    }
}

/// What one peer may have at once.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) sending: Semaphore,
    turns: Turns,
}

/// Why a request was not answered.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The peer wants it no more, or has gone.
    Gone,
    /// It takes nothing.
    Stalled,
    /// What stands in its stream's beginning is no request.
    Malformed,
}

impl Transfers {
    /// Answers a peer's requests on a connection until that is closed. Dropping the future ends what is being answered.
    /// For a connection on which nothing else is said: otherwise see [`answer`](Transfers::answer).
    ///
    /// # Errors
    /// Why the connection was closed.
    pub async fn serve(&self, connection: Connection, peer: NodeId, source: Arc<dyn Source>) -> ConnectionError {
        let answers = self.answers(peer);
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(()) = running.next() => {}
                accepted = connection.accept_bi(), if running.len() < self.0.limits.answers_per_peer_max => {
                    match accepted {
                        Ok((send, receive)) => running.push(answers.accepted(source.clone(), send, receive)),
                        Err(reason) => return reason,
                    }
                }
            }
        }
    }

    /// What is needed to answer one peer, for an endpoint that accepts the streams itself: one for each peer, whatever
    /// connections it has.
    pub fn answers(&self, peer: NodeId) -> Answers {
        let bytes = usize::try_from(self.0.limits.sending_peer_bytes_max).unwrap_or(Semaphore::MAX_PERMITS);
        let peer = Peer { node: peer, sending: Semaphore::new(bytes), turns: Turns::default() };
        Answers { transfers: self.clone(), peer: Arc::new(peer) }
    }
}

/// Answers one peer.
#[derive(Debug, Clone)]
pub struct Answers {
    transfers: Transfers,
    peer: Arc<Peer>,
}

impl Answers {
    /// Answers the request on a stream whose first byte was [`TRANSFER_STREAM`], and was read. The caller bounds how many
    /// are answered at once.
    pub async fn answer(&self, source: Arc<dyn Source>, mut send: SendStream, receive: RecvStream) {
        // Until the peer has all of it, or wants it no more.
        let mut turn = None;
        let done = self.request(&source, &mut send, receive, &mut turn).await;
        let _ = match done {
            Ok(()) => send.finish(),
            Err(Unanswered::Gone) => Ok(()),
            Err(Unanswered::Stalled) => send.reset(NO_TIME),
            Err(Unanswered::Malformed) => {
                let mut refusal = Vec::new();
                Refusal::Malformed.write(&mut refusal);
                let _ = self.write(&mut send, &mut [refusal.into()]).await;
                send.finish()
            }
        };
        // QUIC has taken all, and sends it even when the peer wants it no more, before what that asks for then.
        if let Ok(Some(code)) = send.stopped().await {
            let _ = send.reset(code);
        }
    }

    async fn accepted(&self, source: Arc<dyn Source>, send: SendStream, mut receive: RecvStream) {
        let mut kind = [0];
        let read = within_ms(self.transfers.0.limits.request_ms_max, receive.read_exact(&mut kind)).await;
        if matches!(read, Some(Ok(()))) && kind == [TRANSFER_STREAM] {
            self.answer(source, send, receive).await;
        }
    }

    async fn request<'a>(
        &'a self,
        source: &Arc<dyn Source>,
        send: &mut SendStream,
        mut receive: RecvStream,
        turn: &mut Option<Turn<'a>>,
    ) -> Result<(), Unanswered> {
        let limits = &self.transfers.0.limits;
        let read = within_ms(limits.request_ms_max, read_all(&mut receive, limits.request_bytes_max)).await;
        let bytes = read.unwrap_or(Err(Unanswered::Stalled))?;
        match Request::read(&bytes, limits).ok_or(Unanswered::Malformed)? {
            Request::Piece(request) => {
                let place = turn.insert(self.peer.turns.next(request.fetch)).place();
                let _ = send.set_priority(request.priority.of_stream(place));
                self.piece(source, request, send).await
            }
            Request::Small { priority, objects } => {
                let _ = send.set_priority(priority.of_stream(FIRST_PLACE));
                self.small(source, &objects, send).await
            }
        }
    }

    pub(crate) fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Hands bytes to QUIC, when it is this peer's turn.
    pub(crate) async fn write(&self, send: &mut SendStream, mut chunks: &mut [Bytes]) -> Result<(), Unanswered> {
        let engine = &self.transfers.0;
        let len: usize = chunks.iter().map(Bytes::len).sum();
        let permits = |most: u64| u32::try_from((len as u64).min(most)).unwrap_or(u32::MAX);
        let of_peer = self.peer.sending.acquire_many(permits(engine.limits.sending_peer_bytes_max)).await;
        let of_all = engine.sending.acquire_many(permits(engine.limits.sending_bytes_max)).await;
        // They are never closed.
        let _turn = (of_peer.map_err(|_| Unanswered::Gone)?, of_all.map_err(|_| Unanswered::Gone)?);
        while !chunks.is_empty() {
            match within_ms(engine.limits.idle_ms_max, send.write_chunks(chunks)).await {
                None => return Err(Unanswered::Stalled),
                Some(Err(_)) => return Err(Unanswered::Gone),
                Some(Ok(written)) => {
                    engine.sent.add(written.bytes as u64);
                    chunks = &mut chunks[written.chunks..];
                }
            }
        }
        Ok(())
    }
}

/// All of a stream, when it is not longer. In order, as its first byte was read: QUIC (quinn-proto 0.11) that goes over to
/// any order counts what came twice twice, and never finds the end.
async fn read_all(receive: &mut RecvStream, most: usize) -> Result<Vec<u8>, Unanswered> {
    let mut bytes = Vec::new();
    while let Some(chunk) = receive.read_chunk(most, true).await.map_err(|_| Unanswered::Gone)? {
        if chunk.bytes.len() > most - bytes.len() {
            return Err(Unanswered::Malformed);
        }
        bytes.extend_from_slice(&chunk.bytes);
    }
    Ok(bytes)
}
