//! WebAssembly components: compiled ahead of time, instantiated from a pool, called under limits.
//!
//! [`compile`] compiles a component to native code (in a separate process, see `worker`); [`Engine::load`] loads that
//! code into the process that runs it; [`Program::instantiate`] creates a sandbox, whose methods call the contract of
//! `wit/sandbar.wit`. Requests of a guest to its host go to [`Services`].
//!
//! Goals: every end of a guest is a [`Fault`](sandbar_core::Fault) with a code; no byte of one sandbox is visible to
//! the next; only this crate names wasmtime. Non-goals: limits of wall time (the owner of the process enforces
//! deadlines), the network, Arrow arrays.
//!
//! A process has one thread and one engine. More parallelism requires more processes.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod clock;
mod constant;
mod contract;
mod dense;
mod engine;
mod fault;
mod imports;
mod instance;
mod interrupt;
mod linker;
mod memory;
mod memory_reset;
mod program;
mod reuse;
mod rewrite;
mod running;
mod sandbox;
mod services;
mod sleep;
mod state;
mod task_call;
mod tasks;
mod wasi;

pub use contract::{CONTRACT, ComponentShape, DENSE, check_binary, inspect};
pub use engine::{Engine, build_id, compile, may_swap};
pub use instance::Instance;
pub use interrupt::{install_interrupt_handler, is_interrupted, set_current_task};
pub use memory_reset::reports_written_pages;
pub use program::Program;
pub use reuse::IdleSandboxes;
pub use rewrite::{MemoryImage, RewrittenComponent, move_memory_first};
pub use running::{TaskExecution, TaskOutcome};
pub use services::{
    ActorStep, GetOutcome, GroupRange, Input, InputBytes, Level, NextItem, NoServices, Predictions, Refusal, Services,
};
pub use task_call::TaskCall;
