//! The doorbell of a node, which wakes the runtime's thread. Each worker has an event of its own for it: no worker can take,
//! see or forge a wake-up by another.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use sandbar_store::SharedMemory;

use super::layout::words;

/// Maximum number of events that one wake-up takes. Others wake the thread again.
const EVENTS_MAX: usize = 16;

/// The doorbell of a node: one thread sleeps on it until another thread or a worker rings.
#[derive(Debug, Clone)]
pub struct NodeDoorbell(Arc<Bell>);

#[derive(Debug)]
struct Bell {
    sleeps: AtomicBool,
    /// The event of the node's own threads.
    own: OwnedFd,
    /// Reports the events of all.
    epoll: OwnedFd,
}

impl NodeDoorbell {
    /// Creates a doorbell.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn new() -> io::Result<NodeDoorbell> {
        let (own, epoll) = (event()?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let doorbell = NodeDoorbell(Arc::new(Bell { sleeps: AtomicBool::new(false), own, epoll }));
        doorbell.watch(&doorbell.0.own)?;
        Ok(doorbell)
    }

    /// Returns an event for a worker, for its [`WorkerBell`].
    pub(super) fn worker_event(&self) -> io::Result<OwnedFd> {
        let event = event()?;
        self.watch(&event)?;
        Ok(event)
    }

    fn watch(&self, event: &OwnedFd) -> io::Result<()> {
        // Each write is reported once. Nobody reads the events.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.0.epoll, event, epoll::EventData::new_u64(0), flags)?)
    }

    /// Wakes the sleeping thread. Costs almost nothing when no thread sleeps.
    pub fn ring(&self) {
        fence(SeqCst);
        if self.0.sleeps.load(SeqCst) && self.0.sleeps.swap(false, AcqRel) {
            ring(&self.0.own);
        }
    }

    /// Sleeps until the doorbell rings, or for `time`, unless `has_some` finds work.
    pub fn sleep(&self, time: Option<Duration>, has_some: impl FnOnce() -> bool) {
        self.0.sleeps.store(true, SeqCst);
        fence(SeqCst);
        if !has_some() {
            let time = time.and_then(|time| time.try_into().ok());
            let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
            // The reason of the wake-up does not matter: the caller checks for work in any case.
            let _ = epoll::wait(&self.0.epoll, &mut events, time.as_ref());
        }
        self.0.sleeps.store(false, SeqCst);
    }
}

/// A worker's end of the doorbell of its node.
#[derive(Debug)]
pub(super) struct WorkerBell {
    /// Memory shared with the node, which tells whether the node sleeps.
    memory: Arc<SharedMemory>,
    event: OwnedFd,
}

impl WorkerBell {
    pub(super) fn new(memory: Arc<SharedMemory>, event: OwnedFd) -> WorkerBell {
        WorkerBell { memory, event }
    }

    /// Wakes the node. Costs almost nothing when it does not sleep.
    pub(super) fn ring(&self) {
        let sleeps = self.memory.atomic32(2 * words::NODE_SLEEPS);
        fence(SeqCst);
        if sleeps.load(SeqCst) != 0 && sleeps.swap(0, AcqRel) != 0 {
            ring(&self.event);
        }
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Writes to an event. That fails only after 2⁶⁴ writes.
fn ring(event: impl AsFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A sleeping thread wakes when the node or a worker rings, and each of many times.
    #[test]
    fn the_doorbell_wakes_a_sleeping_thread() {
        let doorbell = NodeDoorbell::new().unwrap();
        let memory = Arc::new(SharedMemory::new(4096).unwrap());
        let bell = WorkerBell::new(memory.clone(), doorbell.worker_event().unwrap());
        let (start, rung) = (Instant::now(), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (rings, sleeps) = (doorbell.clone(), memory.atomic32(2 * words::NODE_SLEEPS));
            let ringer = scope.spawn(move || {
                for round in 0..200 {
                    while rung.load(SeqCst) {
                        std::thread::yield_now();
                    }
                    rung.store(true, SeqCst);
                    if round % 2 == 0 { rings.ring() } else { bell.ring() }
                }
            });
            for _ in 0..200 {
                doorbell.sleep(Some(LONG), || {
                    sleeps.store(1, SeqCst);
                    fence(SeqCst);
                    rung.load(SeqCst)
                });
                while !rung.swap(false, SeqCst) {
                    doorbell.sleep(Some(LONG), || {
                        sleeps.store(1, SeqCst);
                        fence(SeqCst);
                        rung.load(SeqCst)
                    });
                }
            }
            ringer.join().unwrap();
        });
        assert!(start.elapsed() < LONG, "a wake-up was lost");
    }

    /// Without a ring, the sleep ends in time; without sleep, a ring does nothing.
    #[test]
    fn the_time_ends_the_sleep() {
        let doorbell = NodeDoorbell::new().unwrap();
        doorbell.ring();
        let start = Instant::now();
        doorbell.sleep(Some(Duration::from_millis(5)), || false);
        assert!(start.elapsed() >= Duration::from_millis(5));
        doorbell.sleep(Some(LONG), || true);
    }
}
