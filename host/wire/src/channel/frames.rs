//! The frames of a channel: ordered, complete, in both directions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::frame_decoder::{FrameDecoder, FrameTooLong, HEAD_BYTES};
use super::{ChannelError, StopReason};
use crate::disconnect::close;
use crate::limits::WireLimits;
use crate::protocol::{CloseCode, stream_code};

/// Both directions of a channel.
#[derive(Debug)]
pub struct Frames {
    sender: FrameSender,
    receiver: FrameReceiver,
}

impl Frames {
    pub(crate) fn new(
        quinn: quinn::Connection,
        send: quinn::SendStream,
        receive: quinn::RecvStream,
        permit: Option<OwnedSemaphorePermit>,
        limits: &WireLimits,
    ) -> Frames {
        let receiver = FrameReceiver {
            quinn,
            stream: receive,
            decoder: FrameDecoder::default(),
            since: None,
            frame_bytes_max: limits.frame_bytes_max,
            frame_time_ms_max: limits.frame_time_ms_max,
            _permit: permit,
        };
        Frames { sender: FrameSender::new(send, limits), receiver }
    }

    /// See [`FrameSender::send`].
    ///
    /// # Errors
    /// See [`FrameSender::send`].
    pub async fn send(&self, frame: &[u8]) -> Result<(), ChannelError> {
        self.sender.send(frame).await
    }

    /// See [`FrameSender::flush`].
    ///
    /// # Errors
    /// See [`FrameSender::flush`].
    pub async fn flush(&self) -> Result<(), ChannelError> {
        self.sender.flush().await
    }

    /// See [`FrameReceiver::recv`].
    ///
    /// # Errors
    /// See [`FrameReceiver::recv`].
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ChannelError> {
        self.receiver.recv().await
    }

    /// Splits the channel into its directions, for use by two tasks.
    pub fn split(self) -> (FrameSender, FrameReceiver) {
        (self.sender, self.receiver)
    }
}

/// Sends frames. Clones send on the same channel. After the last clone is dropped, queued frames are sent and this
/// direction of the channel finishes.
#[derive(Debug)]
pub struct FrameSender {
    queue: Arc<Queue>,
}

/// Frames that QUIC has not taken yet.
#[derive(Debug)]
struct Queue {
    frame_bytes_max: u32,
    queue_bytes_max: u32,
    senders: AtomicUsize,
    /// One permit for each free byte. The semaphore is fair, so that small frames do not starve a large one.
    room: Semaphore,
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Complete pieces of the queue. Pieces avoid reallocation of a growing buffer; `last` is the one being filled.
    full: Vec<Bytes>,
    last: BytesMut,
    is_over: bool,
    failed: Option<ChannelError>,
}

/// Bytes of a piece that frames share. A longer frame gets its own piece.
const PIECE_BYTES: usize = 64 << 10;

impl QueueState {
    fn is_empty(&self) -> bool {
        self.last.is_empty() && self.full.is_empty()
    }

    fn push(&mut self, length: u32, frame: &[u8]) {
        let needs = HEAD_BYTES + frame.len();
        if self.last.capacity() - self.last.len() < needs {
            let last = std::mem::replace(&mut self.last, BytesMut::with_capacity(needs.max(PIECE_BYTES)));
            self.full.extend((!last.is_empty()).then(|| last.freeze()));
        }
        self.last.extend_from_slice(&length.to_le_bytes());
        self.last.extend_from_slice(frame);
    }

    fn take(&mut self) -> Vec<Bytes> {
        let mut pieces = std::mem::take(&mut self.full);
        pieces.push(self.last.split().freeze());
        pieces
    }
}

impl FrameSender {
    fn new(stream: quinn::SendStream, limits: &WireLimits) -> FrameSender {
        let queue = Arc::new(Queue {
            frame_bytes_max: limits.frame_bytes_max,
            queue_bytes_max: limits.send_queue_bytes_max,
            senders: AtomicUsize::new(1),
            room: Semaphore::new(limits.send_queue_bytes_max as usize),
            state: Mutex::default(),
            changed: Notify::new(),
        });
        tokio::spawn(queue.clone().write(stream));
        FrameSender { queue }
    }

    /// Queues a frame. Waits while the queue has no room for it
    /// ([`send_queue_bytes_max`](WireLimits::send_queue_bytes_max)). Cancel-safe: if the future is dropped while it
    /// waits, nothing of the frame is sent.
    ///
    /// # Errors
    /// The frame is too long, the peer stopped the channel, or the connection is closed. In the last two cases queued
    /// frames may be lost.
    pub async fn send(&self, frame: &[u8]) -> Result<(), ChannelError> {
        let (queue, max) = (&*self.queue, self.queue.frame_bytes_max);
        let length =
            u32::try_from(frame.len()).ok().filter(|length| *length <= max).ok_or(ChannelError::Oversized {
                kind: "frame",
                bytes: frame.len() as u64,
                max: max.into(),
                limit: "frame_bytes_max",
            })?;
        match queue.room.acquire_many(length + HEAD_BYTES as u32).await {
            // The writer releases the permits when QUIC takes the bytes.
            Ok(room) => room.forget(),
            Err(_) => return Err(queue.failure()),
        }
        let state = &mut *queue.lock();
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        let was_empty = state.is_empty();
        state.push(length, frame);
        if was_empty {
            queue.changed.notify_one();
        }
        Ok(())
    }

