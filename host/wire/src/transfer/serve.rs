//! Serving of objects to peers.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use sandbar_core::NodeId;
use tokio::sync::Semaphore;

use super::clock::within_ms;
use super::fair_queue::{FIRST_POSITION, FairQueue, QueueSlot};
use super::message::{Refusal, TRANSFER_STREAM, TransferRequest};
use super::piece::NO_TIME;
use super::{ObjectSource, Transfers};

/// State of serving one peer.
#[derive(Debug)]
pub(crate) struct ServedPeer {
    pub(crate) node: NodeId,
    pub(crate) sending: Semaphore,
    queue: FairQueue,
}

/// Why a request was not answered.
#[derive(Debug)]
pub(crate) enum ServeError {
    /// The peer cancelled it or disconnected.
    Cancelled,
    /// The peer does not read the answer.
    Stalled,
    /// The request does not parse.
    Malformed,
}

impl Transfers {
    /// Serves a peer's requests until the connection closes. Dropping the future cancels them. The connection must
    /// carry nothing else; otherwise see [`server_for`](Transfers::server_for).
    ///
    /// # Errors
    /// Returns why the connection closed.
    pub async fn serve(&self, connection: Connection, peer: NodeId, source: Arc<dyn ObjectSource>) -> ConnectionError {
        let server = self.server_for(peer);
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(()) = running.next() => {}
                accepted = connection.accept_bi(), if running.len() < self.0.limits.responses_per_peer_max => {
                    match accepted {
                        Ok((send, receive)) => running.push(server.accepted(source.clone(), send, receive)),
                        Err(reason) => return reason,
                    }
                }
            }
        }
    }

    /// Creates the server of one peer, for an endpoint that accepts streams itself. Use one for each peer, whatever the
    /// number of its connections.
    pub fn server_for(&self, peer: NodeId) -> TransferServer {
        let bytes = usize::try_from(self.0.limits.sending_peer_bytes_max).unwrap_or(Semaphore::MAX_PERMITS);
        let peer = ServedPeer { node: peer, sending: Semaphore::new(bytes), queue: FairQueue::default() };
        TransferServer { transfers: self.clone(), peer: Arc::new(peer) }
    }
}

/// Serves the requests of one peer.
#[derive(Debug, Clone)]
pub struct TransferServer {
    transfers: Transfers,
    peer: Arc<ServedPeer>,
}

impl TransferServer {
    /// Serves a stream whose first byte, [`TRANSFER_STREAM`], was read. The caller bounds how many are served
    /// concurrently.
    pub async fn serve_stream(&self, source: Arc<dyn ObjectSource>, mut send: SendStream, receive: RecvStream) {
        // Held until the peer has received everything or cancelled.
        let mut slot = None;
        let done = self.request(&source, &mut send, receive, &mut slot).await;
        let _ = match done {
            Ok(()) => send.finish(),
            Err(ServeError::Cancelled) => Ok(()),
            Err(ServeError::Stalled) => send.reset(NO_TIME),
            Err(ServeError::Malformed) => {
                let mut refusal = Vec::new();
                Refusal::Malformed.write(&mut refusal);
                let _ = self.write(&mut send, &mut [refusal.into()]).await;
                send.finish()
            }
        };
        // Without a reset QUIC would still send everything that it has taken, before the peer's next requests.
        if let Ok(Some(code)) = send.stopped().await {
            let _ = send.reset(code);
        }
    }

    async fn accepted(&self, source: Arc<dyn ObjectSource>, send: SendStream, mut receive: RecvStream) {
        let mut kind = [0];
        let read = within_ms(self.transfers.0.limits.request_ms_max, receive.read_exact(&mut kind)).await;
        if matches!(read, Some(Ok(()))) && kind == [TRANSFER_STREAM] {
            self.serve_stream(source, send, receive).await;
        }
    }

    async fn request<'a>(
        &'a self,
        source: &Arc<dyn ObjectSource>,
        send: &mut SendStream,
        mut receive: RecvStream,
        slot: &mut Option<QueueSlot<'a>>,
    ) -> Result<(), ServeError> {
        let limits = &self.transfers.0.limits;
        let read = within_ms(limits.request_ms_max, read_all(&mut receive, limits.request_bytes_max)).await;
        let bytes = read.unwrap_or(Err(ServeError::Stalled))?;
        match TransferRequest::read(&bytes, limits).ok_or(ServeError::Malformed)? {
            TransferRequest::Piece(request) => {
                let position = slot.insert(self.peer.queue.next(request.fetch)).position();
                let _ = send.set_priority(request.priority.of_stream(position));
                self.piece(source, request, send).await
            }
            TransferRequest::Small { priority, objects } => {
                let _ = send.set_priority(priority.of_stream(FIRST_POSITION));
                self.small(source, &objects, send).await
            }
        }
    }

    pub(crate) fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    pub(crate) fn peer(&self) -> &ServedPeer {
        &self.peer
    }

    /// Writes to QUIC once the limits for this peer and for all peers allow it.
    pub(crate) async fn write(&self, send: &mut SendStream, mut chunks: &mut [Bytes]) -> Result<(), ServeError> {
        let engine = &self.transfers.0;
        let len: usize = chunks.iter().map(Bytes::len).sum();
        let permits = |max: u64| u32::try_from((len as u64).min(max)).unwrap_or(u32::MAX);
        let of_peer = self.peer.sending.acquire_many(permits(engine.limits.sending_peer_bytes_max)).await;
        let of_all = engine.sending.acquire_many(permits(engine.limits.sending_bytes_max)).await;
        // The semaphores are never closed.
        let _permits = (of_peer.map_err(|_| ServeError::Cancelled)?, of_all.map_err(|_| ServeError::Cancelled)?);
        while !chunks.is_empty() {
            match within_ms(engine.limits.idle_ms_max, send.write_chunks(chunks)).await {
                None => return Err(ServeError::Stalled),
                Some(Err(_)) => return Err(ServeError::Cancelled),
                Some(Ok(written)) => {
                    engine.sent.add(written.bytes as u64);
                    chunks = &mut chunks[written.chunks..];
                }
            }
        }
        Ok(())
    }
}

/// Reads a stream to its end, up to a maximum. Reads in order, like the first byte: a stream that switches to unordered
/// reads counts retransmitted bytes twice in quinn-proto 0.11 and never finds the end.
async fn read_all(receive: &mut RecvStream, max: usize) -> Result<Vec<u8>, ServeError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = receive.read_chunk(max, true).await.map_err(|_| ServeError::Cancelled)? {
        if chunk.bytes.len() > max - bytes.len() {
            return Err(ServeError::Malformed);
        }
        bytes.extend_from_slice(&chunk.bytes);
    }
    Ok(bytes)
}
