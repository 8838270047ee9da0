//! Worker processes: where guests run.
//!
//! [`Pool`] starts workers (the program `host-worker`, with [`WORKER_ARGUMENT`]) and
//! hands them calls; [`run_worker`] is what such a process does. A worker is one
//! thread, runs one call at a time in a fresh sandbox, and can do nothing but
//! compute: no files, no network, no new processes. A call over
//! its deadline costs the worker its life; a worker that dies is replaced, and
//! what it was running is run again up to a bound. [`Compiler`] compiles
//! components in a process of their own and keeps the result by content.
//!
//! Goals: the death of a worker is an event; nothing a worker says is trusted
//! (lengths are checked, batches are validated, shared memory is copied before
//! it is read, files are sealed). Non-goals: what calls are for, and what is
//! [collected](Collect).
//!
//! The protocol is documented in [`protocol`].

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod batches;
mod compiler;
mod gpus;
mod journal;
mod pool;
mod process;
pub mod program;
mod protocol;

pub use compiler::{COMPILER_ARGUMENT, Compiled, Compiler, run_compiler};
pub use gpus::{GpuLimits, Gpus, Machine};
#[doc(hidden)]
pub use pool::unpack_any;
pub use pool::{
    Answer, Binding, Called, Caller, Completed, LogLine, PLAN_BYTES_MAX, Pool, PoolOptions, Product, Request,
    Submission, peak_memory_bytes,
};
pub use process::{
    Collect, Collecting, Collection, Collectors, Native, StoredReader, StoredReaders, StoredRows, WORKER_ARGUMENT,
    not_a_column, run_worker,
};
/// Starts a process in a group of its own.
pub use sandbar_process::spawn::in_own_group;
/// The kernel's means to confine workers and processes that drive GPUs.
pub use sandbar_process::walls::{LANDLOCK_ABI, Walls, walls};

pub use protocol::{BatchAt, GROUP_BYTES, Groups, INLINE_BYTES_MAX, PART_ALIGNMENT, Payload, ToCollect, Work};
