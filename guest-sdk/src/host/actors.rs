//! Actors of the test host, in this process and thread.

use sandbar_core::{Code, Fault, RequestOptions, TaskError};

use super::actor::{Actor, CreationCall};
use super::call::{Call, CallResult, CallState};
use super::calls::{CallRun, run};
use super::encoded_value::encoded;
use super::program_host::{ProgramHost, host};
use crate::actor::ActorState;
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::Outcome;
use crate::registry::{TaskDefinition, tasks};
use crate::task;

/// Default maximum number of concurrently waiting calls.
const CONCURRENCY: u32 = 1000;

pub(crate) fn find(name: &str) -> u64 {
    host(|host| match host.names.get(name).copied() {
        Some(actor) => {
            let bytes = postcard::to_stdvec(&actor).expect("a number is bytes");
            host.add(Outcome::Value, bytes, vec![actor])
        }
        None => {
            let fault = Fault::new(Code::NoActor, format!("there is no actor `{name}`"));
            let error = TaskError { fault, chain: host.chain_to("find") };
            host.add(Outcome::Failed, encoded(&error), Vec::new())
        }
    })
}

/// Restarts an actor from its last checkpoint, or from its original arguments.
pub(super) fn restart_actor(number: u64) {
    task::release_dropped();
    let CreationCall { definition, chain, arguments, refs, .. } = host(|host| {
        let actor = host.actors.get_mut(&number).expect("it was found just now");
        (actor.restart_pending, actor.busy) = (false, true);
        actor.creation_call()
    });
    host(|host| host.hold(&refs));
    let run = run(chain, None, number, || task::run(definition.index(), number, &arguments));
    host(|host| host.handle_restart(number, run));
}

/// Runs an actor's `checkpoint`.
pub(super) fn checkpoint_actor(number: u64) {
    task::release_dropped();
    let (definition, chain, state) = host(|host| {
        let actor = host.actors.get_mut(&number).expect("it was found just now");
        let [checkpoint, _] = actor.hooks.expect("it has one");
        actor.calls_since_checkpoint = 0;
        (checkpoint, actor.chain_of(checkpoint), actor.take_state())
    });
    let run = run(chain, state, number, || task::run(definition.index(), number, &[0]));
    host(|host| host.handle_checkpoint(number, run));
}

/// Returns the type of an actor's function: `Counter` for `Counter.new`.
fn type_of(definition: &TaskDefinition) -> &'static str {
    definition.name.rsplit_once('.').map_or(definition.name, |(actor_type, _)| actor_type)
}

fn hooks(actor_type: &str) -> Option<[&'static TaskDefinition; 2]> {
    let all = tasks();
    let find =
        |kind| all.iter().copied().find(|definition| definition.kind == kind && type_of(definition) == actor_type);
    Some([find(TaskKind::Checkpoint)?, find(TaskKind::Restore)?])
}

impl ProgramHost {
    /// Returns the actor of a handle, which may be an alias of another actor's handle.
    pub(super) fn resolve_alias(&self, handle: u64) -> u64 {
        let other = self.value(handle).and_then(|bytes| postcard::from_bytes::<Option<u64>>(bytes).ok());
        other.flatten().map_or(handle, |other| self.resolve_alias(other))
    }

    /// Admits a call that creates an actor. Returns the fault of a rejected one.
    pub(super) fn admit_actor(&mut self, number: u64, options: RequestOptions) -> Option<Fault> {
        let (name, options) = (options.name, options.actor.map(|actor| *actor).unwrap_or_default());
        if let Some((name, other)) = name.as_ref().and_then(|name| Some((name, *self.names.get(name)?))) {
            if !options.get_if_exists {
                return Some(Fault::new(Code::NameTaken, format!("there is an actor `{name}` already")));
            }
            self.pin(&[other]);
            let meant = postcard::to_stdvec(&Some(other)).expect("a number is bytes");
            self.finish(number, Ok(vec![(meant, vec![other])]));
            return None;
        }
        let call = self.calls.get_mut(&number).expect("it was added just now");
        let creation = call.creation_call();
        if options.detached && !(creation.needs.is_empty() && creation.refs.is_empty()) {
            let message = "is detached and takes objects of its job: pass values instead";
            return Some(Fault::new(Code::BadRequest, message));
        }
        call.actor = Some(number);
        self.pin(&creation.needs);
        self.pin(&creation.refs);
        if options.detached {
            self.pin(&[number]);
        }
        if let Some(name) = &name {
            self.names.insert(name.clone(), number);
        }
        let hooks = hooks(type_of(creation.definition));
        let actor = Actor {
            creation,
            hooks,
            name,
            options,
            state: None,
            busy: false,
            kill_requested: None,
            restart_pending: false,
            restarts: 0,
            calls_since_checkpoint: 0,
            saved: None,
            died: None,
        };
        self.actors.insert(number, actor);
        None
    }

