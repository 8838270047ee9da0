//! Frames of a channel: in order, whole, both ways.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::unframe::{HEAD_BYTES, Oversized, Unframe};
use super::{ChannelError, Stop};
use crate::endpoint::close;
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
        place: Option<OwnedSemaphorePermit>,
        limits: &WireLimits,
    ) -> Frames {
        let receiver = FrameReceiver {
            quinn,
            stream: receive,
            unframe: Unframe::default(),
            since: None,
            frame_bytes_max: limits.frame_bytes_max,
            frame_time_ms_max: limits.frame_time_ms_max,
            _place: place,
        };
        Frames { sender: FrameSender::new(send, limits), receiver }
    }

    /// See [`FrameSender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, frame: &[u8]) -> Result<(), ChannelError> {
        self.sender.send(frame).await
    }

    /// See [`FrameSender::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> Result<(), ChannelError> {
        self.sender.flush().await
    }

    /// See [`FrameReceiver::recv`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ChannelError> {
        self.receiver.recv().await
    }

    /// For two tasks.
    pub fn split(self) -> (FrameSender, FrameReceiver) {
        (self.sender, self.receiver)
    }
}

/// Sends frames. Clones send on the same channel. When the last is dropped, what was sent goes out and the channel ends in
/// this direction.
#[derive(Debug)]
pub struct FrameSender {
    queue: Arc<Queue>,
}

/// What was sent and QUIC has not taken.
#[derive(Debug)]
struct Queue {
    frame_bytes_max: u32,
    queue_bytes_max: u32,
    senders: AtomicUsize,
    /// A permit for each byte of room. First come, first served: a large frame is not passed by small ones for ever.
    room: Semaphore,
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// In pieces, so that none grows and is moved; the last is what is written to.
    full: Vec<Bytes>,
    last: BytesMut,
    is_over: bool,
    failed: Option<ChannelError>,
}

/// Frames share pieces of so many bytes; a longer one has one of its own.
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

    /// Sends a frame: gives back when it is queued, which it is at once unless
    /// [`send_queue_bytes_max`](WireLimits::send_queue_bytes_max) are queued before it. Where the future is dropped before
    /// that, nothing of the frame is sent.
    ///
    /// # Errors
    /// When it is too long, the peer wants no more, or the connection is gone; then frames that were queued may be lost.
    pub async fn send(&self, frame: &[u8]) -> Result<(), ChannelError> {
        let (queue, most) = (&*self.queue, self.queue.frame_bytes_max);
        let length =
            u32::try_from(frame.len()).ok().filter(|length| *length <= most).ok_or(ChannelError::Oversized {
                what: "frame",
                bytes: frame.len() as u64,
                most: most.into(),
                limit: "frame_bytes_max",
            })?;
        match queue.room.acquire_many(length + HEAD_BYTES as u32).await {
            // What takes the bytes gives the room back.
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

    /// Waits until all room is free: QUIC has taken what was sent before, and will send it for as long as the connection
    /// is there.
    ///
    /// # Errors
    /// When the peer wants no more, or the connection is gone.
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
    /// Hands to QUIC what was queued, all of it at once: many small frames make one write. Owned by its senders: it ends
    /// when the last is gone and all is written, or at the first error, which the senders get.
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
                            Ok(code) => ChannelError::Stopped(code.map_or(Stop::Dropped, |c| c.into_inner().into())),
                            Err(quinn::StoppedError::ConnectionLost(lost)) => lost.into(),
                            Err(quinn::StoppedError::ZeroRttRejected) => ChannelError::Stopped(Stop::Dropped),
                        };
                        return self.fail(failed);
                    }
                }
            };
            if let Err(error) = self.write_out(&mut stream, pieces).await {
                return self.fail(error.into());
            }
        }
        // Says that nothing follows; what was written is sent before.
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
        self.lock().failed.clone().unwrap_or(ChannelError::Stopped(Stop::Dropped))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives frames. When it is dropped, the peer is told to send no more.
#[derive(Debug)]
pub struct FrameReceiver {
    quinn: quinn::Connection,
    stream: quinn::RecvStream,
    unframe: Unframe,
    /// When the first byte of a frame came that is not whole yet.
    since: Option<Instant>,
    frame_bytes_max: u32,
    frame_time_ms_max: u64,
    /// Among the channels that the peer may have open.
    _place: Option<OwnedSemaphorePermit>,
}

/// Pieces of a stream that are taken together: each is what one packet brought.
const PIECES: usize = 32;

impl FrameReceiver {
    /// The next frame; none when the peer sends no more. Where the future is dropped before it is ready, nothing is lost.
    ///
    /// What is not received stays with QUIC, up to [`stream_window_bytes`](WireLimits::stream_window_bytes); then the peer
    /// waits.
    ///
    /// # Errors
    /// When the connection is gone, a frame is too long, or it does not come whole; the last two close the connection.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ChannelError> {
        loop {
            match self.unframe.next(self.frame_bytes_max) {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    self.since = None;
                    return Ok(Some(frame));
                }
                Err(Oversized(bytes)) => return Err(self.too_long(bytes)),
            }
            if !self.read_more().await? {
                return match self.unframe.is_within() {
                    false => Ok(None),
                    true => Err(self.malformed(ChannelError::Cut)),
                };
            }
        }
    }

    /// False at the end of the stream.
    async fn read_more(&mut self) -> Result<bool, ChannelError> {
        let mut pieces = [const { Bytes::new() }; PIECES];
        let reading = self.stream.read_chunks(&mut pieces);
        let read = if self.unframe.is_within() {
            let since = *self.since.get_or_insert_with(Instant::now);
            match tokio::time::timeout_at(since + Duration::from_millis(self.frame_time_ms_max), reading).await {
                Ok(read) => read?,
                Err(_) => return Err(self.slow()),
            }
        } else {
            reading.await?
        };
        let Some(count) = read else { return Ok(false) };
        pieces.iter().take(count).for_each(|piece| self.unframe.push(piece));
        Ok(true)
    }

    fn too_long(&self, bytes: u32) -> ChannelError {
        let (bytes, most) = (bytes.into(), self.frame_bytes_max.into());
        self.malformed(ChannelError::TooLong { what: "frame", bytes, most, limit: "frame_bytes_max" })
    }

    fn slow(&self) -> ChannelError {
        let (ms, limit) = (self.frame_time_ms_max, "frame_time_ms_max");
        let error = ChannelError::Slow { what: "a frame", ms, limit };
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
