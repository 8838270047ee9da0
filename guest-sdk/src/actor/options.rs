//! Options for creating an actor.

use std::marker::PhantomData;

use sandbar_core::{ActorOptions, RequestOptions, Strategy};

use crate::registry::TaskDefinition;
use crate::task::{CallBuilder, PlacementGroup, release_dropped};

/// A builder for actors: the `options()` of an [actor](macro@crate::actor). It can be submitted any number of times.
#[derive(Debug)]
#[must_use = "it creates no actor until it is submitted"]
pub struct Creation<F, R> {
    definition: &'static TaskDefinition,
    options: RequestOptions,
    actor: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Creation<F, R> {
    /// For the macro only.
    #[doc(hidden)]
    pub fn new(definition: &'static TaskDefinition) -> Self {
        Creation { definition, options: RequestOptions::default(), actor: PhantomData }
    }

    pub(crate) fn begin(&self) -> CallBuilder {
        // Releases dropped handles first: an actor without handles frees its name.
        release_dropped();
        CallBuilder::begin(self.definition, Some(&self.options), None)
    }

    fn with(mut self, set: impl FnOnce(&mut RequestOptions)) -> Self {
        set(&mut self.options);
        self
    }

    fn with_actor(self, set: impl FnOnce(&mut ActorOptions)) -> Self {
        self.with(|options| set(options.actor.get_or_insert_default()))
    }

    /// Name of the actor, for [`ActorHandle::find`](crate::ActorHandle::find). A name belongs to one actor at a time.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = Some(name.into()))
    }

    /// Returns a handle to the actor of this name if it exists, and creates it otherwise.
    pub fn get_if_exists(self) -> Self {
        self.with_actor(|actor| actor.get_if_exists = true)
    }

    /// Detaches the actor: it lives until it is killed, and other jobs find it by name. By default, an actor lives as
    /// long as its job and its handles. The arguments of a detached actor are values, not objects.
    pub fn detached(self) -> Self {
        self.with_actor(|actor| actor.detached = true)
    }

    /// Maximum number of restarts after the actor's sandbox or worker has died; 0 by default. A restart uses the last
    /// checkpoint, or the original arguments.
    pub fn max_restarts(self, restarts: u32) -> Self {
        self.with_actor(|actor| actor.max_restarts = restarts)
    }

    /// Maximum number of retries of a call that was running when the actor died; 0 by default.
    pub fn max_task_retries(self, retries: u32) -> Self {
        self.with_actor(|actor| actor.max_task_retries = retries)
    }

    /// Maximum number of queued and running calls; unlimited by default. Further calls fail with
    /// [`Code::PendingCalls`](crate::Code::PendingCalls).
    pub fn max_pending_calls(self, calls: u64) -> Self {
        self.with_actor(|actor| actor.max_pending_calls = Some(calls))
    }

    /// Maximum number of concurrently waiting calls; 1000 by default.
    pub fn max_concurrency(self, calls: u32) -> Self {
        self.with_actor(|actor| actor.max_concurrency = Some(calls))
    }

    /// Checkpoint interval in calls, if the actor has `checkpoint`; 1 by default.
    pub fn checkpoint_every(self, calls: u32) -> Self {
        self.with_actor(|actor| actor.checkpoint_every = Some(calls))
    }

    /// Processors reserved during the actor's life, with a precision of 1/10,000; 0 by default: the actor shares
    /// processors.
    pub fn cpus(self, cpus: f64) -> Self {
        self.with(|options| options.cpus = Some(cpus))
    }

    /// GPUs reserved during the actor's life, with a precision of 1/10,000; 0 by default.
    pub fn gpus(self, gpus: f64) -> Self {
        self.with(|options| options.gpus = Some(gpus))
    }

    /// Memory reserved during the actor's life, in bytes; none by default.
    pub fn memory(self, bytes: u64) -> Self {
        self.with(|options| options.memory = Some(bytes))
    }

    /// Amount of a custom resource of a node, reserved during the actor's life.
    pub fn resource(self, name: impl Into<String>, amount: f64) -> Self {
        self.with(|options| options.resources.push((name.into(), amount)))
    }

    /// Places the actor in this bundle of a placement group, whose resources it uses. For any bundle:
    /// [`Creation::placement_any`].
    pub fn placement(self, group: &PlacementGroup, bundle: u32) -> Self {
        self.with(|options| options.strategy = group.strategy(Some(bundle)))
    }

    /// Places the actor in any bundle of a placement group that has room.
    pub fn placement_any(self, group: &PlacementGroup) -> Self {
        self.with(|options| options.strategy = group.strategy(None))
    }

    /// Placement of an actor outside placement groups; any node with room by default.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = strategy)
    }
}
