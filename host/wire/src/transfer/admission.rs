//! Admission of fetches to memory, with priorities and a bounded queue.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, oneshot};

use super::Priority;

/// Memory for fetched objects. A fetch gets all of its memory at once, so that large fetches that each hold a part
/// can't deadlock. Higher priorities come first; within a priority the queue is first come, first served, whatever the
/// size. When prefetches hold memory that a higher priority needs, the youngest of them receive requests to release it.
#[derive(Debug)]
pub struct Admission(Mutex<AdmissionState>);

#[derive(Debug)]
struct AdmissionState {
    bytes_max: u64,
    used: u64,
    waiting_max: usize,
    /// Queue of each priority.
    waiting: [VecDeque<Waiter>; Priority::ALL.len()],
    /// Prefetches that hold memory, oldest first.
    prefetches: Vec<Weak<MemoryGrant>>,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    to: oneshot::Sender<MemoryPermit>,
}

#[derive(Debug)]
struct MemoryGrant {
    bytes: u64,
    reclaim_requested: Notify,
}

/// Why a fetch gets no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionError {
    /// It needs more than the total.
    TooLarge {
        /// Total bytes.
        max: u64,
    },
    /// The queue is full.
    TooMany {
        /// Maximum waiting fetches.
        max: usize,
    },
}

impl Admission {
    /// Creates an admission of `bytes_max` bytes, with at most `waiting_max` waiting fetches.
    pub fn new(bytes_max: u64, waiting_max: usize) -> Arc<Admission> {
        let (waiting, prefetches) = (Default::default(), Vec::new());
        Arc::new(Admission(Mutex::new(AdmissionState { bytes_max, used: 0, waiting_max, waiting, prefetches })))
    }

    /// Changes the total. Memory in use stays; waiting fetches that need more than the new total fail.
    pub fn set_limit(self: &Arc<Self>, bytes_max: u64) {
        let mut state = self.state();
        state.bytes_max = bytes_max;
        for queue in &mut state.waiting {
            queue.retain(|waiter| waiter.bytes <= bytes_max);
        }
        drop(state);
        self.grant();
    }

    /// Waits for memory. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// The fetch needs more than the total, or the queue is full.
    pub async fn admit(self: &Arc<Self>, bytes: u64, priority: Priority) -> Result<MemoryPermit, AdmissionError> {
        let granted = {
            let mut state = self.state();
            if bytes > state.bytes_max {
                return Err(AdmissionError::TooLarge { max: state.bytes_max });
            }
            if state.waiting() >= state.waiting_max {
                state.remove_cancelled();
            }
            if state.waiting() >= state.waiting_max {
                return Err(AdmissionError::TooMany { max: state.waiting_max });
            }
            let (to, granted) = oneshot::channel();
            state.waiting[priority as usize].push_back(Waiter { bytes, to });
            granted
        };
        let _leaves = GrantOnDrop(self);
        self.grant();
        // The sender is dropped only when `set_limit` removes the waiter.
        granted.await.map_err(|_| AdmissionError::TooLarge { max: self.state().bytes_max })
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// Returns the number of waiting fetches.
    pub fn waiting(&self) -> usize {
        let mut state = self.state();
        state.remove_cancelled();
        state.waiting()
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        // Poisoning is harmless: no code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants free memory to the next waiters.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some((waiter, priority)) = state.next() else { return };
            state.used += waiter.bytes;
            let grant = Arc::new(MemoryGrant { bytes: waiter.bytes, reclaim_requested: Notify::new() });
            if priority == Priority::Prefetch {
                state.prefetches.retain(|grant| grant.strong_count() > 0);
                state.prefetches.push(Arc::downgrade(&grant));
            }
            drop(state);
            // If the waiter was dropped, dropping the permit releases the memory.
            let _ = waiter.to.send(MemoryPermit { admission: self.clone(), grant });
        }
    }
}

impl AdmissionState {
    /// Removes the next waiter if its memory is free. Otherwise requests prefetches to release memory.
    fn next(&mut self) -> Option<(Waiter, Priority)> {
        for queue in &mut self.waiting {
            while queue.front().is_some_and(|waiter| waiter.to.is_closed()) {
                queue.pop_front();
            }
        }
        let priority = Priority::ALL.into_iter().rev().find(|priority| !self.waiting[*priority as usize].is_empty())?;
        let queue = &mut self.waiting[priority as usize];
        let (bytes, free) = (queue.front()?.bytes, self.bytes_max.saturating_sub(self.used));
        if bytes <= free {
            return queue.pop_front().map(|waiter| (waiter, priority));
        }
        if priority > Priority::Prefetch {
            self.request_reclaim(bytes - free);
        }
        None
    }

    fn request_reclaim(&mut self, mut bytes: u64) {
        for grant in self.prefetches.iter().rev().filter_map(Weak::upgrade) {
            if bytes == 0 {
                return;
            }
            bytes = bytes.saturating_sub(grant.bytes);
            grant.reclaim_requested.notify_one();
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn remove_cancelled(&mut self) {
        for queue in &mut self.waiting {
            queue.retain(|waiter| !waiter.to.is_closed());
        }
    }
}

/// Grants to the next waiters when a waiter leaves, which may have blocked them.
struct GrantOnDrop<'a>(&'a Arc<Admission>);

impl Drop for GrantOnDrop<'_> {
    fn drop(&mut self) {
        self.0.grant();
    }
}

