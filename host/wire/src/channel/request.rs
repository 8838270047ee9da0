//! Requests and their answers, each pair on its own stream.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use super::ChannelError;
use crate::limits::WireLimits;
use crate::protocol::{REQUEST_PRIORITY, stream_code};

/// A peer's request. Dropping it without an answer resets the stream with `UNHANDLED`.
#[derive(Debug)]
pub struct IncomingRequest {
    writer: MessageWriter,
    receive: quinn::RecvStream,
    until: Instant,
    limits: WireLimits,
}

impl IncomingRequest {
    pub(crate) fn new(send: quinn::SendStream, receive: quinn::RecvStream, limits: &WireLimits) -> IncomingRequest {
        let until = Instant::now() + Duration::from_millis(limits.request_time_ms_max);
        IncomingRequest { writer: MessageWriter::new(send), receive, until, limits: *limits }
    }

    /// Reads the request. QUIC buffers it until this call. It must arrive within
    /// [`request_time_ms_max`](WireLimits::request_time_ms_max) of its first byte.
    ///
    /// # Errors
    /// The request is too long or too slow, or the connection is closed.
    pub async fn read(&mut self) -> Result<Bytes, ChannelError> {
        let max = ByteLimit { kind: "request", bytes: self.limits.request_bytes_max, limit: "request_bytes_max" };
        read_whole(&mut self.receive, max, self.until, self.limits.request_time_ms_max).await
    }

    /// Sends the answer. Returns when QUIC has taken it.
    ///
    /// # Errors
    /// The answer is too long, the peer takes it too slowly or not at all, or the connection is closed.
    pub async fn respond(self, response: &[u8]) -> Result<(), ChannelError> {
        let (max, ms) = (u64::from(self.limits.response_bytes_max), self.limits.request_time_ms_max);
        let bytes = response.len() as u64;
        if bytes > max {
            return Err(ChannelError::Oversized { kind: "answer", bytes, max, limit: "response_bytes_max" });
        }
        let parts = [response];
        let writing = self.writer.write(&parts);
        let until = Instant::now() + Duration::from_millis(ms);
        timeout_at(until, writing).await.unwrap_or_else(|_| Err(slow("an answer", ms)))
    }

    /// Rejects the request with a stream code.
    pub(crate) fn refuse(mut self, code: u32) {
        self.writer.give_up = code;
        let _ = self.receive.stop(code.into());
    }
}

/// Writes one complete message to a stream, or resets the stream. Dropping a bare QUIC stream would finish it, as if
/// the message were complete.
#[derive(Debug)]
struct MessageWriter {
    stream: quinn::SendStream,
    give_up: u32,
    is_done: bool,
}

impl MessageWriter {
    fn new(stream: quinn::SendStream) -> MessageWriter {
        MessageWriter { stream, give_up: stream_code::UNHANDLED, is_done: false }
    }

    async fn write(mut self, parts: &[&[u8]]) -> Result<(), ChannelError> {
        self.give_up = stream_code::SLOW;
        for part in parts {
            self.stream.write_all(part).await?;
        }
        self.is_done = true;
        let _ = self.stream.finish();
        Ok(())
    }
}

impl Drop for MessageWriter {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = self.stream.reset(self.give_up.into());
        }
    }
}

/// Maximum length of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteLimit {
    pub kind: &'static str,
    pub bytes: u32,
    pub limit: &'static str,
}

/// Sends a request on its own stream and waits for the answer; `time` covers both.
pub(crate) async fn send_request(
    quinn: &quinn::Connection,
    parts: &[&[u8]],
    max: ByteLimit,
    time: Duration,
) -> Result<Bytes, ChannelError> {
    let (until, ms) = (Instant::now() + time, time.as_millis() as u64);
    let asking = async {
        let (send, receive) = quinn.open_bi().await?;
        let _ = send.set_priority(REQUEST_PRIORITY);
        MessageWriter::new(send).write(parts).await?;
        Ok::<_, ChannelError>(receive)
    };
    let mut receive = timeout_at(until, asking).await.map_err(|_| slow("a request", ms))??;
    read_whole(&mut receive, max, until, ms).await
}

/// Answers on a stream that the peer opened and whose request was read to the end.
pub(crate) async fn send_response(send: quinn::SendStream, response: &[u8]) -> Result<(), ChannelError> {
    MessageWriter::new(send).write(&[response]).await
}

/// Reads a stream to its end. The buffer grows with received bytes; a message over the limit is rejected before its
/// end.
pub(crate) async fn read_whole(
    receive: &mut quinn::RecvStream,
    max: ByteLimit,
    until: Instant,
    ms: u64,
) -> Result<Bytes, ChannelError> {
    let mut bytes = BytesMut::new();
    loop {
        let mut pieces = [const { Bytes::new() }; 16];
        let read = match timeout_at(until, receive.read_chunks(&mut pieces)).await {
            Ok(read) => read?,
            Err(_) => {
                let _ = receive.stop(stream_code::SLOW.into());
                return Err(slow(max.kind, ms));
            }
        };
        let Some(count) = read else { return Ok(bytes.freeze()) };
        pieces.iter().take(count).for_each(|piece| bytes.extend_from_slice(piece));
        if bytes.len() > max.bytes as usize {
            let _ = receive.stop(stream_code::TOO_LONG.into());
            let (bytes, ByteLimit { kind, bytes: max, limit }) = (bytes.len() as u64, max);
            return Err(ChannelError::TooLong { kind, bytes, max: max.into(), limit });
        }
    }
}

fn slow(kind: &'static str, ms: u64) -> ChannelError {
    ChannelError::Slow { kind, ms, limit: "request_time_ms_max" }
}
