//! Setters of the builders of [`RequestOptions`](crate::RequestOptions), which the SDK and the native client share.
//!
//! A macro adds methods to the `impl` of a builder that has
//! `fn with(self, set: impl FnOnce(&mut RequestOptions)) -> Self`.

/// Setters of the resources that a task or an actor requests. `$cpus` describes the default number of CPUs.
#[macro_export]
macro_rules! resource_setters {
    ($cpus:literal) => {
        #[doc = concat!("Sets the number of CPUs, in steps of 1/10,000. Default: ", $cpus, ".")]
        pub fn cpus(self, cpus: f64) -> Self {
            self.with(|options| options.cpus = Some(cpus))
        }

        /// Sets the number of GPUs, in steps of 1/10,000. Default: 0.
        pub fn gpus(self, gpus: f64) -> Self {
            self.with(|options| options.gpus = Some(gpus))
        }

        /// Sets the memory to reserve, in bytes. Default: 0.
        pub fn memory(self, bytes: u64) -> Self {
            self.with(|options| options.memory = Some(bytes))
        }

        /// Requests an amount of a custom resource of a node.
        pub fn resource(self, name: impl Into<String>, amount: f64) -> Self {
            self.with(|options| options.resources.push((name.into(), amount)))
        }
    };
}

/// Setters of the name, the retries and the time limit of a call. `$retries` describes the default number of retries.
#[macro_export]
macro_rules! call_setters {
    ($retries:literal) => {
        /// Sets the display name. Default: the function's name.
        pub fn name(self, name: impl Into<String>) -> Self {
            self.with(|options| options.name = Some(name.into()))
        }

        #[doc = concat!(
            "Sets the maximum number of retries after the death of a worker or an error of `retry_on`. Default: ",
            $retries,
            "."
        )]
        pub fn max_retries(self, retries: u32) -> Self {
            self.with(|options| options.max_retries = Some(retries))
        }

        /// Sets the errors to retry: [`RetryOn::All`](sandbar_core::RetryOn::All), or codes such as
        /// `[Code::TimeOut, Code::Refused]`. Default: only the death of the worker or the actor.
        pub fn retry_on(self, errors: impl Into<$crate::RetryOn>) -> Self {
            self.with(|options| options.retry_on = errors.into())
        }

        /// Sets the wall-time limit of one attempt, rounded up to milliseconds, at least 1 ms. Default: no limit.
        pub fn timeout(self, time: ::std::time::Duration) -> Self {
            self.with(|options| options.set_timeout(time))
        }
    };
}

/// Setters of the life cycle of an actor.
#[macro_export]
macro_rules! actor_setters {
    () => {
        fn with_actor(self, set: impl FnOnce(&mut $crate::ActorOptions)) -> Self {
            self.with(|options| set(options.actor.get_or_insert_default()))
        }

        /// Returns a handle to the actor of this name if it exists, and creates it otherwise.
        pub fn get_if_exists(self) -> Self {
            self.with_actor(|actor| actor.get_if_exists = true)
        }

        /// Detaches the actor: it lives until it is killed, and other jobs find it by name. Its arguments are values,
        /// not objects. Default: the actor ends with its job or its last handle.
        pub fn detached(self) -> Self {
            self.with_actor(|actor| actor.detached = true)
        }

        /// Sets the maximum number of restarts after the death of the actor's sandbox or worker. A restart uses the last
        /// checkpoint, or the original arguments. Default: 0.
        pub fn max_restarts(self, restarts: u32) -> Self {
            self.with_actor(|actor| actor.max_restarts = restarts)
        }

        /// Sets the maximum number of retries of a call that was running when the actor died. Default: 0.
        pub fn max_task_retries(self, retries: u32) -> Self {
            self.with_actor(|actor| actor.max_task_retries = retries)
        }

        /// Sets the maximum number of calls that wait or run at the same time. Further calls fail with
        /// [`Code::PendingCalls`](sandbar_core::Code::PendingCalls). Default: no limit.
        pub fn max_pending_calls(self, calls: u64) -> Self {
            self.with_actor(|actor| actor.max_pending_calls = Some(calls))
        }

        /// Sets the maximum number of concurrent calls. Default: 1000.
        pub fn max_concurrency(self, calls: u32) -> Self {
            self.with_actor(|actor| actor.max_concurrency = Some(calls))
        }

        /// Sets the number of calls between two checkpoints, if the actor has `checkpoint`. Default: 1.
        pub fn checkpoint_every(self, calls: u32) -> Self {
            self.with_actor(|actor| actor.checkpoint_every = Some(calls))
        }
    };
}
