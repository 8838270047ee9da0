//! The native client: a service of async Rust calls the tasks and actors of components, with the semantics that they have
//! among each other.
//!
//! A [`Client`] has a node in its own process, which runs guests in sandboxes of worker processes, as `host submit` does.
//! A [`Job`] is begun with a [`Program`]; it is a first task whose code is the client's. What it submits, stores and
//! awaits are [objects](ObjectRef) of that job, and end with it.
//!
//! ```no_run
//! use sandbar_client::{Client, ClientError, ClientOptions, JobOptions, ObjectRef, TaskOptions, wait};
//!
//! # async fn pi() -> Result<f64, ClientError> {
//! let client = Client::start(ClientOptions::new().workers(4))?;
//! let program = client.program("examples/pi").await?;
//! let job = client.job(&program, JobOptions::named("pi")).await?;
//! let mut rest = Vec::new();
//! for _ in 0..100 {
//!     let hits: ObjectRef<u64> = job.task("throw").options(TaskOptions::new().max_retries(1)).submit((1_000_000,)).await?;
//!     rest.push(hits);
//! }
//! let mut hits = 0;
//! while !rest.is_empty() {
//!     let (ready, others) = wait(&rest, 1, None).await;
//!     hits += ready[0].get().await?;
//!     rest = others;
//! }
//! job.end().await?;
//! # Ok(4.0 * hits as f64 / 1e8)
//! # }
//! ```
//!
//! Arguments are tuples of values, which serde writes, and of references to objects, whose values the task is given.
//! They are checked against what the component says of its tasks when they are submitted: how many there are, and the
//! types that are known here (numbers, `bool`, `char`, `String`, and `Option`, `Vec` and tuples of them). A number is
//! passed as the type that the task takes, where it is one of that. Of all other types the component has the last word:
//! what it can't read is an error of the task.
//!
//! What a generator yields is taken item by item, of an [`ObjectStream`], each an object of its own.
//!
//! Submitting waits while the node has not heard 8 MiB of what was submitted before, so that whoever submits faster than
//! that is held up, and no memory is filled.
//!
//! Non-goals: what a job decides by itself belongs into a component, whose driver runs beside its tasks and is as untrusted
//! as they are. Nodes elsewhere are not reached yet.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod actor;
mod arguments;
mod batch;
mod client;
mod encode;
mod error;
mod job;
mod object;
mod options;
mod stream;
mod table;
mod types;
mod value;

pub use actor::{Actor, ActorCall, ActorRef};
pub use arguments::Arguments;
pub use batch::Batch;
pub use client::{Client, ClientOptions};
pub use error::ClientError;
pub use job::{Job, JobOptions, Program, TaskCall};
pub use object::{ObjectRef, Returned, wait};
pub use options::{ActorOptions, CallOptions, TaskOptions};
pub use sandbar_core::{Code, Fault, Limits, RetryOn, TaskError, TaskKind};
#[doc(hidden)]
pub use sandbar_node::Neighbours;
pub use sandbar_node::{LoggedLine, NodeError, ObjectValue, ProgramSummary, ProgramTask};
pub use stream::ObjectStream;
