//! The SDK for Sandbar functions: plain Rust with one attribute, compiled to a WebAssembly component.
//!
//! ```
//! use sandbar_guest::prelude::*;
//!
//! /// Seconds between two timestamps.
//! #[scalar]
//! fn duration(pickup: Timestamp, dropoff: Timestamp) -> f64 {
//!     (dropoff.micros() - pickup.micros()) as f64 / 1e6
//! }
//! ```
//!
//! - [`macro@scalar`]: columns in, one column out, row by row. An `Option<T>` argument receives nulls; any other
//!   argument makes a row with a null give a null.
//! - [`macro@batch`]: a [`RecordBatch`](arrow_array::RecordBatch) in, one out.
//! - [`macro@trainer`]: a [`Group`] in, a serialisable [`Model`] out, which predicts.
//!
//! A trainer and its model:
//!
//! ```
//! use sandbar_guest::prelude::*;
//!
//! #[derive(Clone, Deserialize)]
//! #[serde(default, deny_unknown_fields)]
//! struct Params {
//!     factor: f64,
//! }
//!
//! impl Default for Params {
//!     fn default() -> Self {
//!         Params { factor: 1.0 }
//!     }
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Constant(f64);
//!
//! impl Model for Constant {
//!     fn predict(&self, _: Features<'_>, out: &mut [f64]) {
//!         out.fill(self.0);
//!     }
//!
//!     fn params(&self) -> impl Serialize {
//!         self.0
//!     }
//! }
//!
//! /// Predicts the mean target, times a factor.
//! #[trainer]
//! fn mean(group: &Group, params: &Params) -> Result<Constant, String> {
//!     match group.target() {
//!         [] => Err("no rows to train on".to_owned()),
//!         target => Ok(Constant(params.factor * target.iter().sum::<f64>() / target.len() as f64)),
//!     }
//! }
//! ```
//!
//! A program consists of functions that call each other on other processors and machines: [`macro@task`] makes a
//! function submittable. A submitted call returns an [`ObjectRef`] at once, a handle to an immutable object that gets
//! its value later. Tasks accept objects in place of values, so that large values stay where they are. A record batch
//! as a value is a [`Batch`].
//!
//! ```
//! use sandbar_guest::prelude::*;
//!
//! /// The sum of two numbers.
//! #[task]
//! fn add(a: i64, b: i64) -> i64 {
//!     a + b
//! }
//!
//! #[task]
//! fn sums(n: i64) -> Result<Vec<i64>, TaskError> {
//!     let one = put(&1); // stored once for all calls
//!     let parts: Vec<ObjectRef<i64>> = (0..n).map(|i| add::submit(i, &one)).collect();
//!     let (ready, _rest) = wait(&parts, 1, None); // the first that is ready
//!     let _more = add::options().cpus(0.5).max_retries(0).submit(&ready[0], 5);
//!     get_all(&parts)
//! }
//!
//! assert_eq!(add(1, 2), 3); // a direct call
//! assert_eq!(sums::submit(3).get(), Ok(vec![1, 2, 3]));
//! ```
//!
//! A [`Pool`] runs a task of one argument for each of many arguments. A job's input files from the command line are a
//! [`File`] or [`Files`], which any task of the job can open.
//!
//! A task that returns an iterator is a generator: the caller takes its items from an [`ObjectStream`] while the
//! generator runs.
//!
//! ```
//! use sandbar_guest::prelude::*;
//!
//! /// Squares, without end.
//! #[task]
//! fn squares(from: u64) -> impl Iterator<Item = u64> {
//!     (from..).map(|i| i * i)
//! }
//!
//! # fn main() -> Result<(), TaskError> {
//! let mut sum = 0;
//! for square in squares::options().buffer(16).submit(1).take(3) {
//!     sum += square?.get()?; // a ready ObjectRef<u64>
//! }
//! assert_eq!(sum, 1 + 4 + 9);
//! # Ok(())
//! # }
//! ```
//!
//! An [`macro@actor`] keeps its state between calls, in a sandbox of its own. A handle calls its methods, in order. A
//! method with `&mut self` has exclusive access. Methods with `&self` can wait concurrently, with `.await`.
//!
//! ```
//! use sandbar_guest::prelude::*;
//!
//! struct Counter {
//!     count: i64,
//! }
//!
//! #[actor]
//! impl Counter {
//!     pub fn new(start: i64) -> Counter {
//!         Counter { count: start }
//!     }
//!
//!     /// Adds to it.
//!     pub fn add(&mut self, n: i64) -> i64 {
//!         self.count += n;
//!         self.count
//!     }
//!
//!     /// The sum of the count and these objects. Other methods run while it waits for them.
//!     pub async fn sum_with(&self, others: Vec<ObjectRef<i64>>) -> Result<i64, TaskError> {
//!         let mut sum = self.count;
//!         for other in others {
//!             sum += other.await?;
//!         }
//!         Ok(sum)
//!     }
//!
//!     /// Saves the state after calls; `restore` restarts from it.
//!     pub fn checkpoint(&self) -> i64 {
//!         self.count
//!     }
//!
//!     pub fn restore(saved: i64) -> Counter {
//!         Counter { count: saved }
//!     }
//! }
//!
//! # fn main() -> Result<(), TaskError> {
//! let counter = Counter::options().name("counter").max_restarts(3).submit(5);
//! let six = counter.add(1); // returns an ObjectRef<i64> at once
//! assert_eq!(counter.sum_with(vec![six.clone(), six]).get(), Ok(18));
//! counter.restart(); // as if its worker had died
//! assert_eq!(CounterHandle::find("counter")?.add(1).get(), Ok(7));
//! # Ok(())
//! # }
//! ```
//!
//! Functions view columns in place, in the memory that the host wrote. A function can use its parameters, [`log`] and a
//! seeded [`random`] source, but no files, network, clock or environment.
//!
//! On targets other than wasm32-wasip2, everything compiles and functions can be tested: call them directly, or through
//! [`testing`] as a host does. A submitted task then runs at once, in the same thread.

