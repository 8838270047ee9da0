//! Programs: tasks that submit tasks, on the workers of this node.
//!
//! One thread, the hub, has the scheduler and all workers for programs. It reads what workers say, has the scheduler
//! decide, and does what that wants done; it never waits for a worker, and runs no guest's code. Everybody else asks it
//! by [`Hub::submit`]. A job begins with a task of its program, or with a [client](ClientJob) of this process.

mod arguments;
mod calls;
mod client;
mod files;
mod hub;
mod keeping;
mod link;
mod members;
mod peer;
mod plan;
mod reader;
mod submit;

pub use calls::ProgramTask;
pub use client::{ClientJob, ClientJobSpec, Listen, LoadedProgram, ObjectValue};
#[doc(hidden)]
pub use peer::{Amounts, Neighbours};
pub use plan::{ArgumentPlan, ProgramPlan};
pub use submit::{PROGRAM_ADDRESS_BYTES, ProgramSpec, ProgramSummary, find_program};

pub(crate) use arguments::names_files;

pub(crate) use calls::Program;
pub(crate) use hub::{Asker, First, Hub, HubOptions, NewJob, StoreOptions, WORKERS_MAX};
pub(crate) use peer::{Loaded, NewPeer, Outside, PeerEnd, PeerLine, Remnant, Tell, Wanted};

#[doc(hidden)]
pub use hub::{Saying, hear_any, said_any};
