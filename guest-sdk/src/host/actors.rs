//! Actors of the test host, in this process and thread.

use sandbar_core::{ActorOptions, Argument, Code, Fault, RequestOptions, TaskError};

use super::calls::{Call, Ended, Progress, Running, Step, encoded, run, settle};
use super::objects::{Host, Returned, host};
use crate::actor::State;
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::Outcome;
use crate::registry::{Offered, tasks};
use crate::task;

/// Default maximum number of concurrently waiting calls.
const CONCURRENCY: u32 = 1000;

pub(super) struct Actor {
    made_by: Making,
    /// Its `checkpoint` and `restore`.
    hooks: Option<[&'static Offered; 2]>,
    name: Option<String>,
    options: ActorOptions,
    /// None before the creation, and while a call uses it.
    state: State,
    /// Whether a part of a call runs, or the actor is being created.
    entered: bool,
    /// Set when the actor was killed while it ran: whether it restarts.
    doomed: Option<bool>,
    to_remake: bool,
    restarts: u32,
    /// Calls that have finished since the last checkpoint.
    unsaved: u32,
    saved: Option<Returned>,
    died: Option<Fault>,
}

/// The call that creates an actor.
#[derive(Clone)]
pub(super) struct Making {
    pub(super) offered: &'static Offered,
    pub(super) chain: Vec<String>,
    pub(super) arguments: Vec<u8>,
    /// Objects in place of arguments.
    pub(super) needs: Vec<u64>,
    /// Objects inside arguments.
    pub(super) refs: Vec<u64>,
}

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

pub(crate) fn kill(actor: u64, restart: bool) {
    host(|host| {
        let actor = host.meant(actor);
        host.kill(actor, restart);
    });
    settle();
}

/// Restarts an actor from its last checkpoint, or from its original arguments.
pub(super) fn remake(number: u64) {
    task::release_gone();
    let Making { offered, chain, arguments, refs, .. } = host(|host| {
        let actor = host.actors.get_mut(&number).expect("it was found just now");
        (actor.to_remake, actor.entered) = (false, true);
        actor.making()
    });
    host(|host| host.hold(&refs));
    let made = run(chain, None, number, || task::run(offered.place(), number, &arguments));
    host(|host| host.remade(number, made));
}

/// Runs an actor's `checkpoint`.
pub(super) fn save(number: u64) {
    task::release_gone();
    let (offered, chain, state) = host(|host| {
        let actor = host.actors.get_mut(&number).expect("it was found just now");
        let [checkpoint, _] = actor.hooks.expect("it has one");
        actor.unsaved = 0;
        (checkpoint, actor.chain_of(checkpoint), actor.enter())
    });
    let saved = run(chain, state, number, || task::run(offered.place(), number, &[0]));
    host(|host| host.saved(number, saved));
}

impl Actor {
    /// Takes the state for a part of a call.
    pub(super) fn enter(&mut self) -> State {
        self.entered = true;
        self.state.take()
    }

    pub(super) fn is_entered(&self) -> bool {
        self.entered
    }

    fn chain_of(&self, hook: &Offered) -> Vec<String> {
        let mut chain = self.made_by.chain.clone();
        chain.pop();
        chain.push(hook.name.to_owned());
        chain
    }

    fn making(&self) -> Making {
        match (&self.saved, self.hooks) {
            (Some((bytes, contains)), Some([_, restore])) => {
                let arguments = postcard::to_stdvec(&[Argument::Value(bytes)][..]).expect("an argument is bytes");
                let (chain, refs) = (self.chain_of(restore), contains.clone());
                Making { offered: restore, chain, arguments, needs: Vec::new(), refs }
            }
            _ => self.made_by.clone(),
        }
    }
}

/// Returns the type of an actor's function: `Counter` for `Counter.new`.
fn type_of(offered: &Offered) -> &'static str {
    offered.name.rsplit_once('.').map_or(offered.name, |(of, _)| of)
}

fn hooks(of: &str) -> Option<[&'static Offered; 2]> {
    let all = tasks();
    let find = |kind| all.iter().copied().find(|offered| offered.kind == kind && type_of(offered) == of);
    Some([find(TaskKind::Checkpoint)?, find(TaskKind::Restore)?])
}