    /// Waits until the queue is empty. QUIC then delivers the sent frames, as long as the connection lasts.
    ///
    /// # Errors
    /// The peer stopped the channel, or the connection is closed.
    pub async fn flush(&self) -> Result<(), ChannelError> {
        let all = self.queue.room.acquire_many(self.queue.queue_bytes_max).await;
        all.map(drop).map_err(|_| self.queue.failure())
    }
}

impl Clone for FrameSender {
    fn clone(&self) -> Self {
        self.queue.senders.fetch_add(1, Ordering::Relaxed);
        FrameSender { queue: self.queue.clone() }
    }
}

impl Drop for FrameSender {
    fn drop(&mut self) {
        if self.queue.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.queue.lock().is_over = true;
            self.queue.changed.notify_one();
        }
    }
}

impl Queue {
    /// Writes queued frames to QUIC in batches, so that many small frames need one write. The senders own this task: it
    /// ends after the last sender is dropped and the queue is written, or at the first error, which the senders return.
    async fn write(self: Arc<Queue>, mut stream: quinn::SendStream) {
        loop {
            let pieces = {
                let state = &mut *self.lock();
                match state.is_empty() {
                    true if state.is_over => break,
                    true => None,
                    false => Some(state.take()),
                }
            };
            let Some(pieces) = pieces else {
                tokio::select! {
                    () = self.changed.notified() => continue,
                    stopped = stream.stopped() => {
                        let failed = match stopped {
                            Ok(code) => ChannelError::Stopped(code.map_or(StopReason::Dropped, |c| c.into_inner().into())),
                            Err(quinn::StoppedError::ConnectionLost(lost)) => lost.into(),
                            Err(quinn::StoppedError::ZeroRttRejected) => ChannelError::Stopped(StopReason::Dropped),
                        };
                        return self.fail(failed);
                    }
                }
            };
            if let Err(error) = self.write_out(&mut stream, pieces).await {
                return self.fail(error.into());
            }
        }
        // Finishes the stream; data written before is still delivered.
        let _ = stream.finish();
    }

    async fn write_out(&self, stream: &mut quinn::SendStream, mut pieces: Vec<Bytes>) -> Result<(), quinn::WriteError> {
        let mut rest = &mut pieces[..];
        while !rest.is_empty() {
            let written = stream.write_chunks(rest).await?;
            self.room.add_permits(written.bytes);
            rest = &mut rest[written.chunks..];
        }
        Ok(())
    }

    fn fail(&self, error: ChannelError) {
        let state = &mut *self.lock();
        state.failed.get_or_insert(error);
        (state.full, state.last) = Default::default();
        self.room.close();
    }

    fn failure(&self) -> ChannelError {
        self.lock().failed.clone().unwrap_or(ChannelError::Stopped(StopReason::Dropped))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives frames. Dropping it requests the peer to stop sending.
#[derive(Debug)]
pub struct FrameReceiver {
    quinn: quinn::Connection,
    stream: quinn::RecvStream,
    decoder: FrameDecoder,
    /// Arrival time of the first byte of an incomplete frame.
    since: Option<Instant>,
    frame_bytes_max: u32,
    frame_time_ms_max: u64,
    /// The channel's permit among those that the peer may open.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Stream chunks read in one call. Each is the payload of one packet.
const PIECES: usize = 32;

impl FrameReceiver {
    /// Returns the next frame; `None` when the peer finished. Cancel-safe: dropping the future loses nothing.
    ///
    /// QUIC buffers frames that are not received yet, up to [`stream_window_bytes`](WireLimits::stream_window_bytes);
    /// then the peer waits.
    ///
    /// # Errors
    /// The connection is closed, a frame is too long, or a frame is incomplete. The last two close the connection.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ChannelError> {
        loop {
            match self.decoder.next(self.frame_bytes_max) {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    self.since = None;
                    return Ok(Some(frame));
                }
                Err(FrameTooLong(bytes)) => return Err(self.too_long(bytes)),
            }
            if !self.read_more().await? {
                return match self.decoder.is_within() {
                    false => Ok(None),
                    true => Err(self.malformed(ChannelError::Truncated)),
                };
            }
        }
    }

    /// Returns false at the end of the stream.
    async fn read_more(&mut self) -> Result<bool, ChannelError> {
        let mut pieces = [const { Bytes::new() }; PIECES];
        let reading = self.stream.read_chunks(&mut pieces);
        let read = if self.decoder.is_within() {
            let since = *self.since.get_or_insert_with(Instant::now);
            match tokio::time::timeout_at(since + Duration::from_millis(self.frame_time_ms_max), reading).await {
                Ok(read) => read?,
                Err(_) => return Err(self.slow()),
            }
        } else {
            reading.await?
        };
        let Some(count) = read else { return Ok(false) };
        pieces.iter().take(count).for_each(|piece| self.decoder.push(piece));
        Ok(true)
    }

    fn too_long(&self, bytes: u32) -> ChannelError {
        let (bytes, max) = (bytes.into(), self.frame_bytes_max.into());
        self.malformed(ChannelError::TooLong { kind: "frame", bytes, max, limit: "frame_bytes_max" })
    }

    fn slow(&self) -> ChannelError {
        let (ms, limit) = (self.frame_time_ms_max, "frame_time_ms_max");
        let error = ChannelError::Slow { kind: "a frame", ms, limit };
        close(&self.quinn, CloseCode::Slow, &error.to_string());
        error
    }

    fn malformed(&self, error: ChannelError) -> ChannelError {
        close(&self.quinn, CloseCode::Malformed, &error.to_string());
        error
    }
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        let _ = self.stream.stop(stream_code::DROPPED.into());
    }
}
