//! A request and its answer, on a stream of their own.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use super::ChannelError;
use crate::limits::WireLimits;
use crate::protocol::{REQUEST_PRIORITY, stream_code};

/// What a peer asks. Whoever drops it without an answer tells the peer that nobody answers.
#[derive(Debug)]
pub struct Request {
    answer: Whole,
    receive: quinn::RecvStream,
    until: Instant,
    limits: WireLimits,
}

impl Request {
    pub(crate) fn new(send: quinn::SendStream, receive: quinn::RecvStream, limits: &WireLimits) -> Request {
        let until = Instant::now() + Duration::from_millis(limits.request_time_ms_max);
        Request { answer: Whole::new(send), receive, until, limits: *limits }
    }

    /// What it says. It stays with QUIC until this is called, and has to come within
    /// [`request_time_ms_max`](WireLimits::request_time_ms_max) of its first byte.
    ///
    /// # Errors
    /// When it is too long or too slow, or the connection is gone.
    pub async fn read(&mut self) -> Result<Bytes, ChannelError> {
        let most = Most { what: "request", bytes: self.limits.request_bytes_max, limit: "request_bytes_max" };
        read_whole(&mut self.receive, most, self.until, self.limits.request_time_ms_max).await
    }

    /// Answers it. Gives back when QUIC has taken the answer.
    ///
    /// # Errors
    /// When the answer is too long, the peer takes it too slowly or not at all, or the connection is gone.
    pub async fn answer(self, answer: &[u8]) -> Result<(), ChannelError> {
        let (most, ms) = (u64::from(self.limits.answer_bytes_max), self.limits.request_time_ms_max);
        let bytes = answer.len() as u64;
        if bytes > most {
            return Err(ChannelError::Oversized { what: "answer", bytes, most, limit: "answer_bytes_max" });
        }
        let parts = [answer];
        let writing = self.answer.write(&parts);
        let until = Instant::now() + Duration::from_millis(ms);
        timeout_at(until, writing).await.unwrap_or_else(|_| Err(slow("an answer", ms)))
    }

    /// Does not answer it, for a reason.
    pub(crate) fn refuse(mut self, code: u32) {
        self.answer.give_up = code;
        let _ = self.receive.stop(code.into());
    }
}

/// What one has to send on a stream: all of it, or the stream is reset. A stream that is merely dropped would end as if
/// all had been sent.
#[derive(Debug)]
struct Whole {
    stream: quinn::SendStream,
    give_up: u32,
    is_done: bool,
}

impl Whole {
    fn new(stream: quinn::SendStream) -> Whole {
        Whole { stream, give_up: stream_code::NOBODY, is_done: false }
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

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = self.stream.reset(self.give_up.into());
        }
    }
}

/// How long something may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    pub what: &'static str,
    pub bytes: u32,
    pub limit: &'static str,
}

/// Asks, on a stream of its own, and waits for the answer: `time` for both together.
pub(crate) async fn ask(
    quinn: &quinn::Connection,
    parts: &[&[u8]],
    most: Most,
    time: Duration,
) -> Result<Bytes, ChannelError> {
    let (until, ms) = (Instant::now() + time, time.as_millis() as u64);
    let asking = async {
        let (send, receive) = quinn.open_bi().await?;
        let _ = send.set_priority(REQUEST_PRIORITY);
        Whole::new(send).write(parts).await?;
        Ok::<_, ChannelError>(receive)
    };
    let mut receive = timeout_at(until, asking).await.map_err(|_| slow("a request", ms))??;
    read_whole(&mut receive, most, until, ms).await
}

/// Answers on a stream that somebody else opened: one that is read to its end.
pub(crate) async fn tell(send: quinn::SendStream, answer: &[u8]) -> Result<(), ChannelError> {
    Whole::new(send).write(&[answer]).await
}

/// All of a stream. It grows by what comes, and what is longer than it may be is not waited for.
pub(crate) async fn read_whole(
    receive: &mut quinn::RecvStream,
    most: Most,
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
                return Err(slow(most.what, ms));
            }
        };
        let Some(count) = read else { return Ok(bytes.freeze()) };
        pieces.iter().take(count).for_each(|piece| bytes.extend_from_slice(piece));
        if bytes.len() > most.bytes as usize {
            let _ = receive.stop(stream_code::TOO_LONG.into());
            let (bytes, Most { what, bytes: most, limit }) = (bytes.len() as u64, most);
            return Err(ChannelError::TooLong { what, bytes, most: most.into(), limit });
        }
    }
}

fn slow(what: &'static str, ms: u64) -> ChannelError {
    ChannelError::Slow { what, ms, limit: "request_time_ms_max" }
}
