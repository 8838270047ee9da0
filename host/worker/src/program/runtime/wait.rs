//! Tasks that wait: for objects, or for a time.

use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Argument, TaskRequest};
use sandbar_sandbox::Refusal;

use super::WorkerRuntime;
use super::context::{InlineTask, WaitState};
use super::limits::{STEP_OBJECTS, refuse_interrupted};
use super::tasks::task_ended;
use crate::program::messages::{RANGE_OBJECTS_MAX, SubmitTask, WAIT_OBJECTS_MAX, WorkerMessage};
use crate::program::objects::{ObjectKey, TaskSlot, Waiter};

/// Maximum number of objects in one wait.
const OBJECTS_MAX: usize = 10_000_000;

impl WorkerRuntime {
    /// Starts to wait until `count` of the objects are available; for a `get`, until the value of one is.
    pub(super) fn begin_wait(
        &mut self,
        slot: TaskSlot,
        objects: &[u64],
        count: usize,
        is_get: bool,
        nanos: Option<u64>,
    ) -> Result<(), Refusal> {
        if objects.len() > OBJECTS_MAX || count > objects.len() {
            return Err(Refusal::bad_request(format!("it waits for {count} of {} objects", objects.len())));
        }
        let task = self.tasks.require(slot)?;
        let (id, job) = (task.id, task.job);
        // Awaited objects are retained until the task has them, including those that were only lent.
        let mut missing = Vec::new();
        for objects in objects.chunks(STEP_OBJECTS) {
            refuse_interrupted()?;
            for object in objects.iter().filter(|object| task.holds.insert(**object)) {
                self.objects.hold(ObjectKey::new(job, *object));
            }
            let is_missing = |object: &u64| !self.objects.is_there(ObjectKey::new(job, *object), is_get);
            missing.extend(objects.iter().copied().filter(is_missing));
        }
        let there = objects.len() - missing.len();
        task.received = objects.first().filter(|_| is_get).and_then(|object| {
            let value = self.objects.value(ObjectKey::new(job, *object))?;
            Some((*object, value.clone()))
        });
        let deadline = nanos.map(|nanos| Instant::now() + Duration::from_nanos(nanos));
        let waiting =
            WaitState { objects: objects.to_vec(), count, is_get, missing: count.saturating_sub(there), deadline };
        let waits = waiting.missing > 0;
        self.tasks.begin_wait(slot, waiting);
        if !waits {
            return Ok(());
        }
        if let [only] = missing[..]
            && nanos.is_none()
            && let Some(submission) = self.take_back_child(slot, only)
        {
            self.tasks.set_inline(InlineTask { parent: slot, submission });
            self.objects.entry(ObjectKey::new(job, only)).waiters.push(Waiter { slot, task: id });
            return Ok(());
        }
        self.announce(slot);
        let mut unasked = Vec::new();
        for (at, object) in missing.into_iter().enumerate() {
            if at % STEP_OBJECTS == 0 {
                refuse_interrupted()?;
            }
            let entry = self.objects.entry(ObjectKey::new(job, object));
            entry.add_waiter(Waiter { slot, task: id });
            if entry.request() {
                unasked.push(object);
            }
        }
        for run in unasked.chunk_by(|object, next| object + 1 == *next).flat_map(|run| run.chunks(RANGE_OBJECTS_MAX)) {
            self.node.send(&match run {
                [object] => WorkerMessage::RequestObject(*object, id),
                run => WorkerMessage::RequestRange(run[0], run.len() as u32, id),
            });
        }
        Ok(())
    }

    pub(super) fn poll_wait(&mut self, slot: TaskSlot) -> Poll<Result<Vec<bool>, Refusal>> {
        let Some(task) = self.tasks.get_mut(slot) else { return Poll::Ready(Err(task_ended())) };
        let Some(waiting) = &mut task.waiting else { return Poll::Ready(Err(task_ended())) };
        let over = waiting.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if waiting.missing > 0 && !over {
            return Poll::Pending;
        }
        let mut left = waiting.count;
        let (is_get, has_received) = (waiting.is_get, task.received.is_some());
        let is_there = |object: &u64| {
            let there = left > 0 && (has_received || self.objects.is_there(ObjectKey::new(task.job, *object), is_get));
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

    /// Starts to wait until a time, and for nothing else.
    pub(super) fn sleep_until(&mut self, slot: TaskSlot, due: Instant) -> Result<(), Refusal> {
        self.tasks.require(slot)?;
        // Modelled as a wait for one object that never arrives.
        let (objects, deadline) = (Vec::new(), Some(due));
        self.tasks.begin_wait(slot, WaitState { objects, count: 1, is_get: false, missing: 1, deadline });
        Ok(())
    }

    /// Takes back the task that was submitted last, if its parent waits for it and it can run in this worker. Returns
    /// its encoded submission.
    fn take_back_child(&mut self, parent: TaskSlot, task: u64) -> Option<Vec<u8>> {
        if !self.tasks.can_run_inline() {
            return None;
        }
        let submission = self.node.take_back(parent, task)?;
        let is_plain = |submit: &SubmitTask<'_>| {
            let request = postcard::from_bytes::<TaskRequest<'_>>(submit.request);
            request.is_ok_and(|request| {
                request.options.is_none()
                    && request.actor.is_none()
                    && !request.arguments.iter().any(|a| matches!(a, Argument::Object(_)))
            })
        };
        match postcard::from_bytes(&submission) {
            Ok(WorkerMessage::Submit(submit)) if is_plain(&submit) => Some(submission),
            Ok(message) => {
                self.node.send(&message);
                None
            }
            Err(_) => None,
        }
    }

    /// Reports what a task waits for without a time limit; for an actor, what its current call and its waiting calls
    /// wait for.
    pub(in crate::program) fn report_waits(&mut self, slot: TaskSlot) {
        let Some(task) = self.tasks.get(slot) else { return };
        let (job, id) = (task.job, task.id);
        let waiting = task.waiting.as_ref().filter(|waiting| waiting.deadline.is_none() && waiting.missing > 0);
        let mut waits: Vec<(u64, Vec<u64>, usize, bool)> = Vec::new();
        if let Some(WaitState { objects, count, is_get, .. }) = waiting {
            let is_missing = |object: &u64| !self.objects.is_there(ObjectKey::new(job, *object), *is_get);
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
            self.node.send(&WorkerMessage::Waits { task, objects, needed: needed as u32, holds_actor });
        }
        self.node.publish();
    }
}
