//! The queue before the workers: whoever asks puts calls in, and each worker's driver takes as many as it wants.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Item;

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
        let left = if state.drivers == 0 { std::mem::take(&mut state.items) } else { VecDeque::new() };
        drop(state);
        drop(left);
    }
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    /// Drivers that wait for items and were not woken yet.
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

    /// Puts an item behind the others, unless no driver is left.
    pub(super) fn push(&self, item: Item) -> Result<(), Gone> {
        let mut state = self.lock();
        if state.drivers == 0 {
            return Err(Gone);
        }
        state.items.push_back(item);
        self.wake_one(&mut state);
        Ok(())
    }

    /// Wakes a driver that sleeps, if one does, for an item that was put in.
    fn wake_one(&self, state: &mut State) {
        if state.asleep > 0 {
            state.asleep -= 1;
            self.wake.notify_one();
        }
    }

    /// Gives the first `most` items to `to`, up to one that `fits` refuses. Those that nobody waits for are dropped.
    pub(super) fn take(&self, most: usize, mut fits: impl FnMut(&Item) -> bool, mut to: impl FnMut(Item)) {
        let mut state = self.lock();
        let mut taken = 0;
        while taken < most {
            let mut unwanted = false;
            let next = state.items.pop_front_if(|item| {
                unwanted = item.is_unwanted();
                unwanted || fits(item)
            });
            let Some(item) = next else { break };
            if !unwanted {
                taken += 1;
                to(item);
            }
        }
    }

    /// Puts items before the others that were taken and not begun.
    pub(super) fn put_back(&self, items: impl DoubleEndedIterator<Item = Item>) {
        let mut state = self.lock();
        for item in items.rev() {
            state.items.push_front(item);
            self.wake_one(&mut state);
        }
    }

    /// Waits until there is an item, which another may take before. Says whether there can be one.
    pub(super) async fn has_some(&self) -> bool {
        loop {
            let mut woken = std::pin::pin!(self.wake.notified());
            {
                let mut state = self.lock();
                if !state.items.is_empty() {
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

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// There will be no more items.
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
