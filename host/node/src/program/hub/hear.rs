//! What workers say.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{ActorId, ActorOptions, Attempt, ObjectId, Options, TaskError, TaskId, TaskKind, WorkerId};
use sandbar_sched::{Demand, Event, Failure, Outcome, Submission, Work};
use sandbar_worker::program::{Heard, ReturnedUp, Submit, Up, ValueUp};

use super::actors::actor_spec;
use super::{State, Stored};
use crate::program::calls::{Call, Read, actor_demand, demand, usual_demand};

/// Messages of one worker before another's turn.
const MESSAGES_A_TURN: usize = 256;
/// How often tasks are begun again, if they say nothing else.
const RETRIES: u32 = 3;

impl State {
    pub(super) fn hear(&mut self, worker: WorkerId, frame: &mut Vec<u8>) -> bool {
        for heard in 0..MESSAGES_A_TURN {
            let Some(member) = self.members.get_mut(&worker) else { return heard > 0 };
            match member.crew.hear(frame) {
                Ok(Heard::Nothing) => return heard > 0,
                Ok(Heard::Some) => {
                    let understood = match postcard::from_bytes(frame) {
                        Ok(message) => self.understand(worker, message),
                        Err(e) => Err(io::Error::other(e)),
                    };
                    if let Err(e) = understood {
                        self.lose(worker, &format!("it said something that makes no sense: {e}"));
                    }
                }
                Err(e) => self.lose(worker, &e.to_string()),
            }
        }
        true
    }

    fn understand(&mut self, worker: WorkerId, message: Up<'_>) -> io::Result<()> {
        match message {
            Up::Submit(submit) => {
                if let Some(task) = self.submission(worker, &submit)? {
                    self.submit(worker, task);
                }
            }
            Up::Began(submit) => {
                let id = TaskId(submit.task);
                if let Some(member) = self.members.get_mut(&worker) {
                    member.began(id);
                }
                match self.submission(worker, &submit)? {
                    Some(task) => self.step(Event::BeganInline { task, worker }),
                    None => self.interrupt(worker, id, Attempt(0), None),
                }
            }
            Up::Ran { submit, returned, nanos, memory_bytes: _ } => {
                let outcome = self.outcome(worker, TaskId(submit.task), returned)?;
                if let Some(task) = self.submission(worker, &submit)? {
                    self.step(Event::RanInline { task, worker, outcome, nanos });
                }
            }
            Up::Finished { task, attempt, returned, nanos, memory_bytes: _, lost, saved } => {
                let task = TaskId(task);
                let mut outcome = self.outcome(worker, task, returned)?;
                if let Outcome::Failed(failure) = &mut outcome {
                    failure.system |= lost;
                }
                if let Some(member) = self.members.get_mut(&worker) {
                    member.ended(task);
                }
                if let Some(object) = saved {
                    self.save(worker, task, ObjectId(object));
                }
                self.step(Event::Finished { task, attempt: Attempt(attempt), worker, outcome, nanos });
            }
            Up::Dropped(task) => {
                if let Some(member) = self.members.get_mut(&worker) {
                    member.dropped(TaskId(task));
                }
            }
            Up::Find { object, task, attempt, name } => {
                self.find(worker, TaskId(object), (TaskId(task), Attempt(attempt)), name);
            }
            Up::Kill(actor, restart) => self.kill(worker, ActorId(actor), restart),
            Up::Put { object, task, value, refs } => {
                let value = self.stored(worker, value)?;
                let refs = refs.into_iter().map(ObjectId).collect();
                self.step(Event::Put { object: ObjectId(object), task: TaskId(task), worker, value, refs });
            }
            Up::Blocked(task, blocked) => {
                let task = TaskId(task);
                if let Some(member) = self.members.get_mut(&worker).filter(|_| blocked) {
                    member.waits(task);
                }
                self.step(Event::Blocked { task, worker, blocked });
            }
            Up::Want(object, task) => {
                self.asking = self.sched.job_of(TaskId(task));
                self.step(Event::Wanted { object: ObjectId(object), worker, task: TaskId(task) });
            }
            Up::Released(object, times) => self.step(Event::Released { object: ObjectId(object), worker, times }),
            Up::Cancel(object, recursive) => {
                if let Some(task) = self.sched.maker(ObjectId(object)) {
                    self.step(Event::Cancelled { task, recursive });
                }
            }
            Up::Log(task, level, line) => self.log(TaskId(task), level, line),
        }
        Ok(())
    }

