//! Long messages: in frames of a part each, and an empty one behind the last.

use std::time::Duration;

use sandbar_wire::Frames;

use super::ClusterError;

/// Bytes of a part.
const PART_BYTES: usize = 256 << 10;

/// Sends a message, of which each part is taken within this time.
pub(super) async fn send(frames: &Frames, bytes: &[u8], time: Duration) -> Result<(), ClusterError> {
    for part in bytes.chunks(PART_BYTES).chain([&[][..]]) {
        tokio::time::timeout(time, frames.send(part)).await.map_err(|_| ClusterError::Silent)??;
    }
    Ok(())
}

/// Receives a message, no longer than this, each part within this time. Parts go to who takes them.
pub(super) async fn recv_into(
    frames: &mut Frames,
    bytes_max: u64,
    time: Duration,
    mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), String> {
    let mut bytes = 0;
    loop {
        let part = tokio::time::timeout(time, frames.recv()).await;
        let part = part.map_err(|_| "it did not come in time")?.map_err(|e| e.to_string())?;
        let part = part.ok_or("it did not come whole")?;
        if part.is_empty() {
            return Ok(());
        }
        bytes += part.len() as u64;
        if bytes > bytes_max {
            return Err(format!("it has more than {bytes_max} bytes"));
        }
        take(&part).map_err(|e| e.to_string())?;
    }
}

/// As above.
pub(super) async fn recv(frames: &mut Frames, bytes_max: u64, time: Duration) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let take = |part: &[u8]| {
        all.extend_from_slice(part);
        Ok(())
    };
    recv_into(frames, bytes_max, time, take).await?;
    Ok(all)
}
