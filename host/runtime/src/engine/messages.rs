//! What workers say.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::{
    ActorId, ActorOptions, Attempt, Code, Fault, GroupId, JobId, ObjectId, RequestOptions, STREAM_BUFFER, Strategy,
    TaskError, TaskId, TaskKind, WorkerId,
};
use sandbar_jobs::LogEntry;
use sandbar_sched::{Event, Failure, Outcome, ResourceSet, Submission, SubmissionKind};
use sandbar_store::ValueKey;
use sandbar_worker::program::{
    Polled, RANGE_OBJECTS_MAX, ReturnedValues, SentValue, SubmitTask, WorkerMessage, monotonic_nanos,
};

use super::actors::actor_spec;
use super::circles::waits;
use super::store::{Arrived, is_kept};
use super::{State, Stored};
use crate::calls::{Call, Read, actor_demand, demand, usual_demand};

/// Messages of one worker before another's turn.
const MESSAGES_A_TURN: usize = 256;
/// How often tasks are begun again, if they say nothing else.
const RETRIES: u32 = 3;
/// Tasks that return more, need more objects or have longer arguments, in bytes, run on no other node.
pub(super) const RETURNS_FAR_MAX: u32 = 1024;
const OBJECTS_FAR_MAX: usize = 20_000;
const ARGUMENTS_FAR_MAX: usize = 256 << 10;

/// Where a task is begun that is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The scheduler says.
    Any,
    /// Its parent's worker has begun it.
    Inline,
}

impl State {
    pub(super) fn hear(&mut self, worker: WorkerId, frame: &mut Vec<u8>) -> bool {
        if self.members.get(&worker).is_some_and(|member| member.link.has_some()) {
            self.clock = monotonic_nanos();
        }
        if self.holds_any()
            && self.members.get(&worker).is_some_and(|member| self.is_held_client(member, Instant::now()))
        {
            return false;
        }
        for heard in 0..MESSAGES_A_TURN {
            let Some(member) = self.members.get_mut(&worker).filter(|member| member.held.is_none()) else {
                return heard > 0;
            };
            match member.link.hear(frame) {
                Ok(Polled::Empty) => return heard > 0,
                Ok(Polled::Message) => {
                    member.has_spoken = true;
                    if !self.listen(worker, frame, true) {
                        self.hold(worker, std::mem::take(frame));
                    }
                }
                Err(e) => self.lose(worker, &e.to_string()),
            }
        }
        true
    }

    /// Does what a message says. Says whether it could: values `come` with it, and there may be no room for them yet.
    pub(super) fn listen(&mut self, worker: WorkerId, frame: &[u8], come: bool) -> bool {
        let understood = match postcard::from_bytes(frame) {
            Ok(message) if come => match self.take_in(worker, &message) {
                Ok(Arrived::TooMany) => return false,
                Ok(Arrived::All) => self.understand(worker, message),
                Err(e) => Err(e),
            },
            Ok(message) => self.understand(worker, message),
            Err(e) => Err(io::Error::other(e)),
        };
        if let Err(e) = understood {
            self.lose(worker, &format!("it said something that makes no sense: {e}"));
        }
        true
    }

