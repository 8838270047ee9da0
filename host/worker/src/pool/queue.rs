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

    /// Puts items behind the others, unless no driver is left.
    pub(super) fn push(&self, items: Vec<Item>) -> Result<(), Gone> {
        let mut state = self.lock();
        if state.drivers == 0 {
            return Err(Gone);
        }
        let several = items.len();
        state.items.extend(items);
        self.wake(&mut state, several);
        Ok(())
    }

    /// Wakes as many of the drivers that sleep as items were put in.
    fn wake(&self, state: &mut State, items: usize) {
        for _ in 0..items.min(state.asleep) {
            state.asleep -= 1;
            self.wake.notify_one();
        }
    }

    /// Takes the first `most` items, up to one that `fits` refuses. Those that nobody waits for are dropped.
    pub(super) fn take(&self, most: usize, mut fits: impl FnMut(&Item) -> bool) -> Vec<Item> {
        loop {
            let mut state = self.lock();
            let mut unwanted = 0;
            let mut stays = |item: &Item| {
                let is_unwanted = item.is_unwanted();
                unwanted += usize::from(is_unwanted);
                !is_unwanted && !fits(item)
            };
            let end = state.items.iter().take(most).position(&mut stays).unwrap_or(most.min(state.items.len()));
            let mut items: Vec<Item> = state.items.drain(..end).collect();
            drop(state);
            if unwanted > 0 {
                items.retain(|item| !item.is_unwanted());
            }
            if end == 0 || !items.is_empty() {
                return items;
            }
        }
    }

    /// Puts items before the others that were taken and not begun.
    pub(super) fn put_back(&self, items: impl DoubleEndedIterator<Item = Item>) {
        let mut state = self.lock();
        let before = state.items.len();
        items.rev().for_each(|item| state.items.push_front(item));
        let several = state.items.len() - before;
        self.wake(&mut state, several);
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
