//! Back-pressure on submission: tasks of a job wait before they submit more while the unfinished tasks of the job, or of its
//! tenant, take too many bytes.
//!
//! Workers hold each task of a held job that has submitted one more call; clients of such a job are not polled. If nothing of
//! a held job runs, and nothing of it finishes for a while, the job may wait for what its tasks wait to submit: each of them
//! then submits one more call, beyond the limit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sandbar_core::JobId;
use sandbar_sched::WorkerKind;
use sandbar_worker::program::NodeMessage;

use super::context::Context;
use super::effects::{Effect, JobEffect};
use crate::worker::Worker;

/// Time without progress after which tasks of a held job submit one more call.
const STALL_TIME: Duration = Duration::from_millis(100);
/// Time after which a held job without progress is warned of.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// A job whose tasks wait before they submit more.
#[derive(Debug)]
struct HeldJob {
    since: Instant,
    /// Bytes of the unfinished tasks.
    bytes: u64,
    /// Last time that `bytes` fell, or that its tasks submitted one more call.
    last_progress: Instant,
    is_warned: bool,
}

/// The held jobs.
#[derive(Debug, Default)]
pub(super) struct BackPressure(BTreeMap<JobId, HeldJob>);

impl BackPressure {
    /// Holds jobs above a limit, and releases those below three quarters of it.
    pub(super) fn tick(&mut self, cx: &mut Context) {
        let held = cx.scheduler.held_submissions(|job| self.0.contains_key(&job));
        let high: BTreeMap<JobId, (u64, u64)> = held.map(|(job, bytes, max)| (job, (bytes, max))).collect();
        if high.is_empty() && self.0.is_empty() {
            return;
        }
        let low: Vec<JobId> = self.0.keys().copied().filter(|job| !high.contains_key(job)).collect();
        for job in low {
            self.0.remove(&job);
            self.announce(cx, job, false);
        }
        let now = cx.time.now;
        for (job, (bytes, max)) in high {
            if let Some(held) = self.0.get_mut(&job) {
                if held.bytes > bytes {
                    held.last_progress = now;
                }
                held.bytes = bytes;
                held.resume_if_stalled(cx, job, max);
            } else {
                self.0.insert(job, HeldJob { since: now, bytes, last_progress: now, is_warned: false });
                self.announce(cx, job, true);
            }
        }
    }

    /// Returns whether a worker is a client of a held job that makes progress.
    pub(super) fn holds_client(&self, cx: &Context, worker: &Worker) -> bool {
        let WorkerKind::Driver(job) = worker.kind else { return false };
        if self.0.is_empty() || !worker.link.is_client() {
            return false;
        }
        let makes_progress = |held: &HeldJob| {
            cx.time.now.saturating_duration_since(held.last_progress) < STALL_TIME || cx.scheduler.has_running(job)
        };
        self.0.get(&job).is_some_and(makes_progress)
    }

    pub(super) fn holds_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Tells all workers that a job is held, or released.
    fn announce(&self, cx: &mut Context, job: JobId, is_held: bool) {
        for worker in cx.workers.values_mut() {
            worker.link.send(&NodeMessage::HoldJob(job.0, is_held));
            // The message must arrive before its tasks read the flag.
            if let Err(e) = worker.link.flush() {
                worker.fail(e);
            }
            worker.link.set_holds(self.holds_any());
        }
    }

    /// Tells a new worker which jobs are held.
    pub(super) fn worker_added(&self, worker: &mut Worker) {
        if self.holds_any() {
            self.0.keys().for_each(|job| worker.link.send(&NodeMessage::HoldJob(job.0, true)));
            worker.link.set_holds(true);
        }
    }
}

impl HeldJob {
    /// Has each task that waits submit one more call, if the job makes no progress otherwise.
    fn resume_if_stalled(&mut self, cx: &mut Context, job: JobId, max: u64) {
        let now = cx.time.now;
        if now.saturating_duration_since(self.last_progress) < STALL_TIME || cx.scheduler.has_running(job) {
            return;
        }
        self.last_progress = now;
        if now - self.since >= WARN_AFTER && !std::mem::replace(&mut self.is_warned, true) {
            let line = format!(
                "tasks wait to submit more: those that have not ended take {} bytes, the limit is {max}, and none of \
                 them runs; have fewer at once, or put large arguments into objects",
                self.bytes
            );
            cx.push(Effect::Job(JobEffect::Warn(job, line)));
        }
        cx.workers.values_mut().for_each(|worker| worker.link.send(&NodeMessage::ResumeOnce(job.0)));
    }
}
