//! The scheduler: which task runs where and when, which objects are kept, what is begun again.
//!
//! [`Scheduler::step`] takes what happened and says what to do. It decides without a clock, randomness, IO or the order of
//! a hash table: the same events give the same actions, so that a simulation replays a seed. What workers say is checked
//! here against what they were given; nothing that they say ends the process.
//!
//! Non-goals: running tasks, storing values, sending messages, judging who may connect.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod actors;
mod assign;
mod borrow;
mod bundles;
mod calls;
mod cancel;
mod circles;
mod classes;
mod cluster;
mod commit;
mod dispatch;
mod event;
mod far_groups;
mod groups;
mod jobs;
mod lineage;
mod load;
mod lost;
mod near;
mod objects;
mod place_actors;
mod place_groups;
mod places;
mod promise;
mod queue;
mod recall;
mod refs;
mod remake;
mod resources;
mod scheduler;
mod slab;
mod streams;
mod submit;
mod table;
mod tasks;
mod tree;
mod unmet;
mod view;

pub use circles::{Circle, Circles, Waits};
pub use event::{Action, ActorSpec, Event, Failure, GroupSpec, JobLimits, Outcome, Role, Submission, Work};
pub use lineage::{Inspect, Lies};
pub use resources::{Demand, UNIT};
pub use scheduler::{Options, Scheduler};
pub use unmet::{Unmet, UnmetView};
pub use view::{
    ActorState, ActorView, BundleView, ClassView, GroupState, GroupView, NodeView, ObjectState, ObjectView, StreamView,
    TaskState, TaskView, WorkerView,
};
