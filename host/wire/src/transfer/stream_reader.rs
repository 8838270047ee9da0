//! Reading of a peer's stream.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use quinn::{ReadError, RecvStream};

/// Stream chunks read in one call. Each is the payload of one packet.
const BATCH: usize = 32;

/// Reads a stream in order.
#[derive(Debug)]
pub(crate) struct StreamReader<'a> {
    stream: RecvStream,
    batch: [Bytes; BATCH],
    at: usize,
    /// Counter of received bytes.
    count: &'a AtomicU64,
}

/// Why reading ended.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The peer finished the stream.
    Ended,
    /// The peer reset the stream.
    Reset,
    /// The connection was lost, with the reason.
    ConnectionLost(String),
}

impl<'a> StreamReader<'a> {
    pub(crate) fn new(stream: RecvStream, count: &'a AtomicU64) -> StreamReader<'a> {
        StreamReader { stream, batch: std::array::from_fn(|_| Bytes::new()), at: BATCH, count }
    }

    /// Fills the buffer.
    pub(crate) async fn fill(&mut self, mut to: &mut [u8]) -> Result<(), ReadFault> {
        while !to.is_empty() {
            let Some(from) = self.batch.get_mut(self.at).filter(|from| !from.is_empty()) else {
                self.next().await?;
                continue;
            };
            let len = from.len().min(to.len());
            let (now, later) = to.split_at_mut(len);
            from.copy_to_slice(now);
            to = later;
        }
        Ok(())
    }

    pub(crate) async fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadFault> {
        let mut array = [0; N];
        self.fill(&mut array).await.map(|()| array)
    }

    /// Returns whether the peer finished the stream at this position.
    pub(crate) async fn is_over(&mut self) -> Result<bool, ReadFault> {
        match self.array::<1>().await {
            Ok(_) => Ok(false),
            Err(ReadFault::Ended) => Ok(true),
            Err(fault) => Err(fault),
        }
    }

    /// Advances to the next buffered chunk, or reads more.
    async fn next(&mut self) -> Result<(), ReadFault> {
        self.at += 1;
        if self.batch.get(self.at).is_some_and(|next| !next.is_empty()) {
            return Ok(());
        }
        self.batch.fill(Bytes::new());
        let read = self.stream.read_chunks(&mut self.batch).await;
        let read = read.map_err(|error| match error {
            ReadError::Reset(_) => ReadFault::Reset,
            other => ReadFault::ConnectionLost(other.to_string()),
        });
        let count = read?.ok_or(ReadFault::Ended)?;
        let len: usize = self.batch[..count].iter().map(Bytes::len).sum();
        self.count.fetch_add(len as u64, Ordering::Relaxed);
        self.at = 0;
        Ok(())
    }
}