/// Memory of a fetch, released when dropped.
pub struct MemoryPermit {
    admission: Arc<Admission>,
    grant: Arc<MemoryGrant>,
}

impl MemoryPermit {
    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.grant.bytes
    }

    /// Waits until a higher priority needs the memory. Happens only to prefetches.
    pub async fn reclaim_requested(&self) {
        self.grant.reclaim_requested.notified().await;
    }
}

impl fmt::Debug for MemoryPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryPermit({} bytes)", self.grant.bytes)
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.admission.state().used -= self.grant.bytes;
        self.admission.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;

    struct WaitingFetch(BoxFuture<'static, Result<MemoryPermit, AdmissionError>>);

    impl fmt::Debug for WaitingFetch {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("WaitingFetch")
        }
    }

    impl WaitingFetch {
        fn admitted(&mut self) -> Option<MemoryPermit> {
            (&mut self.0).now_or_never().map(|permit| permit.unwrap())
        }
    }

    /// Returns the permit if it is granted immediately.
    fn request(admission: &Arc<Admission>, bytes: u64, priority: Priority) -> Result<MemoryPermit, WaitingFetch> {
        let admission = admission.clone();
        let mut waits = WaitingFetch(async move { admission.admit(bytes, priority).await }.boxed());
        waits.admitted().ok_or(waits)
    }

    #[test]
    fn those_waited_for_come_first_and_the_first_of_a_class_before_the_smaller() {
        let admission = Admission::new(100, 10);
        let all = request(&admission, 100, Priority::Get).unwrap();
        let mut prefetch = request(&admission, 10, Priority::Prefetch).unwrap_err();
        let mut large = request(&admission, 80, Priority::Argument).unwrap_err();
        let mut small = request(&admission, 30, Priority::Argument).unwrap_err();
        let mut get = request(&admission, 90, Priority::Get).unwrap_err();
        drop(all);
        let permit = get.admitted().unwrap();
        assert!(large.admitted().is_none() && small.admitted().is_none());
        drop(permit);
        let permit = large.admitted().unwrap();
        // The prefetch would fit, but an argument waits before it.
        assert!(prefetch.admitted().is_none() && small.admitted().is_none());
        drop(permit);
        let permits = [&mut small, &mut prefetch].map(|waits| waits.admitted().unwrap());
        assert_eq!(admission.used(), 40);
        drop(permits);
        assert_eq!((admission.used(), admission.waiting()), (0, 0));
    }

    #[test]
    fn there_may_be_more_or_less_later() {
        let admission = Admission::new(100, 10);
        let large_permit = request(&admission, 90, Priority::Get).unwrap();
        let mut large = request(&admission, 80, Priority::Get).unwrap_err();
        let mut small = request(&admission, 40, Priority::Argument).unwrap_err();
        admission.set_limit(50);
        let refused = (&mut large.0).now_or_never().unwrap();
        assert_eq!(refused.unwrap_err(), AdmissionError::TooLarge { max: 50 });
        assert!(small.admitted().is_none());
        drop(large_permit);
        assert_eq!(small.admitted().unwrap().bytes(), 40);
        admission.set_limit(200);
        assert_eq!(request(&admission, 200, Priority::Get).unwrap().bytes(), 200);
    }

    #[test]
    fn the_youngest_prefetches_make_room() {
        let admission = Admission::new(100, 10);
        let [old, young] = [40, 40].map(|bytes| request(&admission, bytes, Priority::Prefetch).unwrap());
        let get = request(&admission, 20, Priority::Get).unwrap();
        let mut waits = request(&admission, 30, Priority::Argument).unwrap_err();
        assert!(young.reclaim_requested().now_or_never().is_some());
        assert!(old.reclaim_requested().now_or_never().is_none() && get.reclaim_requested().now_or_never().is_none());
        drop(young);
        assert_eq!(waits.admitted().unwrap().bytes(), 30);
    }

    #[test]
    fn a_dropped_waiter_leaves_nothing_behind() {
        let admission = Admission::new(100, 2);
        let large_permit = request(&admission, 90, Priority::Get).unwrap();
        let large = request(&admission, 50, Priority::Get).unwrap_err();
        let mut small = request(&admission, 10, Priority::Get).unwrap_err();
        assert_eq!(admission.waiting(), 2);
        let too_many = admission.admit(1, Priority::Get).now_or_never().unwrap();
        assert_eq!(too_many.unwrap_err(), AdmissionError::TooMany { max: 2 });
        // It blocked the small one.
        drop(large);
        let permit = small.admitted().unwrap();
        // Its permit is granted, but never taken.
        let waits = request(&admission, 90, Priority::Get).unwrap_err();
        drop(large_permit);
        drop(waits);
        assert_eq!(admission.used(), 10);
        drop(permit);
        assert_eq!(admission.used(), 0);
        let too_large = admission.admit(101, Priority::Get).now_or_never().unwrap();
        assert_eq!(too_large.unwrap_err(), AdmissionError::TooLarge { max: 100 });
    }
}
