//! Lines between the runtime and a connection to another node: frames in both directions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbar_worker::program::NodeDoorbell;
use tokio::sync::Notify;

/// Maximum bytes that wait to be sent. A peer that receives too slowly is disconnected.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Maximum bytes of received frames that the runtime has not handled. Beyond it, reading from the connection pauses.
const UNHANDLED_BYTES_MAX: usize = 16 << 20;
/// Interval at which a paused reader checks the unhandled bytes.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Frames of one direction.
#[derive(Debug, Default)]
struct Queue {
    frames: Mutex<VecDeque<Vec<u8>>>,
    /// Number of frames.
    count: AtomicUsize,
    /// Bytes of all frames.
    bytes: AtomicUsize,
    is_closed: AtomicBool,
    /// Notified when frames are available to send.
    sender: Notify,
}

impl Queue {
    fn frames(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, frame: Vec<u8>) {
        let bytes = self.bytes.fetch_add(frame.len(), Relaxed) + frame.len();
        if bytes > WAITING_BYTES_MAX {
            self.is_closed.store(true, Relaxed);
        }
        let mut frames = self.frames();
        frames.push_back(frame);
        self.count.store(frames.len(), Relaxed);
    }

    fn pop(&self) -> Option<Vec<u8>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut frames = self.frames();
        let frame = frames.pop_front();
        self.count.store(frames.len(), Relaxed);
        drop(frames);
        if let Some(frame) = &frame {
            self.bytes.fetch_sub(frame.len(), Relaxed);
        }
        frame
    }
}

/// The runtime's end of a line.
#[derive(Debug)]
pub struct PeerLine {
    to: Arc<Queue>,
    from: Arc<Queue>,
    /// NodeDoorbell of the other runtime, if it is in this process.
    other: Option<NodeDoorbell>,
    has_sent: bool,
}

impl PeerLine {
    /// Returns both ends of a line between two runtimes of this process, given by their doorbells.
    pub fn pair(first: NodeDoorbell, second: NodeDoorbell) -> (PeerLine, PeerLine) {
        let (a, b) = (Arc::<Queue>::default(), Arc::<Queue>::default());
        let first_line = PeerLine { to: a.clone(), from: b.clone(), other: Some(second), has_sent: false };
        let second_line = PeerLine { to: b, from: a, other: Some(first), has_sent: false };
        (first_line, second_line)
    }

    /// Returns both ends of a line between a runtime and a connection to another node.
    pub fn with_connection(runtime: NodeDoorbell) -> (PeerLine, PeerEnd) {
        let (to, from) = (Arc::<Queue>::default(), Arc::<Queue>::default());
        let end = PeerEnd { outgoing: to.clone(), incoming: from.clone(), runtime };
        (PeerLine { to, from, other: None, has_sent: false }, end)
    }

    /// Queues a frame, which is sent by the next flush.
    pub fn send(&mut self, frame: Vec<u8>) {
        self.to.push(frame);
        self.has_sent = true;
    }

    /// Wakes the receiver of queued frames.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.has_sent) {
            self.to.sender.notify_one();
            if let Some(other) = &self.other {
                other.ring();
            }
        }
    }

    /// Returns the next received frame.
    pub fn receive(&self) -> Option<Vec<u8>> {
        self.from.pop()
    }

    /// Returns whether frames were received, or the connection has ended.
    pub fn has_messages(&self) -> bool {
        self.from.count.load(Relaxed) > 0 || self.is_closed()
    }

    /// Returns whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.from.is_closed.load(Relaxed) || self.to.is_closed.load(Relaxed)
    }
}

/// The connection's end of a line.
#[derive(Debug)]
pub struct PeerEnd {
    outgoing: Arc<Queue>,
    incoming: Arc<Queue>,
    runtime: NodeDoorbell,
}

impl PeerEnd {
    /// Returns the next frame to send, or `None` once the runtime has disconnected.
    pub async fn next_outgoing(&self) -> Option<Vec<u8>> {
        loop {
            let notified = self.outgoing.sender.notified();
            if let Some(frame) = self.outgoing.pop() {
                return Some(frame);
            }
            if self.outgoing.is_closed.load(Relaxed) {
                return None;
            }
            notified.await;
        }
    }

    /// Passes a received frame to the runtime. Then waits while the runtime has too many unhandled bytes.
    pub async fn deliver(&self, frame: Vec<u8>) {
        self.incoming.push(frame);
        self.runtime.ring();
        while self.incoming.bytes.load(Relaxed) > UNHANDLED_BYTES_MAX && !self.incoming.is_closed.load(Relaxed) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for PeerEnd {
    fn drop(&mut self) {
        self.incoming.is_closed.store(true, Relaxed);
        self.runtime.ring();
    }
}

impl Drop for PeerLine {
    fn drop(&mut self) {
        self.to.is_closed.store(true, Relaxed);
        self.flush();
        if let Some(other) = &self.other {
            other.ring();
        }
    }
}

/// For simulations, which have no tasks that wait.
#[cfg(test)]
impl PeerEnd {
    pub(crate) fn try_next_outgoing(&self) -> Option<Vec<u8>> {
        self.outgoing.pop()
    }

    pub(crate) fn push_incoming(&self, frame: Vec<u8>) {
        self.incoming.push(frame);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.outgoing.is_closed.load(Relaxed)
    }
}
