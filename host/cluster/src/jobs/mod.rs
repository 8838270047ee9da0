//! Jobs of tenants: a node runs each, and another node takes it over when that one dies.
//!
//! A job is an entry of the cluster's store, with its program's hash and its arguments. Its *owner key* names the node that
//! runs it, and expires with that node's lease: then another node takes the job over, and restarts it. The outcome of a job
//! is written only by its owner, in the transaction that deletes the owner key: a job has one result, however often it ran.

mod cached_results;
mod client;
mod client_components;
mod door;
mod follow;
mod index;
mod job;
mod job_files;
mod leases;
mod local_jobs;
mod lookup;
mod submission;
mod tenant_api;
mod tenant_audit;
mod tenant_client;
mod tenant_messages;
mod tenant_responses;
mod uploaded;

pub use client::{ClientTimeouts, ClusterClient, FollowEvent};
pub(crate) use door::Door;
pub use job::{
    ClusterJob, FileArgument, JobComponent, JobFileWork, JobWork, PredictionWork, ProgramWork, SubmissionKey,
};
pub(crate) use job::{key_of_tenant, keys_of_tenant, tenant_id, tenant_keys};
pub(crate) use leases::{hand_over, hold_leases};
pub(crate) use local_jobs::{LocalJobs, remove_folders};
pub(crate) use submission::{COMPONENT_COPIES, Upload};
pub use tenant_api::fuzz_tenant_request;
pub(crate) use tenant_api::{RESPONSE_TIME_MAX, accept_tenants};
pub use tenant_messages::NewClusterJob;
pub(crate) use tenant_messages::{RefusalCode, TenantResponse};
pub(crate) use tenant_responses::{Outcome, node_failed, refused, rejected, retry_later, send, while_in_progress};
pub use uploaded::UploadContents;

#[cfg(test)]
mod golden;
