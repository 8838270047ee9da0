//! Messages of workers: decoded, admitted, then handled.

use std::io;
use std::sync::Arc;

use sandbar_core::{ActorId, Attempt, Fault, GroupId, JobId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_jobs::{AttemptRecord, LogEntry};
use sandbar_sched::{Event, Failure, Outcome, TaskView};
use sandbar_worker::program::{
    AttemptUsage, Polled, RANGE_OBJECTS_MAX, ReturnedValues, SentValue, SubmitTask, WorkerMessage,
};

use super::attempts::attempt_record;
use super::context::Context;
use super::deadlocks::wait_set;
use super::effects::{Effect, JobEffect};
use super::objects::{Admission, Objects, take_admitted};
use super::refs::{AttemptRef, OpenedFile, ProgressAmount};
use super::submission::{StartLocation, decode};
use super::usage::AttemptOutcome;
use super::values::StoredValue;
use super::{Engine, actors, groups};

/// Maximum number of messages of one worker that a poll handles.
const MESSAGES_PER_POLL: usize = 256;

/// How an attempt has ended in its worker.
struct AttemptEnd {
    /// Whether the worker lost it.
    is_lost: bool,
    /// Object of a checkpoint that an actor made after it.
    checkpoint: Option<ObjectId>,
}

impl Engine {
    /// Handles messages of a worker. Returns whether there were any.
    pub(super) fn poll_worker(&mut self, worker: WorkerId, frame: &mut Vec<u8>) -> bool {
        let Some(polled) = self.cx.workers.get(&worker).filter(|worker| worker.link.has_messages()) else {
            return false;
        };
        if self.backpressure.holds_any() && self.backpressure.holds_client(&self.cx, polled) {
            return false;
        }
        self.cx.time.nanos = self.cx.driver.monotonic_nanos();
        for handled in 0..MESSAGES_PER_POLL {
            let Some(polled) = self.cx.workers.get_mut(&worker).filter(|worker| worker.held_message.is_none()) else {
                return handled > 0;
            };
            match polled.link.poll(frame) {
                Ok(Polled::Empty) => return handled > 0,
                Ok(Polled::Message) => {
                    polled.has_sent = true;
                    if self.handle_frame(worker, frame) == Admission::MustWait {
                        self.objects.hold(&mut self.cx, worker, std::mem::take(frame));
                    }
                }
                Err(e) => self.lose_worker(worker, &e.to_string(), None),
            }
        }
        true
    }

    /// Decodes a message, admits its values, and handles it, unless its values must wait for memory.
    fn handle_frame(&mut self, worker: WorkerId, frame: &[u8]) -> Admission {
        let handled = decode_message(frame).and_then(|message| {
            let admission = Objects::admit(&mut self.cx, worker, &message)?;
            if admission == Admission::Admitted {
                self.handle_message(worker, message)?;
            }
            Ok(admission)
        });
        self.finish_message(worker, handled)
    }

    /// Handles a message whose values were admitted.
    pub(super) fn handle_admitted(&mut self, worker: WorkerId, frame: &[u8]) {
        let handled = decode_message(frame).and_then(|message| self.handle_message(worker, message));
        self.finish_message(worker, handled.map(|()| Admission::Admitted));
    }

    fn finish_message(&mut self, worker: WorkerId, handled: io::Result<Admission>) -> Admission {
        let admission = handled.unwrap_or_else(|e| {
            self.lose_worker(worker, &format!("it sent an invalid message: {e}"), None);
            Admission::Admitted
        });
        self.run_effects();
        self.jobs.forget_attempt();
        admission
    }

    /// # Errors
    /// The message is invalid.
    fn handle_message(&mut self, worker: WorkerId, message: WorkerMessage<'_>) -> io::Result<()> {
        if named_tasks(&message).into_iter().flatten().any(|task| self.is_of_another(worker, task)) {
            return self.ignore(worker, message);
        }
        let cx = &mut self.cx;
        match message {
            WorkerMessage::Submit(submit) => {
                if let Some(task) = decode(cx, &self.peers, worker, &submit, StartLocation::Any)? {
                    self.submit(worker, task);
                }
            }
            WorkerMessage::StartedInline(submit) => return self.started_inline(worker, &submit),
            WorkerMessage::FinishedInline { submit, returned, usage } => {
                return self.finished_inline(worker, &submit, returned, &usage);
            }
            WorkerMessage::Finished { task, attempt, returned, usage, lost, saved } => {
                let saved = saved.map(ObjectId);
                let attempt = AttemptRef { task: TaskId(task), attempt: Attempt(attempt) };
                let end = AttemptEnd { is_lost: lost, checkpoint: saved };
                return self.finished(worker, attempt, returned, &usage, end);
            }
            WorkerMessage::CallStarted(task, attempt) => {
                if actors::runs_call(cx, worker, TaskId(task), Attempt(attempt)) {
                    self.deadlines.started(TaskId(task), cx.driver.now());
                }
            }
            WorkerMessage::Waits { task, objects, needed, holds_actor } => {
                self.deadlocks.handle_waits(cx, worker, TaskId(task), wait_set(objects, needed, holds_actor));
            }
            WorkerMessage::CallDropped(task) => {
                if let Some(worker) = cx.workers.get_mut(&worker) {
                    let _ = worker.call_dropped(TaskId(task));
                }
            }
            WorkerMessage::FindActor { object, task, attempt, name } => {
                let (object, task, attempt) = (TaskId(object), TaskId(task), Attempt(attempt));
                cx.push(Effect::FindActor { worker, object, task, attempt, name: name.to_owned() });
            }
            WorkerMessage::KillActor(actor, task, restart) => {
                let actor = ActorId(actor);
                if actors::may_kill(cx, worker, TaskId(task), actor) {
                    cx.push(Effect::KillActor(worker, actor, restart));
                }
            }
            WorkerMessage::CreateGroup { group, task, request } => groups::create(cx, worker, group, task, request)?,
            WorkerMessage::RemoveGroup(group, task) => {
                cx.step(Event::GroupRemoved { group: GroupId(group), task: TaskId(task), worker });
            }
            WorkerMessage::Put { object, task, value, refs } => {
                let (object, task) = (ObjectId(object), TaskId(task));
                let refs = refs.into_iter().map(ObjectId).collect();
                match take_admitted(cx, worker, value)? {
                    Ok(value) => cx.step(Event::Put { object, task, worker, value, refs }),
                    Err(fault) => cx.step(Event::PutFailed { object, task, worker, fault }),
                }
            }
            WorkerMessage::Yield { task, attempt, index, object, value, refs } => {
                let (task, attempt, object) = (TaskId(task), Attempt(attempt), ObjectId(object));
                let refs = refs.into_iter().map(ObjectId).collect();
                let value = take_admitted(cx, worker, value)?;
                cx.step(Event::Yielded { task, attempt, worker, index, object, value, refs });
            }
            WorkerMessage::ItemsTaken(stream, consumed) => {
                cx.step(Event::ItemsConsumed { stream: ObjectId(stream), worker, consumed });
            }
            WorkerMessage::OpenFile { object, task, file } => {
                let (task, object, number) = (TaskId(task), ObjectId(object), file);
                let opened = OpenedFile { worker, task, object, number };
                if !self.peers.open_file(cx, &opened) {
                    self.files.open(cx, |job| self.jobs.files(job), opened);
                }
            }
            WorkerMessage::Sleeps(task) => self.deadlocks.task_sleeps(cx, worker, TaskId(task)),
            WorkerMessage::Blocked(task, blocked) => self.blocked(worker, TaskId(task), blocked),
            WorkerMessage::RequestObject(object, task) => {
                cx.step(Event::ObjectRequested { object: ObjectId(object), worker, task: TaskId(task) });
            }
            WorkerMessage::RequestRange(first, count, task) => {
                let task = TaskId(task);
                object_range(first, count)?.for_each(|object| cx.step(Event::ObjectRequested { object, worker, task }));
            }
            WorkerMessage::Retain(object, task) => {
                cx.step(Event::ReferenceAdded { object: ObjectId(object), worker, task: TaskId(task) });
            }
            WorkerMessage::Release(object, count) => {
                cx.step(Event::ReferencesReleased { object: ObjectId(object), worker, count });
            }
            WorkerMessage::ReleaseRange(first, count) => {
                object_range(first, count)?
                    .for_each(|object| cx.step(Event::ReferencesReleased { object, worker, count: 1 }));
            }
            WorkerMessage::Cancel(object, task, recursive) => {
                actors::cancel(cx, ObjectId(object), TaskId(task), recursive);
            }
            WorkerMessage::FileReleased(file) => cx.values.return_file(sandbar_store::ValueKey(file), worker),
            WorkerMessage::Progress { task, name, done, total } => {
                self.progress(worker, TaskId(task), name, ProgressAmount { done, total });
            }
            WorkerMessage::Log(task, level, line) => self.log(worker, TaskId(task), level, line),
        }
        Ok(())
    }

    /// Returns whether a task exists, and neither is nor was assigned to the worker.
    fn is_of_another(&self, worker: WorkerId, task: TaskId) -> bool {
        let Some(worker) = self.cx.workers.get(&worker) else { return true };
        if worker.has_next(task) || worker.has_started_early(task) {
            return false;
        }
        let view = self.cx.scheduler.task(task);
        view.is_some_and(|view| view.worker != Some(worker.id) && worker.job_of(task).is_none())
    }

    /// Ignores a message that names a task of another worker: the worker lies, or the task has left it. Discards values.
    fn ignore(&mut self, worker: WorkerId, message: WorkerMessage<'_>) -> io::Result<()> {
        let cx = &mut self.cx;
        let values = match message {
            WorkerMessage::Put { value, .. } | WorkerMessage::Yield { value, .. } => vec![value],
            WorkerMessage::Finished { returned, .. } | WorkerMessage::FinishedInline { returned, .. } => {
                returned.unwrap_or_default().into_iter().map(|(value, _)| value).collect()
            }
            _ => Vec::new(),
        };
        for value in values {
            if let Ok(value) = take_admitted(cx, worker, value)? {
                cx.discard(&value);
            }
        }
        Ok(())
    }

    fn started_inline(&mut self, worker: WorkerId, submit: &SubmitTask<'_>) -> io::Result<()> {
        let id = TaskId(submit.task);
        if let Some(worker) = self.cx.workers.get_mut(&worker)
            && let Some(job) = worker.job_of(TaskId(submit.parent))
        {
            worker.task_started_inline(id, job);
        }
        match decode(&mut self.cx, &self.peers, worker, submit, StartLocation::Parent)? {
            Some(task) => self.cx.step(Event::StartedInline { task, worker }),
            None => self.cx.push(Effect::Interrupt { worker, task: id, attempt: Attempt(0), reason: None }),
        }
        Ok(())
    }

    fn finished_inline(
        &mut self,
        worker: WorkerId,
        submit: &SubmitTask<'_>,
        returned: Result<ReturnedValues<'_>, Box<TaskError>>,
        usage: &AttemptUsage,
    ) -> io::Result<()> {
        let id = TaskId(submit.task);
        let task = decode(&mut self.cx, &self.peers, worker, submit, StartLocation::Parent)?;
        let call = task.as_ref().map(|task| &task.call);
        let record = attempt_record(&self.cx, worker, id, call, usage, returned_bytes(&returned));
        let of = task.as_ref().map(|task| (task.job, task.name.clone()));
        let (now, parent) = (self.cx.time.nanos, TaskId(submit.parent));
        let in_worker = self.cx.workers.get_mut(&worker).and_then(|worker| worker.inline_task_finished(parent, now));
        self.jobs.attempt_finished(of, record);
        let job = task.as_ref().map(|task| task.job);
        let outcome = self.outcome(worker, id, job, returned)?;
        self.book_attempt(in_worker, &record, &outcome);
        match (task, outcome) {
            (Some(task), outcome) => {
                self.cx.step(Event::FinishedInline { task, worker, outcome, nanos: usage.nanos });
            }
            (None, Outcome::Succeeded(values)) => values.iter().for_each(|(value, _)| self.cx.discard(value)),
            (None, Outcome::Failed(_)) => {}
        }
        Ok(())
    }

    /// An attempt has finished.
    fn finished(
        &mut self,
        worker: WorkerId,
        AttemptRef { task, attempt }: AttemptRef,
        returned: Result<ReturnedValues<'_>, Box<TaskError>>,
        usage: &AttemptUsage,
        end: AttemptEnd,
    ) -> io::Result<()> {
        let call = self.cx.scheduler.call(task);
        let record = attempt_record(&self.cx, worker, task, call, usage, returned_bytes(&returned));
        let is_current = |view: &TaskView<'_>| view.worker == Some(worker) && view.attempt == attempt;
        let view = self.cx.scheduler.task(task).filter(is_current);
        self.jobs.attempt_finished(view.map(|view| (view.job, view.name.clone())), record);
        self.peers.attempt_finished(task, usage);
        let mut outcome = self.outcome(worker, task, self.cx.scheduler.job_of(task), returned)?;
        if let Outcome::Failed(failure) = &mut outcome {
            failure.system |= end.is_lost;
        }
        let now = self.cx.time.nanos;
        let in_worker = self.cx.workers.get_mut(&worker).and_then(|worker| worker.task_finished(task, now));
        self.book_attempt(in_worker, &record, &outcome);
        if let Some(object) = end.checkpoint
            && let Some(actor) = self.cx.scheduler.actor_of(task)
        {
            let creation = self.cx.scheduler.task(actor.creation_task());
            let attempt = creation.map_or(Attempt(0), |creation| creation.attempt);
            self.cx.step(Event::Checkpointed { actor, attempt, worker, object });
            self.peers.actor_checkpointed(&mut self.cx, actor, object);
        }
        self.cx.step(Event::AttemptFinished { task, attempt, worker, outcome, nanos: usage.nanos });
        Ok(())
    }

    /// Books an attempt of a task of this job, unless its worker did not have the task.
    fn book_attempt(&mut self, job: Option<JobId>, record: &AttemptRecord, outcome: &Outcome<StoredValue>) {
        let Some(job) = job else { return };
        let outcome = match outcome {
            Outcome::Succeeded(_) => AttemptOutcome::Succeeded,
            Outcome::Failed(_) => AttemptOutcome::Failed,
        };
        self.cx.usage.book_attempt(job, record, outcome);
    }

    /// Returns the outcome of an attempt. An attempt that was requested to end has the error of that request.
    ///
    /// # Errors
    /// A value was not admitted.
    fn outcome(
        &mut self,
        worker: WorkerId,
        task: TaskId,
        job: Option<JobId>,
        returned: Result<ReturnedValues<'_>, Box<TaskError>>,
    ) -> io::Result<Outcome<StoredValue>> {
        let deadlock = self.deadlocks.take_fault(task);
        self.end_interrupt(worker, task);
        let reason = self.deadlines.finished(task).or(deadlock);
        let error = match returned {
            Ok(values) => match take_returned(&mut self.cx, worker, values)? {
                Ok(values) => return Ok(Outcome::Succeeded(values)),
                Err(fault) => TaskError { fault, chain: Vec::new() },
            },
            Err(error) => reason.map_or(*error, |fault| TaskError { fault, chain: Vec::new() }),
        };
        if let Some(job) = job {
            self.jobs.handle(JobEffect::AttemptFailed(job));
        }
        Ok(Outcome::Failed(Failure { error: Arc::new(error), system: false }))
    }

    fn blocked(&mut self, worker: WorkerId, task: TaskId, blocked: bool) {
        if blocked {
            if let Some(worker) = self.cx.workers.get_mut(&worker) {
                worker.task_blocked(task);
            }
        } else {
            self.deadlocks.task_unblocked(task);
        }
        self.cx.step(Event::Blocked { task, worker, blocked });
        self.peers.task_blocked(&mut self.cx, task, blocked);
    }

    fn progress(&mut self, worker: WorkerId, task: TaskId, name: &str, progress: ProgressAmount) {
        let Some(view) = self.cx.scheduler.task(task).filter(|view| view.worker == Some(worker)) else { return };
        if !self.jobs.progress(view.job, task, name, progress) {
            self.peers.progress(&mut self.cx, task, name, progress);
        }
    }

    fn log(&mut self, worker: WorkerId, task: TaskId, level: u8, line: &str) {
        let Some(view) = self.cx.scheduler.task(task) else { return };
        self.cx.usage.book(view.job, |amounts| amounts.log_bytes += line.len() as u64 + 1);
        let entry = LogEntry { task: Some((task, view.name, worker)), level, line };
        if !self.jobs.log(view.job, entry) {
            self.peers.log(&mut self.cx, worker, task, level, line);
        }
    }
}

/// Returns the tasks that a message names as its worker's: the task that acts, and a task that the worker has started by
/// itself. Later code relies on them, so that a new kind of message must decide.
fn named_tasks(message: &WorkerMessage<'_>) -> [Option<TaskId>; 2] {
    let (acting, started) = match message {
        WorkerMessage::Submit(submit) => (submit.parent, None),
        WorkerMessage::StartedInline(submit) | WorkerMessage::FinishedInline { submit, .. } => {
            (submit.parent, Some(submit.task))
        }
        WorkerMessage::Finished { task, .. }
        | WorkerMessage::CallStarted(task, _)
        | WorkerMessage::CallDropped(task)
        | WorkerMessage::Waits { task, .. }
        | WorkerMessage::FindActor { task, .. }
        | WorkerMessage::Put { task, .. }
        | WorkerMessage::Yield { task, .. }
        | WorkerMessage::OpenFile { task, .. }
        | WorkerMessage::CreateGroup { task, .. }
        | WorkerMessage::RemoveGroup(_, task)
        | WorkerMessage::Blocked(task, _)
        | WorkerMessage::Sleeps(task)
        | WorkerMessage::RequestObject(_, task)
        | WorkerMessage::RequestRange(_, _, task)
        | WorkerMessage::Retain(_, task)
        | WorkerMessage::Cancel(_, task, _)
        | WorkerMessage::Progress { task, .. }
        | WorkerMessage::Log(task, ..) => (*task, None),
        // These name an object or a file, which the worker must hold, or an actor, whose handle it must hold.
        WorkerMessage::KillActor(..)
        | WorkerMessage::ItemsTaken(..)
        | WorkerMessage::Release(..)
        | WorkerMessage::ReleaseRange(..)
        | WorkerMessage::FileReleased(_) => return [None, None],
    };
    [Some(TaskId(acting)), started.map(TaskId)]
}

fn decode_message(frame: &[u8]) -> io::Result<WorkerMessage<'_>> {
    postcard::from_bytes(frame).map_err(io::Error::other)
}

