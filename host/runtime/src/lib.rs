//! The runtime of programs on one node: tasks that submit tasks, actors, objects, streams, placement.
//!
//! One thread owns the scheduler and the connections to all workers of programs. It reads messages of workers, steps the
//! scheduler, and carries out the scheduler's actions. It never waits for a worker, and runs no guest code. Other threads send
//! requests through a [`RuntimeHandle`]. A job starts with a task of its program, or with a [client](ClientJob) in this
//! process.
//!
//! Non-goals: how nodes find and reach each other ([`RuntimePeers`]), job files.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod arguments;
mod calls;
mod client;
mod encoding;
mod engine;
mod error;
mod file_reader;
mod files;
mod lease_request;
mod leases;
mod link;
mod peer;
mod plan;
mod policy;
mod recording;
mod runner;
mod summary;
mod thread;
mod worker;

/// Prefix of the targets of this crate's log lines.
pub const LOG_TARGET: &str = module_path!();

pub use arguments::{ArgumentPlan, check_sent_files};
pub use calls::{Program, ProgramTask};
pub use client::{ClientJob, ClientJobSpec, ClientListener, LoadedProgram, ObjectValue};
#[doc(hidden)]
pub use engine::{FuzzInput, generate_peer_message, run_fuzz_inputs};
pub use engine::{JobUsage, WORKERS_MAX};
pub use error::ProgramError;
pub use files::ArgumentFiles;
pub use peer::{
    Amounts, CachedResult, CachedValue, Callback, ClusterServices, InProcessPeers, LoadResult, NewPeer, PeerEnd,
    PeerLine, RemoteObject, TenantComponent,
};
pub use plan::ProgramPlan;
pub use policy::TenantPolicy;
pub use runner::{
    ClusterProgram, NodeResources, PROGRAM_ADDRESS_BYTES, ProgramRunner, ProgramRunnerOptions, ProgramSpec, RunProgram,
    RunningProgram, RuntimePeers, RuntimeStarted, find_program, load_program,
};
pub use sandbar_sched::{DailyAmounts, TenantLimits};
pub use summary::ProgramSummary;
pub use thread::RuntimeHandle;
