//! Jobs of tenants: a node runs each, and another node takes it over when that one dies.
//!
//! A job is an entry of the cluster's store, with its program's hash and its arguments. Its *owner key* names the node that
//! runs it, and expires with that node's lease: then another node takes the job over, and restarts it. The outcome of a job
//! is written only by its owner, in the transaction that deletes the owner key: a job has one result, however often it ran.

mod cached_results;
mod client;
mod follow;
mod job;
mod leases;
mod local_jobs;
mod lookup;
mod tenant_api;
mod tenant_messages;
mod tenant_responses;

pub use client::{ClientTimeouts, ClusterClient, FollowEvent};
pub use job::ClusterJob;
pub(crate) use leases::hold_leases;
pub(crate) use local_jobs::LocalJobs;
pub(crate) use tenant_api::accept_tenants;
pub use tenant_messages::NewClusterJob;

#[cfg(test)]
mod golden;
