//! The device's queue of submissions, and the client of each.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use sandbar_dense::remote::{now_nanos, words};
use sandbar_store::SharedMemory;

use crate::Device;
use crate::device::lock;

/// Pending submissions of a device.
pub(super) struct Queue {
    pub(super) device: Arc<Device>,
    state: Mutex<State>,
    /// Signals that there is a submission to wait for.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// Shared memory of each submission's client. The device works on the first.
    submitted: VecDeque<Arc<SharedMemory>>,
    /// Start of the current work, in nanoseconds of the monotonic clock.
    since: u64,
}

impl Queue {
    pub(super) fn new(device: Arc<Device>) -> Queue {
        Queue { device, state: Mutex::default(), bell: Condvar::new() }
    }

    /// Registers a submission for the client of this memory.
    pub(super) fn submits(&self, area: &Arc<SharedMemory>) {
        let mut state = lock(&self.state);
        state.submitted.push_back(area.clone());
        if state.submitted.len() == 1 {
            state.begin();
        }
        drop(state);
        self.bell.notify_one();
    }

    /// Removes the first submission, which is completed. Returns the nanoseconds for which it was the first.
    pub(super) fn done(&self) -> u64 {
        let mut state = lock(&self.state);
        let took = now_nanos().saturating_sub(state.since);
        if let Some(area) = state.submitted.pop_front() {
            area.atomic(words::BUSY_SINCE).store(0, Release);
        }
        state.begin();
        took
    }

    /// Runs the callbacks of completed submissions.
    pub(super) fn look(&self) {
        let _ = self.device.inner.poll(wgpu::PollType::Poll);
    }

    /// Waits for the device in a loop, and runs the callbacks of completed submissions.
    pub(super) fn wait_for_device(&self) {
        loop {
            let mut state = lock(&self.state);
            while state.submitted.is_empty() {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let _ = self.device.inner.poll(wgpu::PollType::wait_indefinitely());
            if self.device.check().is_err() {
                // All tensors are lost; the closed sockets tell the clients.
                std::process::exit(1);
            }
        }
    }
}

impl State {
    /// Starts the time of the first submission.
    fn begin(&mut self) {
        self.since = now_nanos();
        if let Some(area) = self.submitted.front() {
            area.atomic(words::BUSY_SINCE).store(self.since, Release);
        }
    }
}
