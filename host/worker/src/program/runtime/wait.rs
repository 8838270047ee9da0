//! Waiting tasks: for objects, for time, and for held jobs.

use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Argument, TaskRequest};
use sandbar_sandbox::Refusal;

use super::{SubmitState, WaitState, WorkerRuntime, task_gone};
use crate::program::messages::{RANGE_OBJECTS_MAX, SubmitTask, WAIT_OBJECTS_MAX, WorkerMessage};
use crate::program::objects::TaskSlot;
use crate::program::worker::words;

/// Maximum number of objects in one wait.
const OBJECTS_MAX: usize = 10_000_000;

impl WorkerRuntime {
    /// Starts to wait until `count` of the objects are available; for a `get`, until the value of one is.
    pub(super) fn begin_wait(
        &mut self,
        slot: TaskSlot,
        objects: &[u64],
        (count, is_get): (usize, bool),
        nanos: Option<u64>,
    ) -> Result<(), Refusal> {
        if objects.len() > OBJECTS_MAX || count > objects.len() {
            return Err(Refusal::bad_request(format!("it waits for {count} of {} objects", objects.len())));
        }
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return Err(task_gone()) };
        let (id, job) = (task.id, task.job);
        // Awaited objects are retained until the task has them, including those that were only lent.
        for object in objects.iter().filter(|object| task.holds.insert(**object)) {
            self.objects.hold((job, *object));
        }
        let missing: Vec<u64> =
            objects.iter().copied().filter(|object| !self.objects.is_there((job, *object), is_get)).collect();
        let there = objects.len() - missing.len();
        let deadline = nanos.map(|nanos| Instant::now() + Duration::from_nanos(nanos));
        let waiting =
            WaitState { objects: objects.to_vec(), count, is_get, missing: count.saturating_sub(there), deadline };
        let waits = waiting.missing > 0;
        let got = objects.first().filter(|_| is_get).and_then(|object| {
            let value = self.objects.value((job, *object))?;
            Some((*object, value.clone()))
        });
        if let Some(task) = self.task(slot) {
            (task.waiting, task.got) = (Some(waiting), got);
        }
        if !waits {
            return Ok(());
        }
        self.note_deadline(deadline);
        if let [only] = missing[..]
            && nanos.is_none()
            && let Some(frame) = self.take_back_child(slot, only)
        {
            self.inline = Some((slot, frame));
            self.objects.entry((job, only)).waiters.push((slot, id));
            return Ok(());
        }
        self.announce(slot);
        let mut unasked = Vec::new();
        for object in missing {
            let entry = self.objects.entry((job, object));
            if entry.waiters.last() != Some(&(slot, id)) {
                entry.waiters.push((slot, id));
            }
            if !std::mem::replace(&mut entry.requested, true) {
                unasked.push(object);
            }
        }
        for run in unasked.chunk_by(|object, next| object + 1 == *next).flat_map(|run| run.chunks(RANGE_OBJECTS_MAX)) {
            self.send(&match run {
                [object] => WorkerMessage::RequestObject(*object, id),
                run => WorkerMessage::RequestRange(run[0], run.len() as u32, id),
            });
        }
        Ok(())
    }

    pub(super) fn poll_wait(&mut self, slot: TaskSlot) -> Poll<Result<Vec<bool>, Refusal>> {
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else {
            return Poll::Ready(Err(task_gone()));
        };
        let Some(waiting) = &mut task.waiting else { return Poll::Ready(Err(task_gone())) };
        let over = waiting.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if waiting.missing > 0 && !over {
            return Poll::Pending;
        }
        let mut left = waiting.count;
        let (is_get, has_got) = (waiting.is_get, task.got.is_some());
        let is_there = |object: &u64| {
            let there = left > 0 && (has_got || self.objects.is_there((task.job, *object), is_get));
            left -= usize::from(there);
            there
        };
        let ready: Vec<bool> = waiting.objects.iter().map(is_there).collect();
        if left > 0 && !over {
            // Some of the arrived objects were listed several times.
            waiting.missing = left;
            return Poll::Pending;
        }
        task.waiting = None;
        Poll::Ready(Ok(ready))
    }

    /// Returns ready if a task that has submitted may continue. Held jobs are known only after the node's messages have
    /// been handled, so the first poll is pending.
    pub(super) fn poll_submitted(&mut self, slot: TaskSlot) -> Poll<()> {
        let Some(Some(task)) = self.tasks.get_mut(slot) else { return Poll::Ready(()) };
        let is_held = self.held_jobs.contains(&task.job);
        match task.submitted {
            SubmitState::Running => {}
            SubmitState::Waiting if is_held => {}
            SubmitState::Waiting | SubmitState::ResumedOnce => {
                task.submitted = SubmitState::Running;
                return Poll::Ready(());
            }
        }
        task.submitted = SubmitState::Waiting;
        self.submitters.push(slot);
        Poll::Pending
    }

    /// Returns whether the node holds any job.
    pub(super) fn holds_jobs(&self) -> bool {
        self.memory.atomic(words::JOBS_HELD).load(Relaxed) != 0
    }

    pub(in crate::program) fn hold_job(&mut self, job: u32, holds: bool) {
        match holds {
            true => self.held_jobs.insert(job),
            false => self.held_jobs.remove(&job),
        };
    }

    /// Lets the waiting tasks of a job continue for one call.
    pub(in crate::program) fn resume_once(&mut self, job: u32) {
        for slot in &self.submitters {
            if let Some(Some(task)) = self.tasks.get_mut(*slot)
                && task.job == job
                && task.submitted == SubmitState::Waiting
            {
                task.submitted = SubmitState::ResumedOnce;
            }
        }
    }

    /// Wakes the tasks that have submitted and may continue.
    pub(in crate::program) fn release_submitters(&mut self) {
        // The common case: none.
        if self.submitters.is_empty() {
            return;
        }
        for slot in std::mem::take(&mut self.submitters) {
            match self.tasks.get(slot).and_then(Option::as_ref) {
                Some(task) if task.submitted == SubmitState::Waiting && self.held_jobs.contains(&task.job) => {
                    self.submitters.push(slot);
                }
                Some(task) if task.submitted != SubmitState::Running => self.woken.push(slot),
                _ => {}
            }
        }
    }

    /// Starts to wait until a time, and for nothing else.
    pub(super) fn sleep_until(&mut self, slot: TaskSlot, due: Instant) -> Result<(), Refusal> {
        let task = self.task(slot).ok_or_else(task_gone)?;
        // Modelled as a wait for one object that never arrives.
        let deadline = Some(due);
        task.waiting = Some(WaitState { objects: Vec::new(), count: 1, is_get: false, missing: 1, deadline });
        self.note_deadline(deadline);
        Ok(())
    }

    /// Takes back the task that was submitted last, if its parent waits for it and it can run in this worker.
    fn take_back_child(&mut self, parent: TaskSlot, task: u64) -> Option<Vec<u8>> {
        let child = self.child.filter(|child| child.parent == parent && child.task == task)?;
        if !self.runs_children || self.alive >= self.room || !self.up.take_back(child.at) {
            return None;
        }
        (self.child, self.unpublished) = (None, self.unpublished.saturating_sub(1));
        // The last encoded frame is this task's submission.
        let frame = std::mem::take(&mut self.frame);
        let is_plain = |submit: &SubmitTask<'_>| {
            let request = postcard::from_bytes::<TaskRequest<'_>>(submit.request);
            request.is_ok_and(|request| {
                request.options.is_none()
                    && request.actor.is_none()
                    && !request.arguments.iter().any(|a| matches!(a, Argument::Object(_)))
            })
        };
        match postcard::from_bytes(&frame) {
            Ok(WorkerMessage::Submit(submit)) if is_plain(&submit) => Some(frame),
            Ok(message) => {
                self.send(&message);
                None
            }
            Err(_) => None,
        }
    }

    /// Reports what a task waits for without a time limit; for an actor, what its current call and its waiting calls
    /// wait for.
    pub(in crate::program) fn report_waits(&mut self, slot: TaskSlot) {
        let Some(Some(task)) = self.tasks.get(slot) else { return };
        let (job, id) = (task.job, task.id);
        let waiting = task.waiting.as_ref().filter(|waiting| waiting.deadline.is_none() && waiting.missing > 0);
        let mut waits: Vec<(u64, Vec<u64>, usize, bool)> = Vec::new();
        if let Some(WaitState { objects, count, is_get, .. }) = waiting {
            let is_missing = |object: &u64| !self.objects.is_there((job, *object), *is_get);
            let missing: Vec<u64> = objects.iter().copied().filter(is_missing).collect();
            let needed = count.saturating_sub(objects.len() - missing.len());
            waits.push((id, missing, needed, self.actors.contains_key(&slot)));
        }
        if let Some(actor) = self.actors.get(&slot) {
            // A waiting call continues with any one of its objects.
            waits.extend(actor.parked_calls().map(|(id, awaits, holds)| (id, awaits.to_vec(), 1, holds)));
        }
        for (task, mut objects, mut needed, holds_actor) in waits {
            if objects.len() > WAIT_OBJECTS_MAX {
                if needed < objects.len() {
                    continue;
                }
                objects.truncate(WAIT_OBJECTS_MAX);
                needed = WAIT_OBJECTS_MAX;
            }
            self.send(&WorkerMessage::Waits { task, objects, needed: needed as u32, holds_actor });
        }
        self.publish();
    }

    /// Records the deadline of a waiting task.
    pub(super) fn note_deadline(&mut self, deadline: Option<Instant>) {
        self.first_deadline = self.first_deadline.into_iter().chain(deadline).min();
    }

    /// Returns the earliest deadline of the waiting tasks.
    pub(in crate::program) fn first_deadline(&self) -> Option<Instant> {
        self.first_deadline
    }

    /// Wakes the tasks whose deadline has passed.
    pub(in crate::program) fn wake_expired(&mut self) {
        let Some(first) = self.first_deadline else { return };
        let now = Instant::now();
        if now < first {
            return;
        }
        self.first_deadline = None;
        for (slot, task) in self.tasks.iter().enumerate() {
            let deadline = task.as_ref().and_then(|task| task.waiting.as_ref()?.deadline);
            match deadline {
                Some(deadline) if deadline <= now => self.woken.push(slot),
                Some(deadline) => {
                    self.first_deadline = Some(self.first_deadline.map_or(deadline, |first| first.min(deadline)));
                }
                None => {}
            }
        }
    }
}
