//! Calls of the test host, in this process and thread. A call runs when it is submitted, or as soon as its inputs are
//! ready and its actor is free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use sandbar_core::{Code, Fault, TaskError};

use super::actor::Actor;
use super::call::{CallFrame, CallResult, CallState};
use super::encoded_value::encoded;
use super::program_host::{Generator, ProgramHost, host};
use crate::actor::{self, ActorState};
use crate::bindings::tasks::Outcome;
use crate::{random, task};

pub(crate) fn report_failure(error: &[u8]) {
    let error = postcard::from_bytes(error).expect("an error is written by `failed`");
    host(|host| host.frames.last_mut().expect("a task fails while it runs").failure = Some(error));
}

pub(crate) fn returned(parts: &[&[u8]], objects: &[u64]) {
    host(|host| {
        host.pin(objects);
        let frame = host.frames.last_mut().expect("a task returns while it runs");
        frame.returned.push((parts.concat(), objects.to_vec()));
    });
}

/// Ignored: the test host displays no progress.
pub(crate) fn progress(_name: &str, _done: u64, _total: Option<u64>) {}

pub(crate) fn awaits(objects: &[u64]) {
    host(|host| host.frames.last_mut().expect("a task waits while it runs").awaits = objects.to_vec());
}

/// Starts a call, or resumes it.
pub(super) fn advance(number: u64, started: bool) {
    // Releases dropped handles first: the call may refer to the same objects.
    task::release_dropped();
    let (definition, chain, arguments, state) = host(|host| {
        let call = host.calls.get_mut(&number).expect("it was found just now");
        call.state = CallState::Running;
        let (refs, actor) = (call.refs.clone(), call.actor);
        let parts = (call.definition, call.chain.clone(), call.arguments.clone());
        if !started {
            host.hold(&refs);
        }
        let state = actor.and_then(|actor| host.actors.get_mut(&actor)).and_then(Actor::take_state);
        (parts.0, parts.1, parts.2, state)
    });
    let failed = host(|host| host.failed(&host.calls[&number].needs));
    let run = match failed.filter(|_| !started) {
        Some(error) => {
            let error = postcard::from_bytes(&error).expect("an error is written here");
            CallRun { outcome: Err(error), frame: CallFrame::default(), state }
        }
        None => run(chain, state, number, || match started {
            true => actor::resume(number),
            false => task::run(definition.index(), number, &arguments),
        }),
    };
    host(|host| host.handle_progress(number, run));
}

/// Outcome of running a part of a call.
pub(super) struct CallRun {
    /// Whether the call has ended, or its error.
    pub(super) outcome: Result<bool, TaskError>,
    /// Its requests to the host.
    pub(super) frame: CallFrame,
    /// The new state of its instance.
    pub(super) state: ActorState,
}

/// Runs a part of a call in an instance with this state.
pub(super) fn run(
    chain: Vec<String>,
    state: ActorState,
    seed: u64,
    part: impl FnOnce() -> Result<bool, String>,
) -> CallRun {
    host(|host| host.frames.push(CallFrame { chain, ..CallFrame::default() }));
    let (before, seed) = (actor::swap_state(state), random::set_seed(seed));
    let ended = catch_unwind(AssertUnwindSafe(|| actor::with_current_call(None, part)));
    random::set_seed(seed);
    let state = actor::swap_state(before);
    let mut frame = host(|host| host.frames.pop()).expect("it was pushed above");
    frame.panicked = ended.is_err();
    let outcome = result(ended, frame.failure.take(), &frame.chain);
    CallRun { outcome, frame, state }
}

fn result(
    ended: thread::Result<Result<bool, String>>,
    failure: Option<TaskError>,
    chain: &[String],
) -> Result<bool, TaskError> {
    let fault = match ended {
        Ok(Ok(has_ended)) => return Ok(has_ended),
        Ok(Err(message)) => Fault::new(Code::Refused, message),
        Err(panic) => Fault::new(Code::Panic, panic_message(panic.as_ref())),
    };
    match failure {
        Some(error) if fault.code == Code::Refused => Err(error),
        _ => Err(TaskError { fault, chain: chain.to_vec() }),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked").to_owned()
}

impl ProgramHost {
    /// Names of the running tasks, followed by this one.
    pub(super) fn chain_to(&self, name: &str) -> Vec<String> {
        let mut chain = self.frames.last().map(|frame| frame.chain.clone()).unwrap_or_default();
        chain.push(name.to_owned());
        chain
    }

    /// Updates a call after a part of it has run.
    fn handle_progress(&mut self, number: u64, run: CallRun) {
        let CallRun { outcome, frame, state } = run;
        let CallFrame { mut returned, awaits, panicked, .. } = frame;
        let call = self.calls.get_mut(&number).expect("what runs is not ended by others");
        let is_whole = matches!(outcome, Ok(true)) && returned.len() == call.returns as usize;
        let ended = match outcome {
            Ok(false) => {
                call.state = CallState::Waiting(awaits);
                None
            }
            Ok(true) if is_whole => Some(Ok(std::mem::take(&mut returned))),
            Ok(true) => {
                let message = format!("returned {} values instead of {}", returned.len(), call.returns);
                let error = TaskError { fault: Fault::new(Code::BadOutput, message), chain: call.chain.clone() };
                Some(Err(error))
            }
            Err(error) => Some(Err(error)),
        };
        let actor = call.actor;
        // Unpins the objects of values that are not results.
        returned.iter().for_each(|(_, contains)| self.unpin(contains));
        match actor {
            Some(actor) => self.handle_actor_progress(actor, number, state, panicked, ended),
            None => _ = ended.map(|ended| self.finish(number, ended)),
        }
    }

    /// Finishes a call, or fails one that can't run. Objects in the results are pinned.
    pub(super) fn finish(&mut self, number: u64, ended: CallResult) {
        let call = self.calls.remove(&number).expect("a call ends once");
        self.deferred.streams.extend(self.streams.remove(&number).and_then(Generator::into_items));
        for place in 0..call.returns {
            let object = number + u64::from(place);
            match &ended {
                Ok(returned) => {
                    let (bytes, contains) = &returned[place as usize];
                    self.set(object, Outcome::Value, bytes, contains);
                }
                Err(error) => self.set(object, Outcome::Failed, &encoded(error), &[]),
            }
        }
        for (_, contains) in ended.iter().flatten() {
            self.unpin(contains);
        }
        self.unpin(&call.refs);
        self.unpin(&call.needs);
        if let Some(actor) = call.actor.filter(|actor| *actor != number) {
            self.unpin(&[actor]);
        }
    }

    /// Fails a call that is not running.
    pub(super) fn stop(&mut self, number: u64, error: TaskError) {
        match self.calls.get(&number).map(|call| &call.state) {
            None | Some(CallState::Running) => {}
            Some(CallState::Queued) => self.finish(number, Err(error)),
            Some(CallState::Waiting(_)) => {
                self.deferred.calls.push(number);
                self.finish(number, Err(error));
            }
        }
    }
}