    /// What a task submits; none of one that is not there any more, which has no children.
    fn submission(&mut self, worker: WorkerId, submit: &Submit<'_>) -> io::Result<Option<Submission<Call>>> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let Read { options, actor, arguments, needs, refs } = Read::of(submit.request).map_err(io::Error::other)?;
        let parent = TaskId(submit.parent);
        let program = self.sched.call(parent).map(|call| call.program.clone());
        let (Some(program), Some(job)) = (program, self.sched.job_of(parent)) else { return Ok(None) };
        let known = program.tasks.get(submit.function as usize).ok_or_else(|| wrong("a function that is not there"))?;
        let usual_actor = ActorOptions::default();
        let of_actor = options.as_ref().and_then(|options| options.actor.as_deref()).unwrap_or(&usual_actor);
        let (work, make) = match (known.kind, actor) {
            (TaskKind::Task, None) => (Work::Task, None),
            (TaskKind::Make, None) => {
                let name = options.as_ref().and_then(|options| options.name.as_deref());
                let work = Work::Actor(Box::new(actor_spec(name, of_actor)));
                (work, Some(Box::new(program.make(submit.function, of_actor))))
            }
            (TaskKind::Method | TaskKind::Shared, Some(actor)) => (Work::Method(actor), None),
            _ => return Err(wrong("a function that is called as what it is not")),
        };
        let options = options.as_deref();
        let own_name = options.and_then(|options| options.name.clone()).filter(|_| known.kind != TaskKind::Make);
        let name = match own_name {
            Some(name) => self.names.of(name),
            None => known.name.clone(),
        };
        let id = TaskId(submit.task);
        if let Some(limit) = options.and_then(|options| options.timeout_ms) {
            self.timed.insert(id, (Duration::from_millis(limit), worker, None));
        }
        let usual = Options::default();
        let chosen = options.unwrap_or(&usual);
        Ok(Some(Submission {
            id,
            job,
            parent: Some((parent, Attempt(submit.attempt), worker)),
            name,
            returns: submit.returns,
            demand: match &work {
                Work::Task => options.map_or_else(usual_demand, demand),
                Work::Actor(_) => actor_demand(chosen),
                Work::Method(_) => Demand::default(),
            },
            priority: chosen.priority,
            retries_max: chosen.max_retries.unwrap_or(match &work {
                Work::Task => RETRIES,
                Work::Actor(_) => 0,
                Work::Method(actor) => self.made(*actor).map_or(0, |made| made.call_retries),
            }),
            retry_failures: chosen.retry_failures,
            refs,
            call: Call {
                function: submit.function,
                seed: submit.seed,
                arguments,
                program,
                needs: needs.as_slice().into(),
                make,
            },
            work,
            needs,
        }))
    }

    fn outcome(
        &mut self,
        worker: WorkerId,
        task: TaskId,
        returned: Result<ReturnedUp<'_>, Box<TaskError>>,
    ) -> io::Result<Outcome<Stored>> {
        let ending = self.ending.remove(&task);
        let late = self.late_calls.remove(&task).map(|(_, why)| why);
        self.timed.remove(&task);
        Ok(match returned {
            Ok(values) => {
                let values = values
                    .into_iter()
                    .map(|(value, refs)| Ok((self.stored(worker, value)?, refs.into_iter().map(ObjectId).collect())));
                Outcome::Succeeded(values.collect::<io::Result<_>>()?)
            }
            Err(error) => {
                self.count.failed += 1;
                let why = late.or_else(|| ending.and_then(|ending| ending.why));
                let error = why.map_or(*error, |fault| TaskError { fault, chain: Vec::new() });
                Outcome::Failed(Failure { error: Arc::new(error), system: false })
            }
        })
    }

    fn stored(&mut self, worker: WorkerId, value: ValueUp<'_>) -> io::Result<Stored> {
        match value {
            ValueUp::Inline(bytes) => Ok(Stored::Inline(bytes.into())),
            ValueUp::File(bytes) => {
                let member = self.members.get_mut(&worker).ok_or(io::ErrorKind::NotFound)?;
                Ok(Stored::File(member.crew.next_file(bytes)?))
            }
        }
    }

    fn log(&self, task: TaskId, level: u8, line: &str) {
        let Some(view) = self.sched.task(task) else { return };
        if let Some(job) = self.jobs.get(&view.job) {
            (job.log)(view.name, level, line);
        }
    }
}
