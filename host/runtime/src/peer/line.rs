//! Between a hub and the hub of another node: frames in both directions, and what is fetched beside them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbar_worker::program::Doorbell;
use tokio::sync::Notify;

/// Bytes that wait to be sent. A peer that takes less is not there for long.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Bytes that have come and the hub has not heard: beyond it no more is taken of the connection.
const AHEAD_BYTES_MAX: usize = 16 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// One direction.
#[derive(Debug, Default)]
struct Queue {
    frames: Mutex<VecDeque<Vec<u8>>>,
    /// How many there are.
    count: AtomicUsize,
    bytes: AtomicUsize,
    is_closed: AtomicBool,
    /// Rung when there is something for whoever sends it on.
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

/// The hub's end of a connection to another node.
#[derive(Debug)]
pub struct PeerLine {
    to: Arc<Queue>,
    from: Arc<Queue>,
    /// Wakes the other hub, if it is of this process.
    other: Option<Doorbell>,
    has_said: bool,
}

impl PeerLine {
    /// Both ends of a connection between two hubs of this process.
    pub fn pair(here: Doorbell, there: Doorbell) -> (PeerLine, PeerLine) {
        let (a, b) = (Arc::<Queue>::default(), Arc::<Queue>::default());
        let near = PeerLine { to: a.clone(), from: b.clone(), other: Some(there), has_said: false };
        let far = PeerLine { to: b, from: a, other: Some(here), has_said: false };
        (near, far)
    }

    /// The hub's end of a connection that leaves this process, and the other end of the line, which sends on and hands over.
    pub fn outside(here: Doorbell) -> (PeerLine, PeerEnd) {
        let (to, from) = (Arc::<Queue>::default(), Arc::<Queue>::default());
        let end = PeerEnd { out: to.clone(), into: from.clone(), hub: here };
        (PeerLine { to, from, other: None, has_said: false }, end)
    }

    /// Says something, once it is flushed.
    pub fn say(&mut self, frame: Vec<u8>) {
        self.to.push(frame);
        self.has_said = true;
    }

    pub fn flush(&mut self) {
        if std::mem::take(&mut self.has_said) {
            self.to.sender.notify_one();
            if let Some(other) = &self.other {
                other.ring();
            }
        }
    }

    /// What the other node says next.
    pub fn hear(&self) -> Option<Vec<u8>> {
        self.from.pop()
    }

    pub fn has_some(&self) -> bool {
        self.from.count.load(Relaxed) > 0 || self.is_closed()
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.from.is_closed.load(Relaxed) || self.to.is_closed.load(Relaxed)
    }
}

/// The end of a line where a connection to another node is.
#[derive(Debug)]
pub struct PeerEnd {
    out: Arc<Queue>,
    into: Arc<Queue>,
    hub: Doorbell,
}

impl PeerEnd {
    /// What is to be sent next; none when the hub has let go of the line.
    pub async fn next(&self) -> Option<Vec<u8>> {
        loop {
            let said = self.out.sender.notified();
            if let Some(frame) = self.out.pop() {
                return Some(frame);
            }
            if self.out.is_closed.load(Relaxed) {
                return None;
            }
            said.await;
        }
    }

    /// Hands something over that came. Waits while the hub has too much to hear.
    pub async fn came(&self, frame: Vec<u8>) {
        self.into.push(frame);
        self.hub.ring();
        while self.into.bytes.load(Relaxed) > AHEAD_BYTES_MAX && !self.into.is_closed.load(Relaxed) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Drop for PeerEnd {
    fn drop(&mut self) {
        self.into.is_closed.store(true, Relaxed);
        self.hub.ring();
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
