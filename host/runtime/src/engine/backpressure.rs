//! Back-pressure on submitting: a job whose calls that have not ended take too many bytes has its submitting tasks wait.
//!
//! Workers are told which jobs are held, and have each task wait that has submitted one more call; clients of such a job are
//! not heard. Where nothing of a held job runs, and nothing has ended for a while, what waits to submit may be what the job
//! waits for: each submitting task goes on by one call then, and the bound is passed rather than that nothing goes on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sandbar_core::JobId;
use sandbar_jobs::LogEntry;
use sandbar_sched::WorkerKind;
use sandbar_worker::program::NodeMessage;

use super::State;
use crate::link::Link;
use crate::members::Member;

/// Who is held and makes no progress for this long goes on by one call.
const STALL: Duration = Duration::from_millis(100);
/// Who has been held for this long, and makes no progress, is told of.
const WARN_AFTER: Duration = Duration::from_secs(5);
/// The level of what is worth a look.
const WARN: u8 = 2;

/// A job whose tasks are to wait when they have submitted.
#[derive(Debug)]
struct Held {
    since: Instant,
    /// Bytes of its calls, and since when they are so many.
    bytes: u64,
    moved: Instant,
    is_told: bool,
}

/// The jobs that are held.
#[derive(Debug, Default)]
pub(super) struct Holds(BTreeMap<JobId, Held>);

impl State {
    /// Holds jobs that have submitted too much, and lets go of those that have not any more.
    pub(super) fn hold_jobs(&mut self, now: Instant) {
        let is_held = |job: &JobId| self.holds.0.contains_key(job);
        let high = |(job, bytes, max): &(JobId, u64, u64)| {
            if is_held(job) { *bytes > max / 4 * 3 } else { bytes > max }
        };
        let heavy: BTreeMap<JobId, (u64, u64)> =
            self.sched.call_bytes().filter(high).map(|(job, bytes, max)| (job, (bytes, max))).collect();
        if heavy.is_empty() && self.holds.0.is_empty() {
            return;
        }
        let light: Vec<JobId> = self.holds.0.keys().copied().filter(|job| !heavy.contains_key(job)).collect();
        for job in light {
            self.holds.0.remove(&job);
            self.tell_hold(job, false);
        }
        for (job, (bytes, max)) in heavy {
            if let Some(held) = self.holds.0.get_mut(&job) {
                if held.bytes > bytes {
                    held.moved = now;
                }
                held.bytes = bytes;
                self.move_on(job, max, now);
            } else {
                self.holds.0.insert(job, Held { since: now, bytes, moved: now, is_told: false });
                self.tell_hold(job, true);
            }
        }
    }

    /// Lets each task of a held job that waits to submit go on by one call, if nothing else of it does.
    fn move_on(&mut self, job: JobId, max: u64, now: Instant) {
        let Some(held) = self.holds.0.get_mut(&job) else { return };
        if now - held.moved < STALL || self.sched.has_running(job) {
            return;
        }
        held.moved = now;
        if now - held.since >= WARN_AFTER
            && !std::mem::replace(&mut held.is_told, true)
            && let Some(job) = self.jobs.get(&job)
        {
            let line = format!(
                "tasks wait to submit more: calls that have not ended have {} bytes of arguments, the limit is {max} \
                 (call_bytes_max), and none of them runs; have fewer at once, or put large arguments into objects",
                held.bytes
            );
            job.log.send(LogEntry { task: None, level: WARN, line: &line });
        }
        self.members.values_mut().for_each(|member| member.link.tell(&NodeMessage::ResumeOnce(job.0)));
    }

    /// Whether what a client says is to wait: its job is held, and goes on by itself.
    pub(super) fn is_held_client(&self, member: &Member, now: Instant) -> bool {
        let WorkerKind::Driver(job) = member.role else { return false };
        if self.holds.0.is_empty() || !member.link.is_client() {
            return false;
        }
        self.holds.0.get(&job).is_some_and(|held| now - held.moved < STALL || self.sched.has_running(job))
    }

    pub(super) fn holds_any(&self) -> bool {
        !self.holds.0.is_empty()
    }

    fn tell_hold(&mut self, job: JobId, holds: bool) {
        let holds_any = self.holds_any();
        for member in self.members.values_mut() {
            member.link.tell(&NodeMessage::HoldJob(job.0, holds));
            // Before its tasks look for that.
            if let Err(e) = member.link.flush() {
                member.broken.get_or_insert_with(|| e.to_string());
            }
            set_holds(&mut member.link, holds_any);
        }
    }

    /// Tells a new worker which jobs are held.
    pub(super) fn tell_holds(&self, link: &mut Link) {
        if self.holds_any() {
            self.holds.0.keys().for_each(|job| link.tell(&NodeMessage::HoldJob(job.0, true)));
            set_holds(link, true);
        }
    }
}

fn set_holds(link: &mut Link, holds: bool) {
    if let Some(process) = link.as_process() {
        process.set_holds(holds);
    }
}
