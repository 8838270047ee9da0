//! The queue before the workers: whoever asks puts calls in, and each worker's driver takes as many as it wants.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Item, Run};

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

/// No driver is left.
#[derive(Debug)]
pub(super) struct Gone;

/// What a driver has a queue by.
pub(super) struct Seat {
    queue: Arc<Queue>,
    left: bool,
}

impl Seat {
    /// Leaves what waits to the other drivers. Says whether there are any.
    pub(super) fn leave(&mut self) -> bool {
        let mut state = self.queue.lock();
        if !self.left && state.drivers > 1 {
            state.drivers -= 1;
            self.left = true;
        }
        self.left
    }
}

impl Deref for Seat {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let mut state = self.lock();
        state.drivers -= 1;
        // Nobody will take them: whoever waits for them is told by their end.
        let left = if state.drivers == 0 { std::mem::take(&mut state.runs) } else { VecDeque::new() };
        drop(state);
        drop(left);
    }
}

#[derive(Debug, Default)]
struct State {
    runs: VecDeque<Run>,
    /// Calls in them.
    calls: usize,
    /// Drivers that wait for calls and were not woken yet.
    asleep: usize,
    /// All drivers.
    drivers: usize,
    closed: bool,
}

impl Queue {
    /// A place for a driver.
    pub(super) fn seat(self: &Arc<Queue>) -> Seat {
        self.lock().drivers += 1;
        Seat { queue: self.clone(), left: false }
    }

    /// Puts calls behind the others, unless no driver is left.
    pub(super) fn push(&self, run: Run) -> Result<(), Gone> {
        let mut state = self.lock();
        if state.drivers == 0 {
            return Err(Gone);
        }
        let several = run.calls.len();
        if several > 0 {
            state.runs.push_back(run);
            self.added(&mut state, several);
        }
        Ok(())
    }

    /// Counts the calls that were put in, and wakes as many of the drivers that sleep.
    fn added(&self, state: &mut State, calls: usize) {
        state.calls += calls;
        for _ in 0..calls.min(state.asleep) {
            state.asleep -= 1;
            self.wake.notify_one();
        }
    }

    /// Takes the first `most` calls, up to one that `fits` refuses. Those that nobody waits for are dropped.
    pub(super) fn take(&self, most: usize, mut fits: impl FnMut(&Item) -> bool) -> Vec<Run> {
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

    /// Puts calls before the others that were taken and not begun.
    pub(super) fn put_back(&self, runs: impl DoubleEndedIterator<Item = Run>) {
        let mut state = self.lock();
        for run in runs.rev() {
            let several = run.calls.len();
            state.runs.push_front(run);
            self.added(&mut state, several);
        }
    }

    /// Waits until there is a call, which another may take before. Says whether there can be one.
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
                // Whoever puts something in from here on wakes this one.
                woken.as_mut().enable();
                state.asleep += 1;
            }
            woken.await;
        }
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        self.lock().calls
    }

    /// There will be no more calls.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.asleep = 0;
        drop(state);
        self.wake.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
