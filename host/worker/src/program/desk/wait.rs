//! Tasks that wait: for objects, and for how long.

use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Argument, TaskRequest};
use sandbar_sandbox::Refusal;

use super::{Desk, Submitted, Waiting, gone};
use crate::program::link::words;
use crate::program::messages::{RUN_MAX, Submit, Up, WAITS_MAX};
use crate::program::objects::Slot;

/// Objects in one question.
const OBJECTS_MAX: usize = 10_000_000;

impl Desk {
    /// Begins to wait until `count` of these are there; or, of a `get`, for the value of one.
    pub(super) fn begin_wait(
        &mut self,
        slot: Slot,
        objects: &[u64],
        (count, is_get): (usize, bool),
        nanos: Option<u64>,
    ) -> Result<(), Refusal> {
        if objects.len() > OBJECTS_MAX || count > objects.len() {
            return Err(Refusal::bad_request(format!("it waits for {count} of {} objects", objects.len())));
        }
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return Err(gone()) };
        let (id, job) = (task.id, task.job);
        // What it waits for stays until it has it, also if it was only lent it.
        for object in objects.iter().filter(|object| task.holds.insert(**object)) {
            self.objects.hold((job, *object));
        }
        let missing: Vec<u64> =
            objects.iter().copied().filter(|object| !self.objects.is_there((job, *object), is_get)).collect();
        let there = objects.len() - missing.len();
        let deadline = nanos.map(|nanos| Instant::now() + Duration::from_nanos(nanos));
        let waiting =
            Waiting { objects: objects.to_vec(), count, is_get, missing: count.saturating_sub(there), deadline };
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
        self.until(deadline);
        if let [only] = missing[..]
            && nanos.is_none()
            && let Some(frame) = self.take_child(slot, only)
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
            if !std::mem::replace(&mut entry.wanted, true) {
                unasked.push(object);
            }
        }
        for run in unasked.chunk_by(|object, next| object + 1 == *next).flat_map(|run| run.chunks(RUN_MAX)) {
            self.say(&match run {
                [object] => Up::Want(*object, id),
                run => Up::WantRun(run[0], run.len() as u32, id),
            });
        }
        Ok(())
    }

    pub(super) fn poll_wait(&mut self, slot: Slot) -> Poll<Result<Vec<bool>, Refusal>> {
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else {
            return Poll::Ready(Err(gone()));
        };
        let Some(waiting) = &mut task.waiting else { return Poll::Ready(Err(gone())) };
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
            // Some of those that came were asked for before.
            waiting.missing = left;
            return Poll::Pending;
        }
        task.waiting = None;
        Poll::Ready(Ok(ready))
    }

    /// Whether a task that has submitted may go on. It looks what the node says first, if that holds any job.
    pub(super) fn poll_submitted(&mut self, slot: Slot) -> Poll<()> {
        let Some(Some(task)) = self.tasks.get_mut(slot) else { return Poll::Ready(()) };
        let is_held = self.held_jobs.contains(&task.job);
        match task.submitted {
            Submitted::GoesOn => {}
            Submitted::Waits if is_held => {}
            Submitted::Waits | Submitted::GoesOnOnce => {
                task.submitted = Submitted::GoesOn;
                return Poll::Ready(());
            }
        }
        task.submitted = Submitted::Waits;
        self.submitters.push(slot);
        Poll::Pending
    }

    /// Whether the node holds any job.
    pub(super) fn holds_jobs(&self) -> bool {
        self.memory.atomic(words::HOLD).load(Relaxed) != 0
    }

    pub(in crate::program) fn hold_job(&mut self, job: u32, holds: bool) {
        match holds {
            true => self.held_jobs.insert(job),
            false => self.held_jobs.remove(&job),
        };
    }

    /// Those of a job that wait go on by one call.
    pub(in crate::program) fn go_on_once(&mut self, job: u32) {
        for slot in &self.submitters {
            if let Some(Some(task)) = self.tasks.get_mut(*slot)
                && task.job == job
                && task.submitted == Submitted::Waits
            {
                task.submitted = Submitted::GoesOnOnce;
            }
        }
    }

    /// Wakes those that have submitted and may go on.
    pub(in crate::program) fn release_submitters(&mut self) {
        // Mostly there are none.
        if self.submitters.is_empty() {
            return;
        }
        for slot in std::mem::take(&mut self.submitters) {
            match self.tasks.get(slot).and_then(Option::as_ref) {
                Some(task) if task.submitted == Submitted::Waits && self.held_jobs.contains(&task.job) => {
                    self.submitters.push(slot);
                }
                Some(task) if task.submitted != Submitted::GoesOn => self.woken.push(slot),
                _ => {}
            }
        }
    }

    /// Begins to wait until a time, for nothing but that.
    pub(super) fn sleep_until(&mut self, slot: Slot, due: Instant) -> Result<(), Refusal> {
        let task = self.task(slot).ok_or_else(gone)?;
        // For one thing that never comes.
        let deadline = Some(due);
        task.waiting = Some(Waiting { objects: Vec::new(), count: 1, is_get: false, missing: 1, deadline });
        self.until(deadline);
        Ok(())
    }

    /// Takes the task back that was submitted last, if it is that one, and whoever submitted it can have it run here.
    fn take_child(&mut self, parent: Slot, task: u64) -> Option<Vec<u8>> {
        let child = self.child.filter(|child| child.parent == parent && child.task == task)?;
        if !self.runs_children || self.alive >= self.room || !self.up.take_back(child.at) {
            return None;
        }
        (self.child, self.unpublished) = (None, self.unpublished.saturating_sub(1));
        // It is what was encoded last.
        let frame = std::mem::take(&mut self.frame);
        let is_plain = |submit: &Submit<'_>| {
            let request = postcard::from_bytes::<TaskRequest<'_>>(submit.request);
            request.is_ok_and(|request| {
                request.options.is_none()
                    && request.actor.is_none()
                    && !request.arguments.iter().any(|a| matches!(a, Argument::Object(_)))
            })
        };
        match postcard::from_bytes(&frame) {
            Ok(Up::Submit(submit)) if is_plain(&submit) => Some(frame),
            Ok(message) => {
                self.say(&message);
                None
            }
            Err(_) => None,
        }
    }

    /// Says what a task waits for without a limit of time; of an actor, what the call at hand and those do that wait beside it.
    pub(in crate::program) fn say_waits(&mut self, slot: Slot) {
        let Some(Some(task)) = self.tasks.get(slot) else { return };
        let (job, id) = (task.job, task.id);
        let waiting = task.waiting.as_ref().filter(|waiting| waiting.deadline.is_none() && waiting.missing > 0);
        let mut said: Vec<(u64, Vec<u64>, usize, bool)> = Vec::new();
        if let Some(Waiting { objects, count, is_get, .. }) = waiting {
            let is_missing = |object: &u64| !self.objects.is_there((job, *object), *is_get);
            let missing: Vec<u64> = objects.iter().copied().filter(is_missing).collect();
            let needed = count.saturating_sub(objects.len() - missing.len());
            said.push((id, missing, needed, self.residents.contains_key(&slot)));
        }
        if let Some(resident) = self.residents.get(&slot) {
            // Which of several it goes on with is not known here: any.
            said.extend(resident.parked_calls().map(|(id, awaits, holds)| (id, awaits.to_vec(), 1, holds)));
        }
        for (task, mut objects, mut needed, holds_actor) in said {
            if objects.len() > WAITS_MAX {
                if needed < objects.len() {
                    continue;
                }
                objects.truncate(WAITS_MAX);
                needed = WAITS_MAX;
            }
            self.say(&Up::Waits { task, objects, needed: needed as u32, holds_actor });
        }
        self.publish();
    }

    /// Somebody waits until then at most.
    pub(super) fn until(&mut self, deadline: Option<Instant>) {
        self.first_deadline = self.first_deadline.into_iter().chain(deadline).min();
    }

    /// When the first of those is over who wait for so long only.
    pub(in crate::program) fn first_deadline(&self) -> Option<Instant> {
        self.first_deadline
    }

    /// Wakes those that have waited as long as they wanted to.
    pub(in crate::program) fn wake_late(&mut self) {
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
