//! What every room shares: ids, limits, errors, seeds, and copies between processes.
//!
//! Non-goal: anything with a heavy dependency. This room compiles to every
//! target and names neither Arrow nor wasmtime.

// Nothing that a guest, a peer, a file or a user says may end this process.
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

pub use call::{ActorOptions, Argument, Options, Request, STREAM_BUFFER, STREAM_BUFFER_MAX, VALUE_INLINE_BYTES_MAX};
pub use copy::{copy_for_others, copy_from_others};
pub use fault::{Blame, Code, Fault, TaskError};
pub use files::{FILE_NAMES_TOGETHER, GivenFile, GivenFiles};
pub use function::{Function, Kind, Parameter, TaskKind};
pub use ids::{ActorId, Attempt, ComponentId, GroupId, Ids, JobId, NodeId, ObjectId, TaskId, TenantId, WorkerId};
pub use limits::{LOG_BYTES_MAX, Limits};
pub use names::{did_you_mean, hint};
pub use placement::{Bundle, GROUP_BUNDLES_MAX, GroupRequest, GroupStrategy, Strategy};
pub use retry::{Codes, RetryOn};
pub use seed::{Seed, Split};
