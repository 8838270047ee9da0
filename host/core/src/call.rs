//! Task requests as a program sends them to its node, encoded in postcard.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::ObjectId;
use crate::placement::Strategy;
use crate::retry::RetryOn;

/// The arguments and options that a task is submitted with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskRequest<'a> {
    /// Options of the task; `None` for the defaults.
    pub options: Option<Box<RequestOptions>>,
    /// Handle of the actor whose method the task calls.
    pub actor: Option<ObjectId>,
    /// Arguments, in order.
    #[serde(borrow)]
    pub arguments: Vec<Argument<'a>>,
    /// Objects that the argument values contain.
    pub refs: Vec<ObjectId>,
}

/// An argument of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument<'a> {
    /// A value in the encoding of the program.
    Value(#[serde(borrow)] &'a [u8]),
    /// The value of an object, which exists before the task starts.
    Object(ObjectId),
    /// A value as JSON, from the submitter of a job.
    Json(#[serde(borrow)] &'a str),
    /// An argument that was left out.
    Missing,
    /// A marker behind the last argument: the task encodes its result as JSON, for the submitter of a job.
    ReturnsJson,
}

/// Options of a task or an actor. An absent option has its default: one processor, nothing else.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestOptions {
    /// Display name; the function's name by default.
    pub name: Option<String>,
    /// Processors, in steps of 1/10,000. Default: 1.
    pub cpus: Option<f64>,
    /// GPUs, in steps of 1/10,000. Default: 0.
    pub gpus: Option<f64>,
    /// Memory to reserve, in bytes. Default: 0, no reservation.
    pub memory: Option<u64>,
    /// Custom resources of a node, with amounts.
    pub resources: Vec<(String, f64)>,
    /// Maximum number of retries after the worker died or after an error that `retry_on` allows. Default: 3.
    pub max_retries: Option<u32>,
    /// Errors after which the task is retried.
    pub retry_on: RetryOn,
    /// Wall time of an attempt, in milliseconds. Default: unlimited.
    pub timeout_ms: Option<u64>,
    /// Scheduling priority: tasks with higher numbers run first. Default: 0.
    pub priority: i32,
    /// Scheduling strategy.
    pub strategy: Strategy,
    /// Options of the actor that the task creates. `name` is then the name under which the actor is found.
    pub actor: Option<Box<ActorOptions>>,
    /// Number of items that a generator may produce ahead of its consumer. See [`RequestOptions::buffer`].
    pub buffer: Option<u32>,
}

impl RequestOptions {
    /// Returns the number of items that a generator may be ahead of its consumer: at least one.
    pub fn buffer(&self) -> u32 {
        self.buffer.unwrap_or(STREAM_BUFFER).clamp(1, STREAM_BUFFER_MAX)
    }

    /// Sets the wall time of an attempt, rounded up to milliseconds, at least one.
    pub fn set_timeout(&mut self, time: Duration) {
        let milliseconds = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        self.timeout_ms = Some(milliseconds.max(1));
    }
}

/// Default of [`RequestOptions::buffer`], in items.
pub const STREAM_BUFFER: u32 = 64;

/// Maximum of [`RequestOptions::buffer`], in items.
pub const STREAM_BUFFER_MAX: u32 = 1 << 16;

/// Options of an actor's life cycle. An absent option has its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActorOptions {
    /// Whether the actor lives until it is killed, instead of as long as its job and its handles.
    pub detached: bool,
    /// Whether to return an existing actor of the same name instead of creating one.
    pub get_if_exists: bool,
    /// Maximum number of restarts after the actor's sandbox or worker died. Default: 0.
    pub max_restarts: u32,
    /// Maximum number of retries of a call that was running when the actor died. Default: 0.
    pub max_task_retries: u32,
    /// Maximum number of calls that wait or run. Default: unlimited.
    pub max_pending_calls: Option<u64>,
    /// Maximum number of method calls in progress at once. Default: 1000.
    pub max_concurrency: Option<u32>,
    /// Number of calls between two checkpoints, if the actor supports them. Default: 1.
    pub checkpoint_every: Option<u32>,
}

/// Maximum size of a value that travels inside a message, in bytes; larger values are memory files.
pub const VALUE_INLINE_BYTES_MAX: usize = 100 << 10;