    /// Admits a call of an actor's method. Returns the fault of a rejected one.
    pub(super) fn admit_method(&mut self, number: u64, handle: u64) -> Option<Fault> {
        let number_of_actor = self.resolve_alias(handle);
        let failed_creation = self.failed(&[handle]).map(|error| postcard::from_bytes::<TaskError>(&error));
        let Some(actor) = self.actors.get(&number_of_actor) else {
            let missing = || Fault::new(Code::ActorDied, format!("actor {handle} does not exist or was removed"));
            return Some(failed_creation.and_then(Result::ok).map_or_else(missing, |error| error.fault));
        };
        if let Some(died) = &actor.died {
            return Some(died.clone());
        }
        let (method, constructor) = (self.calls[&number].definition, actor.creation.definition);
        if type_of(method) != type_of(constructor) {
            let message = format!("actor {handle} is a `{}`, and has no `{}`", type_of(constructor), method.name);
            return Some(Fault::new(Code::NoActor, message));
        }
        let pending =
            self.calls.iter().filter(|(n, call)| call.actor == Some(number_of_actor) && **n != number_of_actor);
        let pending = pending.count() as u64;
        if actor.options.max_pending_calls.is_some_and(|max| pending >= max) {
            let message = format!("actor {handle} has {pending} unfinished calls, which is its limit");
            return Some(Fault::new(Code::PendingCalls, message));
        }
        self.calls.get_mut(&number).expect("it was added just now").actor = Some(number_of_actor);
        self.pin(&[number_of_actor]);
        None
    }

    /// Returns whether a call of this kind can start.
    pub(super) fn is_free_for(&self, number: u64, kind: TaskKind) -> bool {
        let Some(actor) = self.actors.get(&number) else { return false };
        let waits = |call: &&Call| call.actor == Some(number) && call.waits();
        let waiting = || self.calls.values().filter(waits).count() as u32;
        match kind {
            TaskKind::Make => true,
            _ if actor.busy || actor.state.is_none() => false,
            TaskKind::Shared => waiting() < actor.options.max_concurrency.unwrap_or(CONCURRENCY).max(1),
            _ => waiting() == 0,
        }
    }

    /// Updates an actor after a part of a call: the new state, whether the call panicked, and its result if it has
    /// finished.
    pub(super) fn handle_actor_progress(
        &mut self,
        number: u64,
        call: u64,
        state: ActorState,
        panicked: bool,
        ended: Option<CallResult>,
    ) {
        self.pin(&[number]);
        self.set_idle(number, call, state, ended.is_some());
        let kill_requested = self.actors.get_mut(&number).and_then(|actor| actor.kill_requested.take());
        match ended {
            // A failed creation makes the handle fail, with the actor's error.
            Some(Err(error)) if call == number => {
                self.calls.get_mut(&call).expect("it was run just now").state = CallState::Queued;
                self.handle_failure(number, false, &error);
            }
            Some(Err(error)) if panicked => {
                self.finish(call, Err(error.clone()));
                self.handle_failure(number, true, &error);
            }
            ended => {
                ended.into_iter().for_each(|ended| self.finish(call, ended));
                kill_requested.into_iter().for_each(|restart| self.kill(number, restart));
            }
        }
        self.unpin(&[number]);
    }

    /// Marks an actor as idle after a part of a call.
    fn set_idle(&mut self, number: u64, call: u64, state: ActorState, has_ended: bool) {
        match self.actors.get_mut(&number) {
            Some(actor) => {
                (actor.busy, actor.state) = (false, state);
                actor.calls_since_checkpoint += u32::from(has_ended && call != number);
            }
            None => self.deferred.states.push(state),
        }
    }

    fn handle_restart(&mut self, number: u64, run: CallRun) {
        let CallRun { outcome, frame, state } = run;
        frame.returned.iter().for_each(|(_, contains)| self.unpin(contains));
        self.set_idle(number, number, state, true);
        let kill_requested = self.actors.get_mut(&number).and_then(|actor| actor.kill_requested.take());
        match (outcome, kill_requested) {
            (Err(error), _) => self.handle_failure(number, false, &error),
            (Ok(_), Some(restart)) => self.kill(number, restart),
            (Ok(_), None) => {}
        }
    }

