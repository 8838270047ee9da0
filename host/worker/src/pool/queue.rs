//! The queue of calls of a pool: clients add calls, and each worker's driver takes as many as it can run.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{CallRun, PendingCall};

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    wake: Notify,
}

/// Error: no driver is left.
#[derive(Debug)]
pub(super) struct NoDrivers;

/// A driver's handle of the queue.
pub(super) struct QueueHandle {
    queue: Arc<Queue>,
    is_retired: bool,
}

impl QueueHandle {
    /// Removes this driver, which leaves the waiting calls to the other drivers. Returns whether there are any.
    pub(super) fn retire(&mut self) -> bool {
        let mut state = self.queue.lock();
        if !self.is_retired && state.drivers > 1 {
            state.drivers -= 1;
            self.is_retired = true;
        }
        self.is_retired
    }
}

impl Deref for QueueHandle {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        if self.is_retired {
            return;
        }
        let mut state = self.lock();
        state.drivers -= 1;
        // The last driver drops the waiting calls, which closes their receivers.
        let left = if state.drivers == 0 { std::mem::take(&mut state.runs) } else { VecDeque::new() };
        drop(state);
        drop(left);
    }
}

#[derive(Debug, Default)]
struct QueueState {
    runs: VecDeque<CallRun>,
    /// Number of calls in `runs`.
    calls: usize,
    /// Number of drivers that wait for calls and have not been woken.
    asleep: usize,
    /// Number of drivers.
    drivers: usize,
    closed: bool,
}

impl Queue {
    /// Adds a driver.
    pub(super) fn register(self: &Arc<Queue>) -> QueueHandle {
        self.lock().drivers += 1;
        QueueHandle { queue: self.clone(), is_retired: false }
    }

    /// Appends calls, unless no driver is left.
    pub(super) fn push(&self, run: CallRun) -> Result<(), NoDrivers> {
        let mut state = self.lock();
        if state.drivers == 0 {
            return Err(NoDrivers);
        }
        let several = run.calls.len();
        if several > 0 {
            state.runs.push_back(run);
            self.added(&mut state, several);
        }
        Ok(())
    }

    /// Counts added calls, and wakes as many waiting drivers.
    fn added(&self, state: &mut QueueState, calls: usize) {
        state.calls += calls;
        for _ in 0..calls.min(state.asleep) {
            state.asleep -= 1;
            self.wake.notify_one();
        }
    }

    /// Takes the first `most` calls, up to one that `fits` rejects. Drops calls whose receiver has been dropped.
    pub(super) fn take(&self, most: usize, mut fits: impl FnMut(&PendingCall) -> bool) -> Vec<CallRun> {
        let (mut taken, mut unwanted) = (Vec::new(), Vec::new());
        let mut left = most;
        let mut state = self.lock();
        while let Some(first) = state.runs.front_mut().filter(|_| left > 0) {
            let all = first.calls.len();
            if first.caller.is_gone() {
                unwanted.extend(state.runs.pop_front());
                state.calls -= all;
                continue;
            }
            let some = first.calls.as_slice().iter().take(left).position(|item| !fits(item)).unwrap_or(all.min(left));
            if some < all {
                taken.extend((some > 0).then(|| first.split(some)));
                state.calls -= some;
                break;
            }
            taken.extend(state.runs.pop_front());
            state.calls -= all;
            left -= all;
        }
        drop(state);
        taken
    }

    /// Puts calls that were taken but not started back at the front.
    pub(super) fn requeue(&self, runs: impl DoubleEndedIterator<Item = CallRun>) {
        let mut state = self.lock();
        for run in runs.rev() {
            let several = run.calls.len();
            state.runs.push_front(run);
            self.added(&mut state, several);
        }
    }

    /// Waits until the queue has a call, which another driver may take first. Returns false when the queue is closed
    /// and empty.
    pub(super) async fn has_some(&self) -> bool {
        loop {
            let mut woken = std::pin::pin!(self.wake.notified());
            {
                let mut state = self.lock();
                if !state.runs.is_empty() {
                    return true;
                }
                if state.closed {
                    return false;
                }
                // From here on, every added call wakes this driver.
                woken.as_mut().enable();
                state.asleep += 1;
            }
            woken.await;
        }
    }

    /// Returns the number of waiting calls.
    pub(super) fn len(&self) -> usize {
        self.lock().calls
    }

    /// Closes the queue to new calls.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.asleep = 0;
        drop(state);
        self.wake.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
