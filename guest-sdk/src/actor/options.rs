//! Options for creating an actor.

use std::marker::PhantomData;

use sandbar_core::RequestOptions;

use crate::registry::TaskDefinition;
use crate::task::{CallBuilder, placement_setters, release_dropped};

/// A builder for actors: the `options()` of an [actor](macro@crate::actor). It can be submitted any number of times.
/// The requested resources are reserved during the actor's life.
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

    /// Sets the unique name for [`ActorHandle::find`](crate::ActorHandle::find).
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = Some(name.into()))
    }

    sandbar_core::actor_setters!();
    sandbar_core::resource_setters!("0: the actor shares CPUs");
    placement_setters!("actor");
}
