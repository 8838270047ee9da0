//! The device's queue of submissions, and the client of each.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use sandbar_dense::remote::{now_nanos, words};
use sandbar_store::SharedMemory;

use crate::Device;
use crate::device::lock;

/// Pending submissions of a device.
pub(super) struct SubmissionQueue {
    pub(super) device: Arc<Device>,
    state: Mutex<QueueState>,
    /// Signals that there is a submission to wait for.
    submitted_signal: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Shared memory of each submission's client. The device works on the first.
    submitted: VecDeque<Arc<SharedMemory>>,
    /// Start of the current work, in nanoseconds of the monotonic clock.
    since: u64,
}

impl SubmissionQueue {
    pub(super) fn new(device: Arc<Device>) -> SubmissionQueue {
        SubmissionQueue { device, state: Mutex::default(), submitted_signal: Condvar::new() }
    }

    /// Registers a submission for the client of this memory.
    pub(super) fn register_submission(&self, area: &Arc<SharedMemory>) {
        let mut state = lock(&self.state);
        state.submitted.push_back(area.clone());
        if state.submitted.len() == 1 {
            state.start_timer();
        }
        drop(state);
        self.submitted_signal.notify_one();
    }

    /// Removes the first submission, which is completed. Returns the nanoseconds for which it was the first.
    pub(super) fn done(&self) -> u64 {
        let mut state = lock(&self.state);
        let duration = now_nanos().saturating_sub(state.since);
        if let Some(area) = state.submitted.pop_front() {
            area.atomic(words::BUSY_SINCE).store(0, Release);
        }
        state.start_timer();
        duration
    }

    /// Runs the callbacks of completed submissions.
    pub(super) fn run_callbacks(&self) {
        let _ = self.device.inner.poll(wgpu::PollType::Poll);
    }

    /// Waits for the device in a loop, and runs the callbacks of completed submissions.
    pub(super) fn wait_for_device(&self) {
        loop {
            let mut state = lock(&self.state);
            while state.submitted.is_empty() {
                state = self.submitted_signal.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let _ = self.device.inner.poll(wgpu::PollType::wait_indefinitely());
            if self.device.check().is_err() {
                // All tensors are lost; the closed sockets notify the clients.
                std::process::exit(1);
            }
        }
    }
}

impl QueueState {
    /// Starts the time of the first submission.
    fn start_timer(&mut self) {
        self.since = now_nanos();
        if let Some(area) = self.submitted.front() {
            area.atomic(words::BUSY_SINCE).store(self.since, Release);
        }
    }
}
