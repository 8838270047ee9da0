//! Options of tasks, of actors and of calls of actors.

use sandbar_core::RequestOptions;

/// Options of a task.
#[derive(Debug, Clone, Default)]
pub struct TaskOptions(pub(crate) RequestOptions);

/// Creates a builder with the default options, and sets one of them.
macro_rules! builder {
    () => {
        /// Returns the default options.
        pub fn new() -> Self {
            Self::default()
        }

        fn with(mut self, set: impl FnOnce(&mut RequestOptions)) -> Self {
            set(&mut self.0);
            self
        }
    };
}

impl TaskOptions {
    builder!();
    sandbar_core::resource_setters!("1");
    sandbar_core::call_setters!("3");

    /// Sets the priority: tasks with higher numbers run first. Default: 0.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|options| options.priority = priority)
    }

    /// Sets the number of untaken items at which a generator ([`TaskCall::stream`](crate::TaskCall::stream)) waits.
    /// Default: 64, maximum: 65,536.
    pub fn buffer(self, items: u32) -> Self {
        self.with(|options| options.buffer = Some(items))
    }
}

/// Options of a call of an actor.
#[derive(Debug, Clone, Default)]
pub struct CallOptions(pub(crate) RequestOptions);

impl CallOptions {
    builder!();
    sandbar_core::call_setters!("[`ActorOptions::max_task_retries`]");
}

/// Options of an actor: its creation and its lifetime. The requested resources are reserved during the actor's life.
#[derive(Debug, Clone, Default)]
pub struct ActorOptions(pub(crate) RequestOptions);

impl ActorOptions {
    builder!();
    sandbar_core::resource_setters!("0: the actor shares CPUs");
    sandbar_core::actor_setters!();

    /// Sets the unique name for [`Job::find_actor`](crate::Job::find_actor).
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = Some(name.into()))
    }
}
