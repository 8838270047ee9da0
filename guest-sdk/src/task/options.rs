//! Options of a task's call.

use std::marker::PhantomData;
use std::time::Duration;

use sandbar_core::{RequestOptions, RetryOn, Strategy};

use super::call_builder::CallBuilder;
use super::group::PlacementGroup;
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

    /// Display name of the call; the function's name by default.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = Some(name.into()))
    }

    /// Processors, with a precision of 1/10,000; 1 by default.
    pub fn cpus(self, cpus: f64) -> Self {
        self.with(|options| options.cpus = Some(cpus))
    }

    /// GPUs, with a precision of 1/10,000; 0 by default.
    pub fn gpus(self, gpus: f64) -> Self {
        self.with(|options| options.gpus = Some(gpus))
    }

    /// Memory to reserve, in bytes; none by default.
    pub fn memory(self, bytes: u64) -> Self {
        self.with(|options| options.memory = Some(bytes))
    }

    /// Amount of a custom resource of a node.
    pub fn resource(self, name: impl Into<String>, amount: f64) -> Self {
        self.with(|options| options.resources.push((name.into(), amount)))
    }

    /// Maximum number of retries after the worker's death or an error of `retry_on`; 3 by default.
    pub fn max_retries(self, retries: u32) -> Self {
        self.with(|options| options.max_retries = Some(retries))
    }

    /// Errors that cause a retry: [`RetryOn::All`], or codes such as `[Code::TimeOut, Code::Refused]`; only the
    /// worker's death by default.
    pub fn retry_on(self, errors: impl Into<RetryOn>) -> Self {
        self.with(|options| options.retry_on = errors.into())
    }

    /// Maximum wall time of an attempt, in milliseconds (rounded up, at least one); unlimited by default.
    pub fn timeout(self, time: Duration) -> Self {
        self.with(|options| options.timeout_ms = Some(milliseconds(time)))
    }

    /// Priority: tasks with a higher number run first; 0 by default.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|options| options.priority = priority)
    }

    /// Places the task in this bundle of a placement group, whose resources it uses. For any bundle:
    /// [`Submission::placement_any`].
    pub fn placement(self, group: &PlacementGroup, bundle: u32) -> Self {
        self.with(|options| options.strategy = group.strategy(Some(bundle)))
    }

    /// Places the task in any bundle of a placement group that has room.
    pub fn placement_any(self, group: &PlacementGroup) -> Self {
        self.with(|options| options.strategy = group.strategy(None))
    }

    /// Placement of a task outside placement groups; any node with room by default.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = strategy)
    }
}

/// Converts to milliseconds, rounded up, at least one.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}