impl Host {
    /// Returns the next step that an actor needs.
    pub(super) fn next_of_actors(&self) -> Option<Step> {
        self.actors.iter().filter(|(_, actor)| !actor.entered).find_map(|(number, actor)| {
            let every = actor.options.checkpoint_every.unwrap_or(1).max(1);
            let is_due = actor.hooks.is_some() && actor.state.is_some() && actor.unsaved >= every;
            match actor.to_remake {
                true => Some(Step::Remake(*number)),
                false => is_due.then_some(Step::Save(*number)),
            }
        })
    }

    /// Returns the actor of a handle, which may be an alias of another actor's handle.
    fn meant(&self, handle: u64) -> u64 {
        let other = self.value(handle).and_then(|bytes| postcard::from_bytes::<Option<u64>>(bytes).ok());
        other.flatten().map_or(handle, |other| self.meant(other))
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
        let made_by = call.making();
        if options.detached && !(made_by.needs.is_empty() && made_by.refs.is_empty()) {
            let message = "outlives its job, and is made with objects of that: pass values";
            return Some(Fault::new(Code::BadRequest, message));
        }
        call.actor = Some(number);
        self.pin(&made_by.needs);
        self.pin(&made_by.refs);
        if options.detached {
            self.pin(&[number]);
        }
        if let Some(name) = &name {
            self.names.insert(name.clone(), number);
        }
        let hooks = hooks(type_of(made_by.offered));
        let actor = Actor {
            made_by,
            hooks,
            name,
            options,
            state: None,
            entered: false,
            doomed: None,
            to_remake: false,
            restarts: 0,
            unsaved: 0,
            saved: None,
            died: None,
        };
        self.actors.insert(number, actor);
        None
    }

    /// Admits a call of an actor's method. Returns the fault of a rejected one.
    pub(super) fn admit_method(&mut self, number: u64, handle: u64) -> Option<Fault> {
        let number_of_actor = self.meant(handle);
        let unmade = self.failed(&[handle]).map(|error| postcard::from_bytes::<TaskError>(&error));
        let Some(actor) = self.actors.get(&number_of_actor) else {
            let gone = || Fault::new(Code::ActorDied, format!("actor {handle} is not there, or not any more"));
            return Some(unmade.and_then(Result::ok).map_or_else(gone, |error| error.fault));
        };
        if let Some(died) = &actor.died {
            return Some(died.clone());
        }
        let (method, make) = (self.calls[&number].offered, actor.made_by.offered);
        if type_of(method) != type_of(make) {
            let message = format!("actor {handle} is a `{}`, and has no `{}`", type_of(make), method.name);
            return Some(Fault::new(Code::NoActor, message));
        }
        let pending =
            self.calls.iter().filter(|(n, call)| call.actor == Some(number_of_actor) && **n != number_of_actor);
        let pending = pending.count() as u64;
        if actor.options.max_pending_calls.is_some_and(|max| pending >= max) {
            let message = format!("actor {handle} has {pending} calls that have not ended, as many as it may");
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
            _ if actor.entered || actor.state.is_none() => false,
            TaskKind::Shared => waiting() < actor.options.max_concurrency.unwrap_or(CONCURRENCY).max(1),
            _ => waiting() == 0,
        }
    }

    /// Updates an actor after a part of a call: the new state, whether the call panicked, and its result if it has
    /// finished.
    pub(super) fn advanced_of_actor(
        &mut self,
        number: u64,
        call: u64,
        (state, panicked): (State, bool),
        ended: Option<Ended>,
    ) {
        self.pin(&[number]);
        self.left(number, call, state, ended.is_some());
        let doomed = self.actors.get_mut(&number).and_then(|actor| actor.doomed.take());
        match ended {
            // A failed creation makes the handle fail, with the actor's error.
            Some(Err(error)) if call == number => {
                self.calls.get_mut(&call).expect("it was run just now").state = Progress::Queued;
                self.lose(number, false, &error);
            }
            Some(Err(error)) if panicked => {
                self.finish(call, Err(error.clone()));
                self.lose(number, true, &error);
            }
            ended => {
                ended.into_iter().for_each(|ended| self.finish(call, ended));
                doomed.into_iter().for_each(|restart| self.kill(number, restart));
            }
        }
        self.unpin(&[number]);
    }

    /// Marks an actor as idle after a part of a call.
    fn left(&mut self, number: u64, call: u64, state: State, has_ended: bool) {
        match self.actors.get_mut(&number) {
            Some(actor) => {
                (actor.entered, actor.state) = (false, state);
                actor.unsaved += u32::from(has_ended && call != number);
            }
            None => self.trash.states.push(state),
        }
    }

