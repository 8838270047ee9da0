//! Types that all crates share: ids, limits, errors, seeds, and copies between processes.
//!
//! Non-goals: heavy dependencies. The crate compiles to every target and names neither Arrow nor wasmtime.

// Input of a guest, a peer, a file or a user must not end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod call;
mod copy;
mod fault;
mod files;
mod function;
mod ids;
mod limits;
mod names;
mod placement;
mod retry;
mod seed;
mod setters;
mod tuples;
mod usage;

pub use call::{
    ActorOptions, Argument, RequestOptions, STREAM_BUFFER, STREAM_BUFFER_MAX, TaskRequest, VALUE_INLINE_BYTES_MAX,
};
pub use copy::{copy_from_shared, copy_to_shared};
pub use fault::{Blame, Code, Fault, TaskError};
pub use files::{FILE_NAMES_PER_OBJECT, FileListRef, FileRef};
pub use function::{Function, FunctionKind, Parameter, REGISTERED_PREFIX, TaskKind};
pub use ids::{
    ActorId, Attempt, ComponentId, GroupId, IdAllocator, JobId, NodeId, ObjectId, TaskId, TenantId, WorkerId,
};
pub use limits::{LOG_BYTES_MAX, LimitError, Limits};
pub use names::{did_you_mean, hint};
pub use placement::{Bundle, GROUP_BUNDLES_MAX, GroupRequest, GroupStrategy, Strategy};
pub use retry::{CodeSet, RetryOn};
pub use seed::{Seed, Split};
pub use usage::{JobRun, UsageAmounts};
