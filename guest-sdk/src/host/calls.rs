//! Calls of the test host, in this process and thread. A call runs when it is submitted, or as soon as its inputs are
//! ready and its actor is free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use sandbar_core::{Argument, Code, Fault, ObjectId, TaskError, TaskRequest};

use super::actors::{Actor, CreationCall};
use super::objects::{EncodedValue, ProgramHost, host};
use super::streams::Generator;
use crate::actor::{self, ActorState};
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::Outcome;
use crate::registry::{self, TaskDefinition};
use crate::{random, task};

pub(super) struct Call {
    pub(super) definition: &'static TaskDefinition,
    /// Names of the calling tasks, and its own.
    pub(super) chain: Vec<String>,
    /// Arguments in the encoding of the contract.
    pub(super) arguments: Vec<u8>,
    needs: Vec<u64>,
    refs: Vec<u64>,
    returns: u32,
    /// The actor that the call creates, or whose method it is.
    pub(super) actor: Option<u64>,
    pub(super) state: CallState,
}

/// State of a call.
#[derive(Debug, PartialEq)]
pub(super) enum CallState {
    Queued,
    Running,
    /// Waits for one of these objects.
    Waiting(Vec<u64>),
}

/// A running part of a call.
#[derive(Default)]
pub(super) struct CallFrame {
    chain: Vec<String>,
    /// Results so far.
    pub(super) returned: Vec<EncodedValue>,
    /// Items so far.
    pub(super) yielded: Vec<EncodedValue>,
    /// Another task's error that this task is about to fail with.
    failure: Option<TaskError>,
    awaits: Vec<u64>,
    /// Whether the call panicked: its instance can't be used any more.
    pub(super) panicked: bool,
}

/// The next step of the test host.
pub(super) enum Step {
    Start(u64),
    Resume(u64),
    Restart(u64),
    Checkpoint(u64),
}

/// The results of a finished call, or its error.
pub(super) type CallResult = Result<Vec<EncodedValue>, TaskError>;

pub(crate) fn submit(function: u32, returns: u32, request: &[u8]) -> u64 {
    let TaskRequest { options, actor, arguments, refs } =
        postcard::from_bytes(request).expect("a request is written by `submit`");
    let definition = registry::task(function).expect("a task's index is in the list");
    let needs = arguments.iter().filter_map(|argument| match argument {
        Argument::Object(object) => Some(object.0),
        _ => None,
    });
    let needs: Vec<u64> = needs.collect();
    let refs: Vec<u64> = refs.iter().map(|object| object.0).collect();
    let arguments = postcard::to_stdvec(&arguments).expect("arguments are bytes and numbers");
    let options = options.map(|options| *options).unwrap_or_default();
    let first = host(|host| {
        let chain = host.chain_to(options.name.as_deref().unwrap_or(definition.name));
        host.pin(&refs);
        host.pin(&needs);
        let first = host.add(Outcome::TimeOut, Vec::new(), Vec::new());
        (1..returns).for_each(|_| _ = host.add(Outcome::TimeOut, Vec::new(), Vec::new()));
        let call = Call { definition, chain, arguments, needs, refs, returns, actor: None, state: CallState::Queued };
        host.calls.insert(first, call);
        let misplaced = host.admit_strategy(&options);
        let refused = match (definition.kind, actor) {
            (TaskKind::Task | TaskKind::Generator, _) => misplaced,
            (TaskKind::Make, _) if misplaced.is_some() => misplaced,
            (TaskKind::Make, _) => host.admit_actor(first, options),
            (_, Some(ObjectId(handle))) => host.admit_method(first, handle),
            (_, None) => Some(Fault::new(Code::BadRequest, "a method call needs an actor's handle")),
        };
        if let Some(fault) = refused {
            let chain = host.calls[&first].chain.clone();
            host.finish(first, Err(TaskError { fault, chain }));
        }
        first
    });
    settle();
    first
}

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

/// Does not end a running call.
pub(crate) fn cancel(object: u64, _recursive: bool) {
    host(|host| {
        host.is_there(object);
        let call = host.calls.range(..=object).next_back();
        let call = call.filter(|(first, call)| object - **first < u64::from(call.returns));
        if let Some((&first, Call { chain, actor, .. })) = call {
            let fault = Fault::new(Code::Cancelled, "it was cancelled");
            let error = TaskError { fault, chain: chain.clone() };
            match actor.filter(|actor| *actor == first) {
                Some(actor) => host.kill(actor, false),
                None => host.stop(first, error),
            }
        }
    });
    settle();
}