    fn understand(&mut self, worker: WorkerId, message: WorkerMessage<'_>) -> io::Result<()> {
        match message {
            WorkerMessage::Submit(submit) => {
                if let Some(task) = self.submission(worker, &submit, Place::Any)? {
                    self.submit(worker, task);
                }
            }
            WorkerMessage::StartedInline(submit) => {
                let id = TaskId(submit.task);
                if let Some(member) = self.members.get_mut(&worker) {
                    member.began(id);
                }
                match self.submission(worker, &submit, Place::Inline)? {
                    Some(task) => self.step(Event::StartedInline { task, worker }),
                    None => self.interrupt(worker, id, Attempt(0), None),
                }
            }
            WorkerMessage::FinishedInline { submit, returned, usage: took } => {
                let task = self.submission(worker, &submit, Place::Inline)?;
                let call = task.as_ref().map(|task| &task.call);
                self.ran = Some(self.ran(worker, TaskId(submit.task), call, &took, &returned));
                let job = task.as_ref().map(|task| task.job);
                let outcome = self.outcome(worker, TaskId(submit.task), job, returned)?;
                match (task, outcome) {
                    (Some(task), outcome) => {
                        self.step(Event::FinishedInline { task, worker, outcome, nanos: took.nanos })
                    }
                    (None, Outcome::Succeeded(values)) => values.iter().for_each(|(value, _)| self.discard(value)),
                    (None, Outcome::Failed(_)) => {}
                }
                self.ran = None;
            }
            WorkerMessage::Finished { task, attempt, returned, usage: took, lost, saved } => {
                let task = TaskId(task);
                self.ran = Some(self.ran(worker, task, self.sched.call(task), &took, &returned));
                self.note_took(task, &took);
                let mut outcome = self.outcome(worker, task, self.sched.job_of(task), returned)?;
                if let Outcome::Failed(failure) = &mut outcome {
                    failure.system |= lost;
                }
                if let Some(member) = self.members.get_mut(&worker) {
                    member.ended(task);
                }
                if let Some(object) = saved {
                    self.save(worker, task, ObjectId(object));
                }
                self.step(Event::AttemptFinished {
                    task,
                    attempt: Attempt(attempt),
                    worker,
                    outcome,
                    nanos: took.nanos,
                });
                self.ran = None;
            }
            WorkerMessage::CallStarted(task, attempt) => self.called(worker, TaskId(task), Attempt(attempt)),
            WorkerMessage::Waits { task, objects, needed, holds_actor } => {
                self.waits(worker, TaskId(task), waits(objects, needed, holds_actor));
            }
            WorkerMessage::CallDropped(task) => {
                if let Some(member) = self.members.get_mut(&worker) {
                    member.dropped(TaskId(task));
                }
            }
            WorkerMessage::FindActor { object, task, attempt, name } => {
                self.find(worker, TaskId(object), (TaskId(task), Attempt(attempt)), name);
            }
            WorkerMessage::KillActor(actor, restart) => self.kill(worker, ActorId(actor), restart),
            WorkerMessage::CreateGroup { group, task, request } => self.create_group(worker, group, task, request)?,
            WorkerMessage::RemoveGroup(group, task) => {
                self.step(Event::GroupRemoved { group: GroupId(group), task: TaskId(task), worker });
            }
            WorkerMessage::Put { object, task, value, refs } => {
                let (object, task) = (ObjectId(object), TaskId(task));
                let refs = refs.into_iter().map(ObjectId).collect();
                match self.stored(worker, value)? {
                    Ok(value) => self.step(Event::Put { object, task, worker, value, refs }),
                    Err(fault) => self.step(Event::PutFailed { object, task, worker, fault }),
                }
            }
            WorkerMessage::Yield { task, attempt, index, object, value, refs } => {
                let (task, attempt, object) = (TaskId(task), Attempt(attempt), ObjectId(object));
                let refs = refs.into_iter().map(ObjectId).collect();
                let value = self.stored(worker, value)?;
                self.step(Event::Yielded { task, attempt, worker, index, object, value, refs });
            }
            WorkerMessage::ItemsTaken(stream, taken) => {
                self.step(Event::ItemsConsumed { stream: ObjectId(stream), worker, consumed: taken })
            }
            WorkerMessage::OpenFile { object, task, file } => self.open(worker, ObjectId(object), TaskId(task), file),
            WorkerMessage::Sleeps(task) => {
                let task = TaskId(task);
                if self.sched.task(task).is_some_and(|view| view.worker == Some(worker)) {
                    self.asleep.insert(task);
                }
            }
            WorkerMessage::Blocked(task, blocked) => {
                let task = TaskId(task);
                if !blocked && !self.asleep.is_empty() {
                    self.asleep.remove(&task);
                }
                if let Some(member) = self.members.get_mut(&worker).filter(|_| blocked) {
                    member.waits(task);
                }
                self.step(Event::Blocked { task, worker, blocked });
                self.tell_blocked(task, blocked);
            }
            WorkerMessage::RequestObject(object, task) => {
                self.step(Event::ObjectRequested { object: ObjectId(object), worker, task: TaskId(task) });
            }
            WorkerMessage::RequestRange(first, count, task) => {
                let task = TaskId(task);
                run(first, count)?.for_each(|object| self.step(Event::ObjectRequested { object, worker, task }));
            }
            WorkerMessage::Retain(object, task) => {
                self.step(Event::ReferenceAdded { object: ObjectId(object), worker, task: TaskId(task) });
            }
            WorkerMessage::Release(object, times) => {
                self.step(Event::ReferencesReleased { object: ObjectId(object), worker, count: times })
            }
            WorkerMessage::ReleaseRange(first, count) => {
                run(first, count)?.for_each(|object| self.step(Event::ReferencesReleased { object, worker, count: 1 }));
            }
            WorkerMessage::Cancel(object, task, recursive) => self.cancel(ObjectId(object), TaskId(task), recursive),
            WorkerMessage::FileReleased(file) => self.store.values.return_file(ValueKey(file), worker),
            WorkerMessage::Progress { task, name, done, total } => {
                self.progress(worker, TaskId(task), name, (done, total))
            }
            WorkerMessage::Log(task, level, line) => self.log(worker, TaskId(task), level, line),
        }
        Ok(())
    }

