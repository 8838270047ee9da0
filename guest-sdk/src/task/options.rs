//! How a call of a task is to be run.

use std::marker::PhantomData;
use std::time::Duration;

use sandbar_core::{RequestOptions, RetryOn, Strategy};

use super::call::Call;
use super::group::PlacementGroup;
use crate::registry::Offered;

/// A task with options: what `options()` of a [task](macro@crate::task) gives. It can be submitted any number of times.
#[derive(Debug)]
#[must_use = "it does nothing until it is submitted"]
pub struct Submission<F, R> {
    offered: &'static Offered,
    options: RequestOptions,
    task: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Submission<F, R> {
    /// For the attribute.
    #[doc(hidden)]
    pub fn new(offered: &'static Offered) -> Self {
        Submission { offered, options: RequestOptions::default(), task: PhantomData }
    }

    pub(super) fn into_parts(self) -> (&'static Offered, RequestOptions) {
        (self.offered, self.options)
    }

    pub(super) fn begin(&self) -> Call {
        Call::begin(self.offered, Some(&self.options), None)
    }

    #[cfg(test)]
    pub(super) fn chosen(&self) -> &RequestOptions {
        &self.options
    }

    pub(super) fn with(mut self, set: impl FnOnce(&mut RequestOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// What people call it; the function's name otherwise.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = Some(name.into()))
    }

    /// Processors, to ten thousandths; 1 otherwise.
    pub fn cpus(self, cpus: f64) -> Self {
        self.with(|options| options.cpus = Some(cpus))
    }

    /// Devices, to ten thousandths; 0 otherwise.
    pub fn gpus(self, gpus: f64) -> Self {
        self.with(|options| options.gpus = Some(gpus))
    }

    /// Memory in bytes that is set aside for it; none otherwise.
    pub fn memory(self, bytes: u64) -> Self {
        self.with(|options| options.memory = Some(bytes))
    }

    /// So much of something else that a node was said to have.
    pub fn resource(self, name: impl Into<String>, amount: f64) -> Self {
        self.with(|options| options.resources.push((name.into(), amount)))
    }

    /// How often it is begun again when its worker dies under it, or after what `retry_on` says; 3 otherwise.
    pub fn max_retries(self, retries: u32) -> Self {
        self.with(|options| options.max_retries = Some(retries))
    }

    /// After which errors it is begun again: [`RetryOn::All`], or codes, as in `[Code::TimeOut, Code::Refused]`; only when its
    /// worker dies under it otherwise.
    pub fn retry_on(self, errors: impl Into<RetryOn>) -> Self {
        self.with(|options| options.retry_on = errors.into())
    }

    /// Wall time of an attempt, to milliseconds (and one at least); without a limit otherwise.
    pub fn timeout(self, time: Duration) -> Self {
        self.with(|options| options.timeout_ms = Some(milliseconds(time)))
    }

    /// Tasks of higher numbers come first; 0 otherwise.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|options| options.priority = priority)
    }

    /// It runs in this bundle of a placement group, and takes what it asks for of that. In any of them:
    /// [`Submission::placement_any`].
    pub fn placement(self, group: &PlacementGroup, bundle: u32) -> Self {
        self.with(|options| options.strategy = group.strategy(Some(bundle)))
    }

    /// It runs in whatever bundle of a placement group has room.
    pub fn placement_any(self, group: &PlacementGroup) -> Self {
        self.with(|options| options.strategy = group.strategy(None))
    }

    /// Where it is to run, if not in a placement group: where there is room otherwise.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = strategy)
    }
}

/// At least one.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}
