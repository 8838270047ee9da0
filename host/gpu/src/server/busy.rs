//! What the device has to do, in the order in which it does it, and for whom.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use sandbar_dense::remote::{now_nanos, words};
use sandbar_store::SharedMemory;

use crate::Device;
use crate::device::lock;

/// Work that was submitted.
pub(super) struct Queue {
    pub(super) device: Arc<Device>,
    state: Mutex<State>,
    /// Rung when there is some to wait for.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// Whose each submission is. The device is at the first.
    submitted: VecDeque<Arc<SharedMemory>>,
    /// Since when.
    since: u64,
}

impl Queue {
    pub(super) fn new(device: Arc<Device>) -> Queue {
        Queue { device, state: Mutex::default(), bell: Condvar::new() }
    }

    /// Work for the owner of this memory is submitted now.
    pub(super) fn submits(&self, area: &Arc<SharedMemory>) {
        let mut state = lock(&self.state);
        state.submitted.push_back(area.clone());
        if state.submitted.len() == 1 {
            state.begin();
        }
        drop(state);
        self.bell.notify_one();
    }

    /// The first of it is done. Gives for how many nanoseconds it was the first.
    pub(super) fn done(&self) -> u64 {
        let mut state = lock(&self.state);
        let took = now_nanos().saturating_sub(state.since);
        if let Some(area) = state.submitted.pop_front() {
            area.atomic(words::SINCE).store(0, Release);
        }
        state.begin();
        took
    }

    /// Has what is done by now be done with.
    pub(super) fn look(&self) {
        let _ = self.device.inner.poll(wgpu::PollType::Poll);
    }

    /// Waits for the device, again and again, which has what is to be done then done.
    pub(super) fn wait_for_device(&self) {
        loop {
            let mut state = lock(&self.state);
            while state.submitted.is_empty() {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let _ = self.device.inner.poll(wgpu::PollType::wait_indefinitely());
            if self.device.check().is_err() {
                // All that was on it is gone: those who are connected find that out by this.
                std::process::exit(1);
            }
        }
    }
}

impl State {
    /// The device begins with what is first.
    fn begin(&mut self) {
        self.since = now_nanos();
        if let Some(area) = self.submitted.front() {
            area.atomic(words::SINCE).store(self.since, Release);
        }
    }
}
