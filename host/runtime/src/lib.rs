//! The runtime of programs on one node: tasks that submit tasks, actors, objects, streams, placement.
//!
//! One thread has the scheduler and the connections of all workers for programs. It reads what workers send, gives it to the
//! scheduler, and carries out the scheduler's actions. It never waits for a worker, and runs no guest code. Other threads use
//! its handle ([`RuntimeHandle`]). A job starts with a task of its program, or with a [client](ClientJob) of this process.
//!
//! Non-goals: how nodes find and reach each other ([`RuntimePeers`]), job files.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod arguments;
mod calls;
mod client;
mod engine;
mod error;
mod files;
mod keeping;
mod link;
mod peer;
mod plan;
mod reader;
mod runner;
mod thread;
mod worker;

pub use arguments::names_files;
pub use calls::{Program, ProgramTask};
pub use client::{ClientJob, ClientJobSpec, Listen, LoadedProgram, ObjectValue};
pub use engine::WORKERS_MAX;
#[doc(hidden)]
pub use engine::{Saying, hear_any, said_any};
pub use error::ProgramError;
pub use peer::{
    Amounts, CachedResult, CachedValue, ClusterServices, Loaded, Neighbours, NewPeer, PeerEnd, PeerLine, RemoteObject,
    Tell,
};
pub use plan::{ArgumentPlan, ProgramPlan};
pub use runner::{
    ClusterProgram, NodeResources, PROGRAM_ADDRESS_BYTES, ProgramRunner, ProgramRunnerOptions, ProgramSpec,
    ProgramSummary, RunProgram, RunningProgram, RuntimePeers, RuntimeStarted, find_program, load_program,
};
pub use thread::RuntimeHandle;
