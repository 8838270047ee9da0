//! WebAssembly components: compiled ahead of time, instantiated from a pool,
//! called under limits.
//!
//! [`compile`] turns a component into native code (in a process of its own, see
//! `worker`); [`Engine::load`] takes that code into a process that runs it;
//! [`Program::instantiate`] makes a sandbox, and its methods call the contract
//! of `wit/sandbar.wit`. What a guest asks of its host goes to [`Services`].
//!
//! Goals: every way in which a guest ends is a [`Fault`](sandbar_core::Fault)
//! with a code; no byte of one sandbox is seen by the next; this is the only
//! room that names wasmtime. Non-goals: limits of wall time (whoever runs this process
//! ends it at its deadline), the network, Arrow arrays.
//!
//! One thread, one engine: a process that wants more runs more processes.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod clock;
mod contract;
mod dense;
mod engine;
mod fault;
mod imports;
mod instance;
mod interrupt;
mod memory;
mod relink;
mod reuse;
mod running;
mod services;
mod state;
mod tasks;
mod wasi;

pub use contract::{CONTRACT, DENSE, Shape, check_binary, inspect};
pub use engine::{Engine, Program, build_id, compile, may_swap};
pub use instance::Instance;
pub use interrupt::{interruptible, runs_on_behalf_of};
pub use relink::{Initial, Relinked, memory_first};
pub use reuse::{IdleSandboxes, tells_written_pages};
pub use running::{Ended, Running, TaskCall};
pub use services::{Bytes, Following, Got, GroupAt, Input, Level, Next, NoServices, Predictions, Refusal, Services};
