//! Handles to actors, and calls of their methods.

use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

use sandbar_core::{RequestOptions, RetryOn, TaskError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::host;
use crate::registry::Offered;
use crate::task::{Arg, Call, Handles, ObjectRef, fetch, milliseconds, release_gone};

/// The value of a handle: that of the actor that is meant instead, if there was one of its name.
#[derive(Serialize, Deserialize)]
struct Made(Option<ObjectRef<Made>>);

/// What a handle to an actor consists of.
pub struct ActorRef {
    handle: ObjectRef<Made>,
    /// How calls by it are to be run, where that is not as usual.
    options: Option<Rc<RequestOptions>>,
}

impl ActorRef {
    /// For people.
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

/// What can be done with every handle to an actor. A method of the actor's own that is called the same comes first:
/// `ActorHandle::kill(&handle)` is this one.
pub trait ActorHandle: Sized {
    /// For the attribute.
    #[doc(hidden)]
    fn from_actor(actor: ActorRef) -> Self;

    /// For the attribute.
    #[doc(hidden)]
    fn as_actor(&self) -> &ActorRef;

    /// The actor of this name, of this job or detached.
    ///
    /// # Errors
    /// [`Code::NoActor`](crate::Code::NoActor) when there is none. One of another type is only known by its calls, which
    /// fail with the same.
    fn find(name: &str) -> Result<Self, TaskError> {
        release_gone();
        let found: ObjectRef<ObjectRef<Made>> = ObjectRef::held(host::find(name));
        found.get().map(|handle| Self::from_actor(ActorRef { handle, options: None }))
    }

    /// Waits until it is made.
    ///
    /// # Errors
    /// Why it could not be.
    fn ready(&self) -> Result<(), TaskError> {
        let mut handle = self.as_actor().handle.clone();
        release_gone();
        while let Made(Some(other)) = fetch(handle.number(), None)? {
            handle = other;
        }
        Ok(())
    }

    /// Ends it where it is. Calls of it that have not ended fail with [`Code::ActorDied`](crate::Code::ActorDied).
    fn kill(&self) {
        host::kill(self.as_actor().handle.number(), false);
    }

    /// Ends it where it is, and has it begin anew if it may ([`Creation::max_restarts`](crate::Creation::max_restarts)).
    fn restart(&self) {
        host::kill(self.as_actor().handle.number(), true);
    }

    /// A handle whose calls are run with these options.
    #[must_use = "it is another handle that has the options"]
    fn with(&self, options: CallOptions) -> Self {
        let handle = self.as_actor().handle.clone();
        Self::from_actor(ActorRef { handle, options: Some(Rc::new(options.0)) })
    }
}

impl<H: ActorHandle> Handles for H {
    const COUNT: u32 = 1;

    fn from_first(number: u64) -> Self {
        H::from_actor(ActorRef { handle: ObjectRef::held(number), options: None })
    }
}

/// For a task that takes a handle.
impl<H: ActorHandle> From<&H> for Arg<H> {
    fn from(handle: &H) -> Self {
        Arg::from(H::from_actor(handle.as_actor().clone()))
    }
}

/// How calls of an actor are to be run, where that is not as usual: see [`ActorHandle::with`].
#[derive(Debug, Clone, Default)]
pub struct CallOptions(RequestOptions);

impl CallOptions {
    /// As usual.
    pub fn new() -> CallOptions {
        CallOptions::default()
    }

    /// What people call them; the method's name otherwise.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = Some(name.into());
        self
    }

    /// Wall time of an attempt from when the method begins, to milliseconds (and one at least); without a limit otherwise. A
    /// method that is late where it computes ends with its actor.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.0.timeout_ms = Some(milliseconds(time));
        self
    }

    /// How often one is begun again that was begun when the actor died; what the actor says otherwise
    /// ([`Creation::max_task_retries`](crate::Creation::max_task_retries)).
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.0.max_retries = Some(retries);
        self
    }

    /// After which errors one is begun again: [`RetryOn::All`], or codes, as in `[Code::TimeOut, Code::Refused]`; only when the
    /// actor died otherwise.
    pub fn retry_on(mut self, errors: impl Into<RetryOn>) -> Self {
        self.0.retry_on = errors.into();
        self
    }
}

/// A method of an actor.
#[derive(Debug)]
pub struct Method<F, R> {
    offered: &'static Offered,
    /// Its handle, which whoever calls has.
    actor: u64,
    options: Option<Rc<RequestOptions>>,
    method: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Method<F, R> {
    /// For the attribute.
    pub fn new(offered: &'static Offered, actor: &ActorRef) -> Self {
        Method { offered, actor: actor.handle.number(), options: actor.options.clone(), method: PhantomData }
    }

    pub(crate) fn begin(&self) -> Call {
        Call::begin(self.offered, self.options.as_deref(), Some(self.actor))
    }
}
