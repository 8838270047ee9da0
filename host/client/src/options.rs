//! Options of tasks, of actors and of calls of actors.

use std::time::Duration;

use sandbar_core::{ActorOptions as CoreActorOptions, RequestOptions, RetryOn};

/// Options of a task.
#[derive(Debug, Clone, Default)]
pub struct TaskOptions(pub(crate) RequestOptions);

/// Setters of the resources that a task or an actor requests.
macro_rules! resources {
    () => {
        /// Returns the default options.
        pub fn new() -> Self {
            Self::default()
        }

        /// Sets the number of CPUs, in steps of 1/10,000. Default: 1 for a task, 0 for an actor.
        pub fn cpus(mut self, cpus: f64) -> Self {
            self.0.cpus = Some(cpus);
            self
        }

        /// Sets the number of GPUs, in steps of 1/10,000. Default: 0.
        pub fn gpus(mut self, gpus: f64) -> Self {
            self.0.gpus = Some(gpus);
            self
        }

        /// Sets the memory to reserve, in bytes. Default: 0.
        pub fn memory(mut self, bytes: u64) -> Self {
            self.0.memory = Some(bytes);
            self
        }

        /// Requests an amount of a custom resource of the node.
        pub fn resource(mut self, name: impl Into<String>, amount: f64) -> Self {
            self.0.resources.push((name.into(), amount));
            self
        }
    };
}

/// Setters of name, retries and time limit.
macro_rules! attempts {
    ($retries:literal) => {
        /// Sets the display name. Default: the function's name.
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.0.name = Some(name.into());
            self
        }

        #[doc = concat!("Sets the number of retries after the death of a worker. Default: ", $retries, ".")]
        pub fn max_retries(mut self, retries: u32) -> Self {
            self.0.max_retries = Some(retries);
            self
        }

        /// Sets the errors to retry: [`RetryOn::All`], or codes, as in `[Code::TimeOut, Code::Refused]`. Default: only
        /// the death of the worker or the actor.
        pub fn retry_on(mut self, errors: impl Into<RetryOn>) -> Self {
            self.0.retry_on = errors.into();
            self
        }

        /// Sets the wall-time limit of one attempt, rounded up to milliseconds (at least 1 ms). Default: no limit.
        pub fn timeout(mut self, time: Duration) -> Self {
            let milliseconds = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            self.0.timeout_ms = Some(milliseconds.max(1));
            self
        }
    };
}

impl TaskOptions {
    resources!();
    attempts!("3");

    /// Sets the priority: tasks with higher numbers run first. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.priority = priority;
        self
    }

    /// Sets the number of untaken items at which a generator ([`TaskCall::stream`](crate::TaskCall::stream)) waits.
    /// Default: 64, maximum: 65,536.
    pub fn buffer(mut self, items: u32) -> Self {
        self.0.buffer = Some(items);
        self
    }
}

/// Options of a call of an actor.
#[derive(Debug, Clone, Default)]
pub struct CallOptions(pub(crate) RequestOptions);

impl CallOptions {
    attempts!("[`ActorOptions::max_task_retries`]");

    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Options of an actor: its creation and its lifetime.
#[derive(Debug, Clone, Default)]
pub struct ActorOptions(pub(crate) RequestOptions);

impl ActorOptions {
    resources!();

    fn with_actor(mut self, set: impl FnOnce(&mut CoreActorOptions)) -> Self {
        set(self.0.actor.get_or_insert_default());
        self
    }

    /// Sets the unique name for [`Job::find_actor`](crate::Job::find_actor).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = Some(name.into());
        self
    }

    /// Uses the existing actor of the name, if one exists, instead of creating one.
    pub fn get_if_exists(self) -> Self {
        self.with_actor(|actor| actor.get_if_exists = true)
    }

    /// Detaches the actor: it lives until it is killed, and other jobs of the node can find it. Its arguments are
    /// values, not objects. Default: the actor ends with its job or its last handle.
    pub fn detached(self) -> Self {
        self.with_actor(|actor| actor.detached = true)
    }

    /// Sets the number of restarts after the death of the actor's sandbox or worker. Default: 0.
    pub fn max_restarts(self, restarts: u32) -> Self {
        self.with_actor(|actor| actor.max_restarts = restarts)
    }

    /// Sets the number of retries of a call that was running when the actor died. Default: 0.
    pub fn max_task_retries(self, retries: u32) -> Self {
        self.with_actor(|actor| actor.max_task_retries = retries)
    }

    /// Sets the maximum number of calls that wait or run at the same time. Default: no limit.
    pub fn max_pending_calls(self, calls: u64) -> Self {
        self.with_actor(|actor| actor.max_pending_calls = Some(calls))
    }

    /// Sets the maximum number of concurrent calls. Default: 1000.
    pub fn max_concurrency(self, calls: u32) -> Self {
        self.with_actor(|actor| actor.max_concurrency = Some(calls))
    }

    /// Sets the number of calls between two calls of the actor's `checkpoint`, if it has one. Default: 1.
    pub fn checkpoint_every(self, calls: u32) -> Self {
        self.with_actor(|actor| actor.checkpoint_every = Some(calls))
    }
}
