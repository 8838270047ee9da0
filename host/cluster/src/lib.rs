//! Clusters: nodes that know each other and run tasks for each other.
//!
//! A cluster starts with its authority, whose key the founding node has ([`create_cluster`]). The founder admits other nodes
//! and, unless the cluster uses etcd, stores its state. A node that has [entered](Cluster::enter) a cluster has a number,
//! publishes its address and resources under its name while it lives, and connects to all earlier nodes. Each connection
//! carries the messages of both runtimes, requests, objects, and components.
//!
//! Non-goals: running tasks (`sandbar_runtime`), training (`sandbar_train`).

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod actors;
mod addresses;
mod admission;
mod attempts;
mod audit;
mod authority;
mod chunks;
mod cluster;
mod cluster_services;
mod component_id;
mod component_registry;
mod components;
mod connections;
mod dialer;
mod encoding;
mod error;
mod files;
mod identity;
mod jobs;
mod member;
mod membership;
mod node_requests;
mod node_services;
mod objects;
mod operators;
mod options;
mod program_cache;
mod registry;
mod remote_store;
mod request_handlers;
mod runtime_peers;
mod shared_objects;
mod state;
mod tenant_components;
mod tenants;
mod training;
mod uploads;
mod usage;

/// Prefix of the targets of this crate's log lines.
pub const LOG_TARGET: &str = module_path!();

pub use addresses::{AddressError, ListenOn, NodeAddress};
pub use attempts::ATTEMPTS_LOG_TARGET;
pub use audit::{AuditActor, AuditError, AuditRecord, AuditSummary, audit_folder, read_audit, verify_audit};
pub use authority::{NewToken, create_cluster, create_node_token};
pub use cluster::Cluster;
pub use component_registry::{
    ComponentError, ComponentFunction, ComponentKey, ComponentReference, ComponentSignature, ComponentVersion,
    NewComponent, RegisteredComponent, signed_message,
};
pub use error::ClusterError;
pub use files::{FileId, NamedStoredFile, StoredFile};
#[doc(hidden)]
pub use jobs::fuzz_tenant_request;
pub use jobs::{
    ClientTimeouts, ClusterClient, ClusterJob, FileArgument, FollowEvent, JobComponent, JobFileWork, JobWork,
    NewClusterJob, PredictionWork, ProgramWork, SubmissionKey, UploadContents,
};
pub use member::{Member, MemberState};
pub use node_services::NodeServices;
pub use options::ClusterOptions;
pub use tenants::{Tenant, TenantError, TenantSettings, TenantToken, TokenUse};
pub use usage::{UsageBy, UsageQuery, UsageReport, UsageRow};

#[cfg(test)]
mod golden;