    /// What a task submits; none of one that is not there any more, which has no children.
    fn submission(
        &mut self,
        worker: WorkerId,
        submit: &SubmitTask<'_>,
        place: Place,
    ) -> io::Result<Option<Submission<Call>>> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let Read { options, actor, arguments, needs, refs } = Read::of(submit.request).map_err(io::Error::other)?;
        let parent = TaskId(submit.parent);
        let program = self.sched.call(parent).map(|call| call.program.clone());
        let (Some(program), Some(job)) = (program, self.sched.job_of(parent)) else { return Ok(None) };
        let known = program.tasks.get(submit.function as usize).ok_or_else(|| wrong("a function that is not there"))?;
        let usual_actor = ActorOptions::default();
        let of_actor = options.as_ref().and_then(|options| options.actor.as_deref()).unwrap_or(&usual_actor);
        let (work, make) = match (known.kind, actor) {
            (TaskKind::Task, None) => (SubmissionKind::Function, None),
            (TaskKind::Generator, None) => {
                let buffer = options.as_ref().map_or(STREAM_BUFFER, |options| options.buffer());
                (SubmissionKind::Generator(buffer), None)
            }
            (TaskKind::Make, None) => {
                let name = options.as_ref().and_then(|options| options.name.as_deref());
                let work = SubmissionKind::ActorCreation(Box::new(actor_spec(name, of_actor)));
                (work, Some(Box::new(program.make(submit.function, of_actor.clone(), name.map(str::to_owned)))))
            }
            (TaskKind::Method | TaskKind::Shared, Some(actor)) => {
                self.meet_actor(actor);
                (SubmissionKind::Method(actor), None)
            }
            _ => return Err(wrong("a function that is called as what it is not")),
        };
        let options = options.as_deref();
        let own_name = options.and_then(|options| options.name.clone()).filter(|_| known.kind != TaskKind::Make);
        let name = match own_name {
            Some(name) => self.names.of(name),
            None => known.name.clone(),
        };
        let id = TaskId(submit.task);
        let timeout_ms = options.and_then(|options| options.timeout_ms);
        // Nobody says how long the tasks of others may take.
        if let Some(limit) = timeout_ms.filter(|_| self.sched.task(id).is_none()) {
            self.deadlines.limit(id, Duration::from_millis(limit));
        }
        let usual = RequestOptions::default();
        let chosen = options.unwrap_or(&usual);
        let demand = match &work {
            SubmissionKind::Function | SubmissionKind::Generator(_) => options.map_or_else(usual_demand, demand),
            SubmissionKind::ActorCreation(_) => actor_demand(chosen),
            SubmissionKind::Method(_) => ResourceSet::default(),
        };
        // What goes to another node, and comes back, does in one message.
        let is_large = too_large(submit.returns, needs.len() + refs.len(), arguments.len()).is_some();
        let stays = self.peers.is_any() && place == Place::Any && is_large;
        Ok(Some(Submission {
            id,
            job,
            parent: Some((parent, Attempt(submit.attempt), worker)),
            remote_depth: 0,
            name,
            returns: submit.returns,
            demand,
            strategy: match &work {
                SubmissionKind::Method(_) => Strategy::Default,
                _ if stays => Strategy::Node { node: self.options.node, soft: false },
                _ => chosen.strategy,
            },
            priority: chosen.priority,
            retries_max: chosen.max_retries.unwrap_or(match &work {
                SubmissionKind::Function | SubmissionKind::Generator(_) => RETRIES,
                SubmissionKind::ActorCreation(_) => 0,
                SubmissionKind::Method(actor) => self.call_retries(*actor),
            }),
            retry_on: chosen.retry_on,
            call: Call {
                function: submit.function,
                timeout_ms: timeout_ms.and_then(|limit| NonZeroU32::new(limit.clamp(1, u32::MAX.into()) as u32)),
                seed: submit.seed,
                lineage: self.lineage(job, (submit.seed, submit.function), &arguments, &refs),
                arguments,
                program,
                needs: needs.as_slice().into(),
                refs: match &work {
                    SubmissionKind::Function | SubmissionKind::Generator(_) => Box::new([]),
                    SubmissionKind::ActorCreation(_) | SubmissionKind::Method(_) => refs.as_slice().into(),
                },
                make,
                submitted: self.clock,
            },
            kind: work,
            dependencies: needs,
            refs,
        }))
    }

    fn outcome(
        &mut self,
        worker: WorkerId,
        task: TaskId,
        job: Option<JobId>,
        returned: Result<ReturnedValues<'_>, Box<TaskError>>,
    ) -> io::Result<Outcome<Stored>> {
        let deadlock = self.take_doomed(task);
        let reason = self.deadlines.finished(task).or(deadlock);
        Ok(match returned {
            Ok(values) => {
                let (mut all, mut fault) = (Vec::with_capacity(values.len()), None);
                for (value, refs) in values {
                    match self.stored(worker, value)? {
                        Ok(value) => all.push((value, refs.into_iter().map(ObjectId).collect())),
                        Err(no_room) => fault = Some(no_room),
                    }
                }
                let Some(fault) = fault else { return Ok(Outcome::Succeeded(all)) };
                all.iter().for_each(|(value, _)| self.discard(value));
                self.count_failed(job);
                let error = Arc::new(TaskError { fault, chain: Vec::new() });
                Outcome::Failed(Failure { error, system: false })
            }
            Err(error) => {
                self.count_failed(job);
                let error = reason.map_or(*error, |fault| TaskError { fault, chain: Vec::new() });
                Outcome::Failed(Failure { error: Arc::new(error), system: false })
            }
        })
    }

    /// A value that has come; or why there is no room for it.
    fn stored(&mut self, worker: WorkerId, value: SentValue<'_>) -> io::Result<Result<Stored, Fault>> {
        if let SentValue::Inline(bytes) = value
            && !is_kept(bytes)
        {
            return Ok(Ok(Stored::Inline(bytes.into())));
        }
        let member = self.members.get_mut(&worker).ok_or(io::ErrorKind::NotFound)?;
        if let SentValue::File(bytes, _) = value {
            member.link.took_in(bytes);
        }
        let arrived = member.arrived.pop_front().ok_or(io::ErrorKind::NotFound)?;
        Ok(arrived.map(|key| self.kept(key)))
    }

    /// A task says how far it is.
    fn progress(&mut self, worker: WorkerId, task: TaskId, name: &str, (done, total): (u64, Option<u64>)) {
        let Some(view) = self.sched.task(task).filter(|view| view.worker == Some(worker)) else { return };
        if let Some(job) = self.jobs.get(&view.job) {
            job.bars.report(task, name, done, total);
        } else {
            self.tell_progress(task, name, done, total);
        }
    }

    fn log(&mut self, worker: WorkerId, task: TaskId, level: u8, line: &str) {
        let Some(view) = self.sched.task(task) else { return };
        if let Some(job) = self.jobs.get(&view.job) {
            job.log.send(LogEntry { task: Some((task, view.name, worker)), level, line });
        } else {
            self.tell_log(worker, task, level, line);
        }
    }
}

/// Why what returns, takes and says so much does not go to another node, if it does not.
pub(super) fn too_large(returns: u32, objects: usize, arguments: usize) -> Option<Fault> {
    let what = if returns > RETURNS_FAR_MAX {
        format!("returns {returns} objects: from another node come {RETURNS_FAR_MAX} at most")
    } else if objects > OBJECTS_FAR_MAX {
        format!("is given {objects} objects: to another node go {OBJECTS_FAR_MAX} at most")
    } else if arguments > ARGUMENTS_FAR_MAX {
        format!("has arguments of {arguments} bytes: to another node go {ARGUMENTS_FAR_MAX} at most; pass objects")
    } else {
        return None;
    };
    Some(Fault::new(Code::BadRequest, what))
}

/// Objects that follow each other.
fn run(first: u64, count: u32) -> io::Result<impl Iterator<Item = ObjectId>> {
    let end = first.checked_add(count.into()).filter(|_| count as usize <= RANGE_OBJECTS_MAX);
    let end = end.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "more objects than one message is of"))?;
    Ok((first..end).map(ObjectId))
}
