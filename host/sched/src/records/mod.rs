//! Records of tasks, objects, actors, jobs, groups, workers and nodes, in the tables that own them.
//!
//! A table changes nothing but itself. A change that involves several tables is a step of the scheduler.

pub(crate) mod actors;
mod bundles;
pub(crate) mod classes;
pub(crate) mod cluster;
pub(crate) mod groups;
pub(crate) mod id_table;
pub(crate) mod ids;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod level;
pub(crate) mod lineage;
pub(crate) mod nodes;
pub(crate) mod object;
pub(crate) mod queue;
pub(crate) mod resources;
pub(crate) mod slab;
pub(crate) mod step_work;
pub(crate) mod streams;
mod task_tree;
pub(crate) mod tasks;
pub(crate) mod tenants;
pub(crate) mod workers;