mod actor;
mod batch;
mod bindings;
pub mod dense;
mod export;
mod host;
mod input;
#[cfg(target_family = "wasm")]
mod libc;
mod params;
pub mod random;
mod registry;
mod scalar;
mod task;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
mod trainer;

pub use actor::{ActorHandle, CallOptions, Creation, ObjectFuture};
pub use log;
pub use sandbar_core::{Code, Fault, GroupStrategy, NodeId, RetryOn, Strategy, TaskError};
pub use sandbar_guest_macros::{actor, batch, scalar, task, trainer};
pub use scalar::{Date, Timestamp};
pub use task::{Arg, Batch, Bundle, Bytes, File, Files, FilesIter, Handles, ObjectRef, ObjectStream, PlacementGroup};
pub use task::{Pool, Results, Submission, Value, cancel, get_all, put, wait};
pub use trainer::{Features, Group, Groups, Model};

/// Reports progress of the current task under a name: `done` units out of `total`, if the total is known. Calls are
/// cheap: the host displays progress periodically. Tasks that report under the same name are summed.
/// ([`Pool::progress`] reports the progress of a pool.)
pub fn progress(name: &str, done: u64, total: Option<u64>) {
    host::progress(name, done, total);
}

/// The items that most functions need.
pub mod prelude {
    pub use crate::{
        ActorHandle, Batch, Bundle, Bytes, CallOptions, Date, Features, File, Files, Group, GroupStrategy, Model,
    };
    pub use crate::{ObjectRef, ObjectStream, PlacementGroup, TaskError, Timestamp};
    pub use crate::{actor, batch, scalar, task, trainer};
    pub use crate::{cancel, get_all, put, wait};
    pub use arrow_array::RecordBatch;
    pub use serde::{Deserialize, Serialize};
}

/// Items that the attributes expand to. Not for direct use.
#[doc(hidden)]
pub mod __private {
    pub use crate::actor::{ActorRef, Method, shared_state, store_actor, until_done, with_exclusive_state};
    pub use crate::batch::{Batch, any};
    pub use crate::bindings::program::TaskKind;
    pub use crate::params::{Describe, NoDescription, NoParams, Parameter, WithDefaults, WithoutDefaults};
    pub use crate::registry::{CallFuture, EntryPoint, Function, GeneratorItems, TaskDefinition};
    pub use crate::scalar::{Argument, Chunk, ColumnOf, Return, Scalar, gather, mask};
    pub use crate::task::{Arguments, Task, report_error, return_value, yield_item};
    pub use crate::trainer::{FitTogether, Trainer};
    pub use arrow_array::RecordBatch;
    pub use arrow_schema::Field;
    pub use inventory;
    pub use serde;
}
