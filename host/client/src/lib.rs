//! The native client: an async Rust service calls the tasks and actors of components, with the same semantics as calls
//! between guests.
//!
//! A [`Client`] runs a node in its own process. The node runs guests in sandboxes of worker processes, as `host submit`
//! does. A [`Job`] is started with a [`Program`] and acts as the program's first task. The [objects](ObjectRef) that a
//! client submits, stores and awaits belong to the job and are released when it ends.
//!
//! ```no_run
//! use sandbar_client::{Client, ClientError, ClientOptions, JobOptions, ObjectRef, TaskOptions, wait};
//!
//! # async fn pi() -> Result<f64, ClientError> {
//! let client = Client::start(ClientOptions::new().workers(4))?;
//! let program = client.program("examples/pi").await?;
//! let job = client.job(&program, JobOptions::named("pi")).await?;
//! let mut pending = Vec::new();
//! for _ in 0..100 {
//!     let hits: ObjectRef<u64> = job.task("throw").options(TaskOptions::new().max_retries(1)).submit((1_000_000,)).await?;
//!     pending.push(hits);
//! }
//! let mut hits = 0;
//! while !pending.is_empty() {
//!     let (ready, rest) = wait(&pending, 1, None).await;
//!     hits += ready[0].get().await?;
//!     pending = rest;
//! }
//! job.end().await?;
//! # Ok(4.0 * hits as f64 / 1e8)
//! # }
//! ```
//!
//! Arguments are tuples of values, which serde encodes, and of object references, whose values the task receives.
//! A submission checks them against the component's task signatures: the number of arguments, and the types that the
//! client knows (numbers, `bool`, `char`, `String`, and `Option`, `Vec` and tuples of them). A number is encoded as the
//! type that the task takes, if that type can represent it. The component checks all other types: a value that it can't
//! decode is an error of the task.
//!
//! An [`ObjectStream`] returns the items of a generator one by one, each as an object of its own.
//!
//! Back-pressure: a submission waits while the node has 8 MiB of earlier submissions to process, which bounds the
//! memory of a fast submitter.
//!
//! Non-goals: logic that a job can decide by itself belongs in a component, whose driver runs beside its tasks and is
//! equally untrusted. The client does not connect to remote nodes yet.

// No input of a guest, a peer, a file or a user may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod actor;
mod arguments;
mod batch;
mod client;
mod encode;
mod error;
mod job;
mod job_state;
mod listener;
mod object;
mod options;
mod stream;
mod table;
mod task_call;
mod types;
mod value;

pub use actor::{Actor, ActorCall, ActorRef};
pub use arguments::Arguments;
pub use batch::Batch;
pub use client::{Client, ClientOptions};
pub use error::ClientError;
pub use job::{Job, JobOptions, Program};
pub use object::{ObjectRef, ResultRefs, wait};
pub use options::{ActorOptions, CallOptions, TaskOptions};
pub use sandbar_core::{Code, Fault, Limits, RetryOn, TaskError, TaskKind};
#[doc(hidden)]
pub use sandbar_node::InProcessPeers;
pub use sandbar_node::{LoggedLine, ObjectValue, ProgramError, ProgramSummary, ProgramTask};
pub use stream::ObjectStream;
pub use task_call::TaskCall;