/// Takes the admitted values of an attempt with the objects that they contain, or the reason why one was refused.
#[expect(clippy::type_complexity, reason = "the values of an outcome")]
fn take_returned(
    cx: &mut Context,
    worker: WorkerId,
    returned: ReturnedValues<'_>,
) -> io::Result<Result<Vec<(StoredValue, Vec<ObjectId>)>, Fault>> {
    let (mut values, mut refused) = (Vec::with_capacity(returned.len()), None);
    for (value, refs) in returned {
        match take_admitted(cx, worker, value)? {
            Ok(value) => values.push((value, refs.into_iter().map(ObjectId).collect())),
            Err(fault) => refused = Some(fault),
        }
    }
    let Some(fault) = refused else { return Ok(Ok(values)) };
    values.iter().for_each(|(value, _)| cx.discard(value));
    Ok(Err(fault))
}

fn returned_bytes(returned: &Result<ReturnedValues<'_>, Box<TaskError>>) -> u64 {
    let bytes = |value: &SentValue<'_>| match value {
        SentValue::Inline(bytes) => bytes.len() as u64,
        SentValue::File(bytes, _) => *bytes,
    };
    returned.iter().flatten().map(|(value, _)| bytes(value)).sum()
}

/// Returns consecutive object ids.
fn object_range(first: u64, count: u32) -> io::Result<impl Iterator<Item = ObjectId>> {
    let end = first.checked_add(count.into()).filter(|_| count as usize <= RANGE_OBJECTS_MAX);
    let end = end.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a range of too many objects"))?;
    Ok((first..end).map(ObjectId))
}