    fn handle_checkpoint(&mut self, number: u64, run: CallRun) {
        let CallRun { outcome, mut frame, state } = run;
        self.set_idle(number, number, state, true);
        match (outcome, self.actors.get_mut(&number)) {
            (Ok(_), Some(actor)) => {
                let before = std::mem::replace(&mut actor.saved, frame.returned.pop());
                self.unpin(&before.map(|(_, contains)| contains).unwrap_or_default());
            }
            (Err(error), _) => self.handle_failure(number, true, &error),
            (Ok(_), None) => frame.returned.iter().for_each(|(_, contains)| self.unpin(contains)),
        }
    }

    /// Kills an actor, now or after the running part of its call.
    pub(super) fn kill(&mut self, number: u64, restart: bool) {
        let Some(actor) = self.actors.get_mut(&number) else { return };
        if actor.busy {
            actor.kill_requested = Some(restart);
        } else if restart {
            let fault = Fault::new(Code::ActorDied, "a restart was requested");
            self.handle_failure(number, true, &TaskError { fault, chain: Vec::new() });
        } else {
            self.terminate_actor(number, "was killed, or its last handle was dropped");
        }
    }

    /// Handles an actor's failure. Restarts the actor if `may` and its options allow it.
    fn handle_failure(&mut self, number: u64, may: bool, error: &TaskError) {
        let Some(actor) = self.actors.get_mut(&number).filter(|actor| actor.died.is_none()) else { return };
        let restarts = may && actor.restarts < actor.options.max_restarts;
        if restarts {
            (actor.restarts, actor.calls_since_checkpoint, actor.restart_pending) = (actor.restarts + 1, 0, true);
            self.deferred.states.extend(actor.state.take().map(Some));
        }
        self.pin(&[number]);
        let message = format!("the actor died during the call: {}", error.fault.message);
        self.stop_calls(number, &Fault::new(Code::ActorDied, message), |call| call.waits());
        if !restarts {
            self.terminate_actor(number, &format!("has died: {}", error.fault.message));
        }
        self.unpin(&[number]);
    }

    /// Ends an actor for good.
    fn terminate_actor(&mut self, number: u64, reason: &str) {
        let Some(actor) = self.actors.get_mut(&number).filter(|actor| actor.died.is_none()) else { return };
        let message = format!("actor `{}` {reason}", actor.name.as_deref().unwrap_or(actor.creation.definition.name));
        let died = Fault::new(Code::ActorDied, message);
        (actor.died, actor.restart_pending) = (Some(died.clone()), false);
        let is_detached = actor.options.detached;
        let released = self.forget_actor(number);
        self.pin(&[number]);
        self.stop_calls(number, &died, |_| true);
        self.unpin(&released);
        self.unpin(&[number][..usize::from(is_detached)]);
        self.unpin(&[number]);
    }

    /// Removes an actor without handles, and therefore without calls.
    pub(super) fn drop_actor(&mut self, number: u64) {
        if self.actors.contains_key(&number) {
            let released = self.forget_actor(number);
            self.actors.remove(&number);
            let fault = Fault::new(Code::Cancelled, "its last handle was dropped");
            let chain = Vec::new();
            self.stop(number, TaskError { fault, chain });
            self.unpin(&released);
        }
    }

    /// Removes the name, the state and the checkpoint. Returns the objects that the actor referred to.
    fn forget_actor(&mut self, number: u64) -> Vec<u64> {
        let Some(actor) = self.actors.get_mut(&number) else { return Vec::new() };
        self.deferred.states.extend(actor.state.take().map(Some));
        let mut released = std::mem::take(&mut actor.creation.needs);
        released.append(&mut actor.creation.refs);
        released.extend(actor.saved.take().map(|(_, contains)| contains).unwrap_or_default());
        if let Some(name) = actor.name.as_ref().filter(|name| self.names.get(*name) == Some(&number)) {
            self.names.remove(name);
        }
        released
    }

    /// Stops calls of an actor that are not running.
    fn stop_calls(&mut self, number: u64, fault: &Fault, which: impl Fn(&Call) -> bool) {
        let calls = self.calls.iter().filter(|(_, call)| call.actor == Some(number) && which(call));
        let calls: Vec<_> = calls.map(|(number, call)| (*number, call.chain.clone())).collect();
        for (call, chain) in calls {
            self.stop(call, TaskError { fault: fault.clone(), chain });
        }
    }
}
