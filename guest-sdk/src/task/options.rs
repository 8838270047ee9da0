//! Options of a task's call.

use std::marker::PhantomData;

use sandbar_core::RequestOptions;

use super::call_builder::CallBuilder;
use super::group::placement_setters;
use crate::registry::TaskDefinition;

/// A builder for calls: the `options()` of a [task](macro@crate::task). It can be submitted any number of times.
#[derive(Debug)]
#[must_use = "it does nothing until it is submitted"]
pub struct Submission<F, R> {
    definition: &'static TaskDefinition,
    options: RequestOptions,
    task: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Submission<F, R> {
    /// For the macro only.
    #[doc(hidden)]
    pub fn new(definition: &'static TaskDefinition) -> Self {
        Submission { definition, options: RequestOptions::default(), task: PhantomData }
    }

    pub(super) fn into_parts(self) -> (&'static TaskDefinition, RequestOptions) {
        (self.definition, self.options)
    }

    pub(super) fn begin(&self) -> CallBuilder {
        CallBuilder::begin(self.definition, Some(&self.options), None)
    }

    #[cfg(test)]
    pub(super) fn chosen(&self) -> &RequestOptions {
        &self.options
    }

    pub(super) fn with(mut self, set: impl FnOnce(&mut RequestOptions)) -> Self {
        set(&mut self.options);
        self
    }

    sandbar_core::resource_setters!("1");
    sandbar_core::call_setters!("3");
    placement_setters!("task");

    /// Sets the priority: tasks with higher numbers run first. Default: 0.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|options| options.priority = priority)
    }
}
