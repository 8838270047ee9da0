//! Long messages on a channel: chunks, one frame each, then an empty frame.

use std::time::Duration;

use sandbar_wire::Frames;

use crate::error::ClusterError;

/// Maximum bytes of a chunk.
const CHUNK_BYTES: usize = 256 << 10;

/// Sends a message. The peer must accept each chunk within `time`.
pub(crate) async fn send(frames: &Frames, bytes: &[u8], time: Duration) -> Result<(), ClusterError> {
    for chunk in bytes.chunks(CHUNK_BYTES).chain([&[][..]]) {
        tokio::time::timeout(time, frames.send(chunk)).await.map_err(|_| ClusterError::NoResponse)??;
    }
    Ok(())
}

/// Receives a message of at most `bytes_max` bytes, each chunk within `time`. Passes the chunks to `write`.
pub(crate) async fn receive_into(
    frames: &mut Frames,
    bytes_max: u64,
    time: Duration,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), ClusterError> {
    let mut bytes = 0;
    loop {
        let chunk = tokio::time::timeout(time, frames.recv()).await;
        let chunk = chunk.map_err(|_| ClusterError::MessageTimedOut(time))??;
        let chunk = chunk.ok_or(ClusterError::MessageIncomplete)?;
        if chunk.is_empty() {
            return Ok(());
        }
        bytes += chunk.len() as u64;
        if bytes > bytes_max {
            return Err(ClusterError::MessageTooLong(bytes_max));
        }
        write(&chunk)?;
    }
}

/// Receives a message like [`receive_into`], into memory.
pub(crate) async fn receive(frames: &mut Frames, bytes_max: u64, time: Duration) -> Result<Vec<u8>, ClusterError> {
    let mut all = Vec::new();
    let write = |chunk: &[u8]| {
        all.extend_from_slice(chunk);
        Ok(())
    };
    receive_into(frames, bytes_max, time, write).await?;
    Ok(all)
}
