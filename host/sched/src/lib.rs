//! Scheduler of tasks, actors and placement groups: placement, reference counts of objects, retries, and reconstruction
//! of lost values.
//!
//! [`Scheduler::step`] takes one event and returns the actions that follow from it. It uses no clock, randomness or IO
//! and does not depend on the order of a hash table: the same events give the same actions, so that a simulation
//! replays a seed. Each event of a worker is checked against the tasks and objects of that worker; no event panics the
//! process.
//!
//! Non-goals: running tasks, storing values, sending messages, authenticating peers.

// Input from guests, peers, files and users must not panic this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod actor_calls;
mod actor_placement;
mod actors;
mod borrow;
mod bundles;
mod cancel;
mod classes;
mod cluster;
mod commit;
mod deadlock;
mod dispatch;
mod event;
mod group_placement;
mod groups;
mod id_table;
mod jobs;
mod keys;
mod lineage;
mod locality;
mod node_load;
mod object;
mod objects;
mod packing;
mod promise;
mod queue;
mod recall;
mod reconstruction;
mod reservations;
mod resources;
mod scheduler;
mod slab;
mod streams;
mod submit;
mod task_tree;
mod tasks;
mod unmet_demand;
mod view;
mod worker_loss;

pub use deadlock::{Deadlock, DeadlockSearch, WaitSet};
pub use event::{
    Action, ActorSpec, Event, Failure, GroupSpec, JobLimits, Outcome, Submission, SubmissionKind, WorkerKind,
};
pub use lineage::{PayloadCallbacks, ValueLocation};
pub use resources::{RESOURCE_UNIT, ResourceSet};
pub use scheduler::{Options, Scheduler};
pub use unmet_demand::{DemandSource, UnmetDemand};
pub use view::{
    ActorState, ActorView, BundleView, ClassView, GroupState, GroupView, NodeView, ObjectState, ObjectView, StreamView,
    TaskState, TaskView, WorkerView,
};
