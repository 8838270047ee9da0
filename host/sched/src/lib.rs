//! Scheduler of tasks, actors and placement groups: placement, reference counts of objects, retries, and reconstruction
//! of lost values.
//!
//! [`Scheduler::step`] takes one event and returns the actions that follow from it. It uses no clock, randomness or IO
//! and does not depend on the order of a hash table: the same events give the same actions, so that a simulation
//! replays a seed. Each event of a worker is checked against the tasks and objects of that worker; no event panics the
//! process.
//!
//! `scheduler` has the state and the order of a step. `records` has the tables that the state consists of, `steps` the
//! changes that events make in them, and `queries` the read-only queries of the embedder.
//!
//! Non-goals: running tasks, storing values, sending messages, authenticating peers.

// Input from guests, peers, files and users must not panic this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod event;
mod packing;
mod queries;
mod records;
mod scheduler;
mod steps;
mod views;

pub use event::{
    Action, ActorSpec, DailyAmounts, Event, Failure, GroupSpec, JobLimits, Outcome, ParentRef, Submission,
    SubmissionKind, TenantLimits, TenantShare, WorkerKind,
};
pub use queries::deadlock::{Deadlock, DeadlockSearch, WaitSet};
pub use queries::unmet_demand::{DemandSource, UnmetDemand};
pub use records::ledger::ValueBytes;
pub use records::lineage::{PayloadCallbacks, ValueLocation};
pub use records::resources::{RESOURCE_UNIT, ResourceSet};
pub use scheduler::{Options, Scheduler};
pub use views::{
    ActorState, ActorView, BundleView, ClassView, GroupState, GroupView, NodeView, ObjectState, ObjectView, StreamView,
    TaskState, TaskView, WorkerView,
};
