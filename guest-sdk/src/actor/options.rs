//! How an actor is to be made, and to live.

use std::marker::PhantomData;

use sandbar_core::{ActorOptions, RequestOptions, Strategy};

use crate::registry::Offered;
use crate::task::{Call, PlacementGroup, release_gone};

/// An actor with options: what `options()` of an [actor](macro@crate::actor) gives. It can be made any number of times.
#[derive(Debug)]
#[must_use = "nothing is made until it is submitted"]
pub struct Creation<F, R> {
    offered: &'static Offered,
    options: RequestOptions,
    actor: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Creation<F, R> {
    /// For the attribute.
    #[doc(hidden)]
    pub fn new(offered: &'static Offered) -> Self {
        Creation { offered, options: RequestOptions::default(), actor: PhantomData }
    }

    pub(crate) fn begin(&self) -> Call {
        // With an actor that nobody here holds any more its name goes.
        release_gone();
        Call::begin(self.offered, Some(&self.options), None)
    }

    fn with(mut self, set: impl FnOnce(&mut RequestOptions)) -> Self {
        set(&mut self.options);
        self
    }

    fn living(self, set: impl FnOnce(&mut ActorOptions)) -> Self {
        self.with(|options| set(options.actor.get_or_insert_default()))
    }

    /// By which it is found ([`ActorHandle::find`](crate::ActorHandle::find)). There is one actor of a name.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = Some(name.into()))
    }

    /// The actor of that name is meant, if there is one; it is made otherwise.
    pub fn get_if_exists(self) -> Self {
        self.living(|actor| actor.get_if_exists = true)
    }

    /// It lives until it is killed, and other jobs find it; as long as its job and its handles otherwise. It is made of
    /// values, not of objects.
    pub fn detached(self) -> Self {
        self.living(|actor| actor.detached = true)
    }

    /// How often it begins anew when its sandbox or its worker has ended: with what its last checkpoint gave, or else with
    /// what it was made of; 0 otherwise.
    pub fn max_restarts(self, restarts: u32) -> Self {
        self.living(|actor| actor.max_restarts = restarts)
    }

    /// How often a call is begun again that was begun when it died; 0 otherwise.
    pub fn max_task_retries(self, retries: u32) -> Self {
        self.living(|actor| actor.max_task_retries = retries)
    }

    /// So many calls may wait for it, or run, at once: those over it fail with
    /// [`Code::PendingCalls`](crate::Code::PendingCalls); without a limit otherwise.
    pub fn max_pending_calls(self, calls: u64) -> Self {
        self.living(|actor| actor.max_pending_calls = Some(calls))
    }

    /// So many calls that wait may be begun at once; 1000 otherwise.
    pub fn max_concurrency(self, calls: u32) -> Self {
        self.living(|actor| actor.max_concurrency = Some(calls))
    }

    /// After how many calls its `checkpoint` is asked, if it has one; 1 otherwise.
    pub fn checkpoint_every(self, calls: u32) -> Self {
        self.living(|actor| actor.checkpoint_every = Some(calls))
    }

    /// Processors that it has for itself while it lives, to ten thousandths; 0 otherwise: it takes its turn.
    pub fn cpus(self, cpus: f64) -> Self {
        self.with(|options| options.cpus = Some(cpus))
    }

    /// Devices that it has for itself while it lives, to ten thousandths; 0 otherwise.
    pub fn gpus(self, gpus: f64) -> Self {
        self.with(|options| options.gpus = Some(gpus))
    }

    /// Memory in bytes that is set aside for it while it lives; none otherwise.
    pub fn memory(self, bytes: u64) -> Self {
        self.with(|options| options.memory = Some(bytes))
    }

    /// So much of something else that a node was said to have, while it lives.
    pub fn resource(self, name: impl Into<String>, amount: f64) -> Self {
        self.with(|options| options.resources.push((name.into(), amount)))
    }

    /// It lives in this bundle of a placement group, and takes what it asks for of that. In any of them:
    /// [`Creation::placement_any`].
    pub fn placement(self, group: &PlacementGroup, bundle: u32) -> Self {
        self.with(|options| options.strategy = group.strategy(Some(bundle)))
    }

    /// It lives in whatever bundle of a placement group has room.
    pub fn placement_any(self, group: &PlacementGroup) -> Self {
        self.with(|options| options.strategy = group.strategy(None))
    }

    /// Where it is to live, if not in a placement group: where there is room otherwise.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = strategy)
    }
}
