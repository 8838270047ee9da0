//! How tasks and actors are to be run, and calls of actors, where that is not as usual.

use std::time::Duration;

use sandbar_core::{ActorOptions as Living, RequestOptions, RetryOn};

/// How a task is to be run.
#[derive(Debug, Clone, Default)]
pub struct TaskOptions(pub(crate) RequestOptions);

/// What is said of a task, of an actor, or of both.
macro_rules! resources {
    () => {
        /// As usual.
        pub fn new() -> Self {
            Self::default()
        }

        /// Processors, to ten thousandths; a task has 1 otherwise, and an actor none.
        pub fn cpus(mut self, cpus: f64) -> Self {
            self.0.cpus = Some(cpus);
            self
        }

        /// Devices, to ten thousandths; none otherwise.
        pub fn gpus(mut self, gpus: f64) -> Self {
            self.0.gpus = Some(gpus);
            self
        }

        /// Memory in bytes that is set aside for it; none otherwise.
        pub fn memory(mut self, bytes: u64) -> Self {
            self.0.memory = Some(bytes);
            self
        }

        /// So much of something else that a node was said to have.
        pub fn resource(mut self, name: impl Into<String>, amount: f64) -> Self {
            self.0.resources.push((name.into(), amount));
            self
        }
    };
}

/// How often a call is repeated, and how long it may take.
macro_rules! attempts {
    ($retries:literal) => {
        /// What people call it; its function's name otherwise.
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.0.name = Some(name.into());
            self
        }

        #[doc = concat!("How often it is begun again when its worker dies under it; ", $retries, " otherwise.")]
        pub fn max_retries(mut self, retries: u32) -> Self {
            self.0.max_retries = Some(retries);
            self
        }

        /// After which errors it is begun again: [`RetryOn::All`], or codes, as in `[Code::TimeOut, Code::Refused]`; only
        /// when its worker dies under it, or its actor, otherwise.
        pub fn retry_on(mut self, errors: impl Into<RetryOn>) -> Self {
            self.0.retry_on = errors.into();
            self
        }

        /// Wall time of an attempt, to milliseconds (and one at least); without a limit otherwise.
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

    /// Tasks of higher numbers come first; 0 otherwise.
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.priority = priority;
        self
    }

    /// Of a generator ([`TaskCall::stream`](crate::TaskCall::stream)): how many items there may be that were not taken, when
    /// it waits. 64 otherwise, 65,536 at most.
    pub fn buffer(mut self, items: u32) -> Self {
        self.0.buffer = Some(items);
        self
    }
}

/// How a call of an actor is to be run.
#[derive(Debug, Clone, Default)]
pub struct CallOptions(pub(crate) RequestOptions);

impl CallOptions {
    attempts!("what the actor says");

    /// As usual.
    pub fn new() -> Self {
        Self::default()
    }
}

/// How an actor is to be made, and to live.
#[derive(Debug, Clone, Default)]
pub struct ActorOptions(pub(crate) RequestOptions);

impl ActorOptions {
    resources!();

    fn living(mut self, set: impl FnOnce(&mut Living)) -> Self {
        set(self.0.actor.get_or_insert_default());
        self
    }

    /// By which it is found ([`Job::find_actor`](crate::Job::find_actor)). There is one actor of a name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = Some(name.into());
        self
    }

    /// The actor of that name is meant, if there is one; it is made otherwise.
    pub fn get_if_exists(self) -> Self {
        self.living(|actor| actor.get_if_exists = true)
    }

    /// It lives until it is killed, and other jobs of the node find it; as long as its job and its handles otherwise. It is
    /// made of values, not of objects.
    pub fn detached(self) -> Self {
        self.living(|actor| actor.detached = true)
    }

    /// How often it begins anew when its sandbox or its worker has ended; 0 otherwise.
    pub fn max_restarts(self, restarts: u32) -> Self {
        self.living(|actor| actor.max_restarts = restarts)
    }

    /// How often a call is begun again that was begun when it died; 0 otherwise.
    pub fn max_task_retries(self, retries: u32) -> Self {
        self.living(|actor| actor.max_task_retries = retries)
    }

    /// So many calls may wait for it, or run, at once; without a limit otherwise.
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
}
