//! Programs: tasks that submit tasks, on the workers of this node.
//!
//! One thread, the hub, has the scheduler and all workers for programs. It reads what workers say, has the scheduler
//! decide, and does what that wants done; it never waits for a worker, and runs no guest's code. Everybody else asks it
//! by [`Hub::submit`].

mod calls;
mod hub;
mod keeping;
mod members;
mod records;
mod submit;

pub use submit::{ProgramSpec, ProgramSummary};

pub(crate) use calls::{Program, ProgramTask};
pub(crate) use hub::{Hub, HubOptions, NewJob, StoreOptions};
