//! What a program and its node say to each other in bytes: how a task is called, and with what. In postcard.

use serde::{Deserialize, Serialize};

use crate::ids::ObjectId;
use crate::placement::Strategy;
use crate::retry::RetryOn;

/// With what a task is submitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskRequest<'a> {
    /// How it is to be run, where that is not as usual.
    pub options: Option<Box<RequestOptions>>,
    /// The handle of the actor whose method it is.
    pub actor: Option<ObjectId>,
    /// Its arguments, in order.
    #[serde(borrow)]
    pub arguments: Vec<Argument<'a>>,
    /// Objects that values among its arguments contain.
    pub refs: Vec<ObjectId>,
}

/// An argument of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument<'a> {
    /// A value, as the program writes its values.
    Value(#[serde(borrow)] &'a [u8]),
    /// The value of an object, which is there before the task begins.
    Object(ObjectId),
    /// A value as JSON, from whoever submits a job.
    Json(#[serde(borrow)] &'a str),
    /// None was given.
    Missing,
    /// No argument, but behind all of them: what the task returns is to be JSON, for whoever submits a job.
    ReturnsJson,
}

/// How a task is to be run. What is none is as usual: one processor, nothing else.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestOptions {
    /// What people call it; its function's name otherwise.
    pub name: Option<String>,
    /// Processors, to ten thousandths. 1 otherwise.
    pub cpus: Option<f64>,
    /// Devices, to ten thousandths. 0 otherwise.
    pub gpus: Option<f64>,
    /// Memory in bytes. 0 otherwise: no share of it is set aside.
    pub memory: Option<u64>,
    /// What else a node was said to have, with amounts.
    pub resources: Vec<(String, f64)>,
    /// How often it is begun again when its worker dies under it, or after what `retry_on` says. 3 otherwise.
    pub max_retries: Option<u32>,
    /// After which errors it is begun again.
    pub retry_on: RetryOn,
    /// Wall time of an attempt, in milliseconds. Without a limit otherwise.
    pub timeout_ms: Option<u64>,
    /// Tasks of higher numbers come first. 0 otherwise.
    pub priority: i32,
    /// Where it is to run.
    pub strategy: Strategy,
    /// Of what makes an actor. Its name is then the one by which it is found.
    pub actor: Option<Box<ActorOptions>>,
    /// Of a generator: items that were not taken when it waits. See [`RequestOptions::buffer`].
    pub buffer: Option<u32>,
}

impl RequestOptions {
    /// How many items a generator may be ahead of who takes them: at least one.
    pub fn buffer(&self) -> u32 {
        self.buffer.unwrap_or(STREAM_BUFFER).clamp(1, STREAM_BUFFER_MAX)
    }
}

/// What [`RequestOptions::buffer`] is otherwise.
pub const STREAM_BUFFER: u32 = 64;

/// And what it is at most.
pub const STREAM_BUFFER_MAX: u32 = 1 << 16;

/// How an actor is to live. What is none is as usual.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActorOptions {
    /// Whether it lives until it is killed, rather than as long as its job and its handles.
    pub detached: bool,
    /// Whether the actor of that name is meant, if there is one.
    pub get_if_exists: bool,
    /// How often it is begun anew when its sandbox or its worker has ended. 0 otherwise.
    pub max_restarts: u32,
    /// How often a call is begun again that was begun when the actor died. 0 otherwise.
    pub max_task_retries: u32,
    /// Calls that may wait, or run, at once. Without a limit otherwise.
    pub max_pending_calls: Option<u64>,
    /// Calls of methods that wait beside each other. 1000 otherwise.
    pub max_concurrency: Option<u32>,
    /// After how many calls it is saved, if it can be. 1 otherwise.
    pub checkpoint_every: Option<u32>,
}

/// Values up to so many bytes travel in messages; larger ones lie in memory files.
pub const VALUE_INLINE_BYTES_MAX: usize = 100 << 10;