/// Runs all steps that can run.
pub(super) fn settle() {
    while let Some(step) = host(ProgramHost::next) {
        match step {
            Step::Start(number) => advance(number, false),
            Step::Resume(number) => advance(number, true),
            Step::Restart(actor) => super::actors::restart_actor(actor),
            Step::Checkpoint(actor) => super::actors::checkpoint_actor(actor),
        }
    }
}

/// Starts a call, or resumes it.
fn advance(number: u64, started: bool) {
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
    let (has_ended, frame, state) = match failed.filter(|_| !started) {
        Some(error) => {
            (Err(postcard::from_bytes(&error).expect("an error is written here")), CallFrame::default(), state)
        }
        None => run(chain, state, number, || match started {
            true => actor::resume(number),
            false => task::run(definition.index(), number, &arguments),
        }),
    };
    host(|host| host.handle_progress(number, has_ended, frame, state));
}

/// Runs a part of a call in an instance with this state. Returns its result, its requests to the host and the new
/// state.
pub(super) fn run(
    chain: Vec<String>,
    state: ActorState,
    seed: u64,
    part: impl FnOnce() -> Result<bool, String>,
) -> (Result<bool, TaskError>, CallFrame, ActorState) {
    host(|host| host.frames.push(CallFrame { chain, ..CallFrame::default() }));
    let (before, seed) = (actor::swap_state(state), random::set_seed(seed));
    let ended = catch_unwind(AssertUnwindSafe(|| actor::with_current_call(None, part)));
    random::set_seed(seed);
    let state = actor::swap_state(before);
    let mut frame = host(|host| host.frames.pop()).expect("it was pushed above");
    frame.panicked = ended.is_err();
    let ended = result(ended, frame.failure.take(), &frame.chain);
    (ended, frame, state)
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

impl Call {
    pub(super) fn waits(&self) -> bool {
        matches!(self.state, CallState::Waiting(_))
    }

    /// Copies the call for the actor that it creates: the first time and for restarts.
    pub(super) fn creation_call(&self) -> CreationCall {
        CreationCall {
            definition: self.definition,
            chain: self.chain.clone(),
            arguments: self.arguments.clone(),
            needs: self.needs.clone(),
            refs: self.refs.clone(),
        }
    }
}

impl ProgramHost {
    /// Names of the running tasks, followed by this one.
    pub(super) fn chain_to(&self, name: &str) -> Vec<String> {
        let mut chain = self.frames.last().map(|frame| frame.chain.clone()).unwrap_or_default();
        chain.push(name.to_owned());
        chain
    }

    /// Returns the next step. Calls run in the order of submission, and the calls of an actor in exactly this order.
    fn next(&mut self) -> Option<Step> {
        if let Some(step) = self.next_actor_step() {
            return Some(step);
        }
        let mut passed = Vec::new();
        let numbers: Vec<u64> = self.calls.keys().copied().collect();
        numbers.into_iter().find_map(|number| {
            let call = &self.calls[&number];
            let (actor, kind) = (call.actor, call.definition.kind);
            match &call.state {
                CallState::Running => None,
                CallState::Waiting(objects) => {
                    let objects = objects.clone();
                    let is_free = actor.and_then(|actor| self.actors.get(&actor)).is_some_and(|a| !a.is_busy());
                    let goes_on = is_free && objects.into_iter().any(|object| self.is_there(object));
                    goes_on.then_some(Step::Resume(number))
                }
                CallState::Queued => {
                    let needs = call.needs.clone();
                    if let Some(actor) = actor {
                        let is_first = !passed.contains(&actor);
                        passed.push(actor);
                        if !is_first || !self.is_free_for(actor, kind) {
                            return None;
                        }
                    }
                    needs.into_iter().all(|object| self.is_there(object)).then_some(Step::Start(number))
                }
            }
        })
    }

    /// Updates a call after a part of it has run.
    fn handle_progress(
        &mut self,
        number: u64,
        has_ended: Result<bool, TaskError>,
        frame: CallFrame,
        state: ActorState,
    ) {
        let CallFrame { mut returned, awaits, panicked, .. } = frame;
        let call = self.calls.get_mut(&number).expect("what runs is not ended by others");
        let is_whole = matches!(has_ended, Ok(true)) && returned.len() == call.returns as usize;
        let ended = match has_ended {
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
        // Unpins the objects of values that are no results.
        returned.iter().for_each(|(_, contains)| self.unpin(contains));
        match actor {
            Some(actor) => self.handle_actor_progress(actor, number, (state, panicked), ended),
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

pub(super) fn encoded(error: &TaskError) -> Vec<u8> {
    postcard::to_stdvec(error).expect("an error is texts")
}
