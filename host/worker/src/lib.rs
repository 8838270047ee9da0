//! Worker processes, in which guests run, and the compiler process.
//!
//! [`Pool`] starts worker processes (the program `host-worker`, with [`WORKER_ARGUMENT`]) and sends them calls;
//! [`run_worker`] is the main function of such a process. A worker has one thread, runs one call at a time in a fresh
//! sandbox, and can only compute: it has no access to files, the network or other processes. A call that exceeds its
//! deadline is stopped by killing its worker. A worker that dies is replaced, and its calls run again, up to a bound.
//! [`Compiler`] compiles components in a separate process and caches the native code by content.
//!
//! Goals: the death of a worker is an ordinary event; nothing that a worker sends is trusted (lengths are checked,
//! batches are validated, shared memory is copied before it is read, files are sealed). Non-goals: the purpose of
//! calls, and the form of what is [collected](Collect).
//!
//! The protocol is documented in [`protocol`].

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod batches;
mod child;
mod compile_queue;
mod compiler;
mod gpus;
mod journal;
mod mutex;
mod pool;
mod process;
pub mod program;
mod protocol;
mod walls;

pub use compiler::{COMPILER_ARGUMENT, CompiledComponent, Compiler, run_compiler};
pub use gpus::{GpuLimits, GpuMachine, GpuProcesses};
#[doc(hidden)]
pub use pool::fuzz_unpack;
pub use pool::{
    Binding, CallJob, CallProduct, CallRequest, CallResult, CallScheduler, CallSubmission, CallUsage, Caller,
    CompletedCall, JobCalls, Lease, Leases, LogLine, PLAN_BYTES_MAX, Pool, PoolOptions, SubmissionResult,
    peak_memory_bytes,
};
pub use process::{
    BatchCollector, Collect, CollectBuffer, Collectors, NativeHandlers, StoredReader, StoredReaders, StoredRows,
    WORKER_ARGUMENT, not_a_column, run_worker,
};
/// Starts a process in its own process group.
pub use sandbar_process::spawn::in_own_group;
/// The kernel's support for confining workers and processes that drive GPUs.
pub use sandbar_process::support::{ConfinementSupport, LANDLOCK_ABI, confinement_support};
/// The walls of confined processes.
pub use sandbar_process::{MissingWall, OtherCalls, ProcessKind, WALLS_ARGUMENT, Wall, Walls, report_walls};
pub use walls::query_walls;

pub use protocol::{
    BatchLocation, CallWork, CollectSpec, GROUP_BYTES, Groups, INLINE_BYTES_MAX, PART_ALIGNMENT, Payload,
};