    fn remade(&mut self, number: u64, (made, part, state): (Result<bool, TaskError>, Running, State)) {
        part.returned.iter().for_each(|(_, contains)| self.unpin(contains));
        self.left(number, number, state, true);
        let doomed = self.actors.get_mut(&number).and_then(|actor| actor.doomed.take());
        match (made, doomed) {
            (Err(error), _) => self.lose(number, false, &error),
            (Ok(_), Some(restart)) => self.kill(number, restart),
            (Ok(_), None) => {}
        }
    }

    fn saved(&mut self, number: u64, (ended, mut part, state): (Result<bool, TaskError>, Running, State)) {
        self.left(number, number, state, true);
        match (ended, self.actors.get_mut(&number)) {
            (Ok(_), Some(actor)) => {
                let before = std::mem::replace(&mut actor.saved, part.returned.pop());
                self.unpin(&before.map(|(_, contains)| contains).unwrap_or_default());
            }
            (Err(error), _) => self.lose(number, true, &error),
            (Ok(_), None) => part.returned.iter().for_each(|(_, contains)| self.unpin(contains)),
        }
    }

    /// Kills an actor, now or after the running part of its call.
    pub(super) fn kill(&mut self, number: u64, restart: bool) {
        let Some(actor) = self.actors.get_mut(&number) else { return };
        if actor.entered {
            actor.doomed = Some(restart);
        } else if restart {
            let fault = Fault::new(Code::ActorDied, "it was to begin anew");
            self.lose(number, true, &TaskError { fault, chain: Vec::new() });
        } else {
            self.end_actor(number, "was killed, or nobody referred to it any more");
        }
    }

    /// Handles an actor's failure. Restarts the actor if `may` and its options allow it.
    fn lose(&mut self, number: u64, may: bool, error: &TaskError) {
        let Some(actor) = self.actors.get_mut(&number).filter(|actor| actor.died.is_none()) else { return };
        let begins_anew = may && actor.restarts < actor.options.max_restarts;
        if begins_anew {
            (actor.restarts, actor.unsaved, actor.to_remake) = (actor.restarts + 1, 0, true);
            self.trash.states.extend(actor.state.take().map(Some));
        }
        self.pin(&[number]);
        let message = format!("the actor died while it was called: {}", error.fault.message);
        self.stop_calls(number, &Fault::new(Code::ActorDied, message), |call| call.waits());
        if !begins_anew {
            self.end_actor(number, &format!("has died: {}", error.fault.message));
        }
        self.unpin(&[number]);
    }

    /// Ends an actor for good.
    fn end_actor(&mut self, number: u64, what: &str) {
        let Some(actor) = self.actors.get_mut(&number).filter(|actor| actor.died.is_none()) else { return };
        let message = format!("actor `{}` {what}", actor.name.as_deref().unwrap_or(actor.made_by.offered.name));
        let died = Fault::new(Code::ActorDied, message);
        (actor.died, actor.to_remake) = (Some(died.clone()), false);
        let is_detached = actor.options.detached;
        let gone = self.forget_actor(number);
        self.pin(&[number]);
        self.stop_calls(number, &died, |_| true);
        self.unpin(&gone);
        self.unpin(&[number][..usize::from(is_detached)]);
        self.unpin(&[number]);
    }

    /// Removes an actor without handles, and therefore without calls.
    pub(super) fn drop_actor(&mut self, number: u64) {
        if self.actors.contains_key(&number) {
            let gone = self.forget_actor(number);
            self.actors.remove(&number);
            let fault = Fault::new(Code::Cancelled, "nobody refers to it any more");
            let chain = Vec::new();
            self.stop(number, TaskError { fault, chain });
            self.unpin(&gone);
        }
    }

    /// Removes the name, the state and the checkpoint. Returns the objects that the actor referred to.
    fn forget_actor(&mut self, number: u64) -> Vec<u64> {
        let Some(actor) = self.actors.get_mut(&number) else { return Vec::new() };
        self.trash.states.extend(actor.state.take().map(Some));
        let mut gone = std::mem::take(&mut actor.made_by.needs);
        gone.append(&mut actor.made_by.refs);
        gone.extend(actor.saved.take().map(|(_, contains)| contains).unwrap_or_default());
        if let Some(name) = actor.name.as_ref().filter(|name| self.names.get(*name) == Some(&number)) {
            self.names.remove(name);
        }
        gone
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
