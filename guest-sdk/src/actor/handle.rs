//! Handles to actors, and calls of their methods.

use std::marker::PhantomData;
use std::rc::Rc;

use sandbar_core::{RequestOptions, TaskError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::host;
use crate::registry::TaskDefinition;
use crate::task::{Arg, CallBuilder, Handles, ObjectRef, fetch, release_dropped};

/// The value of a handle's object: the handle of an existing actor with the requested name, if there is one.
#[derive(Serialize, Deserialize)]
struct HandleAlias(Option<ObjectRef<HandleAlias>>);

/// The content of a handle to an actor.
pub struct ActorRef {
    handle: ObjectRef<HandleAlias>,
    /// Options of calls through this handle, if they differ from the defaults.
    options: Option<Rc<RequestOptions>>,
}

impl ActorRef {
    /// The number of the handle's object, for display.
    pub fn number(&self) -> u64 {
        self.handle.number()
    }
}

impl Clone for ActorRef {
    fn clone(&self) -> Self {
        ActorRef { handle: self.handle.clone(), options: self.options.clone() }
    }
}

impl Serialize for ActorRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.handle.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ActorRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ObjectRef::deserialize(deserializer).map(|handle| ActorRef { handle, options: None })
    }
}

/// Operations on every handle to an actor. A method of the actor with the same name takes precedence:
/// `ActorHandle::kill(&handle)` calls this trait's.
pub trait ActorHandle: Sized {
    /// For the macro only.
    #[doc(hidden)]
    fn from_actor(actor: ActorRef) -> Self;

    /// For the macro only.
    #[doc(hidden)]
    fn as_actor(&self) -> &ActorRef;

    /// Finds the actor of this name, either of this job or detached.
    ///
    /// # Errors
    /// [`Code::NoActor`](crate::Code::NoActor) when no actor has this name. An actor of another type is found, but its
    /// calls fail with the same code.
    fn find(name: &str) -> Result<Self, TaskError> {
        release_dropped();
        let found: ObjectRef<ObjectRef<HandleAlias>> = ObjectRef::from_number(host::find(name));
        found.get().map(|handle| Self::from_actor(ActorRef { handle, options: None }))
    }

    /// Waits until the actor is created.
    ///
    /// # Errors
    /// The error of its creation.
    fn ready(&self) -> Result<(), TaskError> {
        let mut handle = self.as_actor().handle.clone();
        release_dropped();
        while let HandleAlias(Some(other)) = fetch(handle.number(), None)? {
            handle = other;
        }
        Ok(())
    }

    /// Kills the actor. Its unfinished calls fail with [`Code::ActorDied`](crate::Code::ActorDied).
    fn kill(&self) {
        host::kill(self.as_actor().handle.number(), false);
    }

    /// Kills the actor and restarts it, if its [`Creation::max_restarts`](crate::Creation::max_restarts) allow it.
    fn restart(&self) {
        host::kill(self.as_actor().handle.number(), true);
    }

    /// Returns a handle whose calls have these options.
    #[must_use = "the returned handle has the options, not this one"]
    fn with(&self, options: CallOptions) -> Self {
        let handle = self.as_actor().handle.clone();
        Self::from_actor(ActorRef { handle, options: Some(Rc::new(options.0)) })
    }
}

impl<H: ActorHandle> Handles for H {
    const COUNT: u32 = 1;

    fn from_first(number: u64) -> Self {
        H::from_actor(ActorRef { handle: ObjectRef::from_number(number), options: None })
    }
}

/// For a task whose parameter is a handle.
impl<H: ActorHandle> From<&H> for Arg<H> {
    fn from(handle: &H) -> Self {
        Arg::from(H::from_actor(handle.as_actor().clone()))
    }
}

/// Options for calls of an actor's methods: see [`ActorHandle::with`]. A method that exceeds its time limit while it
/// computes ends together with its actor.
#[derive(Debug, Clone, Default)]
pub struct CallOptions(RequestOptions);

impl CallOptions {
    /// The default options.
    pub fn new() -> CallOptions {
        CallOptions::default()
    }

    sandbar_core::call_setters!("[`Creation::max_task_retries`](crate::Creation::max_task_retries) of the actor");

    fn with(mut self, set: impl FnOnce(&mut RequestOptions)) -> Self {
        set(&mut self.0);
        self
    }
}

/// A method of an actor, bound to a handle.
#[derive(Debug)]
pub struct Method<F, R> {
    definition: &'static TaskDefinition,
    /// Number of the handle's object. The caller's handle keeps it alive.
    actor: u64,
    options: Option<Rc<RequestOptions>>,
    method: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Method<F, R> {
    /// For the macro only.
    pub fn new(definition: &'static TaskDefinition, actor: &ActorRef) -> Self {
        Method { definition, actor: actor.handle.number(), options: actor.options.clone(), method: PhantomData }
    }

    pub(crate) fn begin(&self) -> CallBuilder {
        CallBuilder::begin(self.definition, self.options.as_deref(), Some(self.actor))
    }
}
