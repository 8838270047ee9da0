//! The doorbell of a worker, by which its node wakes it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, SeqCst};
use std::time::Duration;

use rustix::thread::futex;
use sandbar_store::SharedMemory;

/// A doorbell in memory that a worker shares with its node: one thread sleeps on it until another process rings.
#[derive(Debug, Clone)]
pub(super) struct Doorbell {
    memory: Arc<SharedMemory>,
    /// Index of its word, in u64.
    word: usize,
}

impl Doorbell {
    pub(super) fn at(memory: Arc<SharedMemory>, word: usize) -> Doorbell {
        Doorbell { memory, word }
    }

    /// Wakes the sleeping thread. Costs almost nothing when no thread sleeps.
    pub fn ring(&self) {
        let sleeps = self.memory.atomic32(2 * self.word);
        std::sync::atomic::fence(SeqCst);
        if sleeps.load(SeqCst) != 0 && sleeps.swap(0, AcqRel) != 0 {
            let _ = futex::wake(sleeps, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until the doorbell rings, or for `time`, unless `has_some` finds work.
    pub fn sleep(&self, time: Option<Duration>, has_some: impl FnOnce() -> bool) {
        let sleeps = self.memory.atomic32(2 * self.word);
        sleeps.store(1, SeqCst);
        std::sync::atomic::fence(SeqCst);
        if !has_some() {
            let time = time.and_then(|time| time.try_into().ok());
            // The reason of the wake-up does not matter: the caller checks for work in any case.
            let _ = futex::wait(sleeps, futex::Flags::empty(), 1, time.as_ref());
        }
        sleeps.store(0, SeqCst);
    }
}
