//! Lookup of a tenant's jobs, and of the nodes that run them. No request reads entries of other tenants.

use std::net::SocketAddr;

use sandbar_core::NodeId;
use sandbar_jobs::JobName;
use sandbar_meta::Entry;
use sandbar_wire::Name;

use super::job::{ClusterJob, JobKey, JobRef, job_key, job_keys, owner_key, owner_value, parse_key};
use super::tenant_messages::{RefusalCode, TenantResponse};
use super::tenant_responses::{Outcome, refused, rejected, retry_later};
use crate::member::Member;
use crate::registry;
use crate::state::ClusterState;

/// Maximum jobs that a text can match. Of more, the first ones are named.
const AMBIGUOUS_MAX: usize = 10;

/// Rejects a request about an unknown job.
pub(crate) fn unknown(job: &str) -> TenantResponse {
    let text: String = job.chars().take(60).collect();
    refused(RefusalCode::NoJob, format!("there is no job `{text}`"))
}

/// Returns the tenant's job of this full name, if it exists.
pub(crate) async fn get(cluster: &ClusterState, tenant: &Name, id: &JobName) -> Outcome<Option<ClusterJob>> {
    let key = job_key(&JobRef { tenant: tenant.clone(), id: id.clone() }).map_err(rejected)?;
    let entry = cluster.store.get(&key).await.map_err(retry_later)?.entry;
    let unreadable = |e| {
        log::warn!("the record of job {} can't be decoded; another version may have written it: {e}", id.short());
        refused(RefusalCode::Node, format!("the record of job {} can't be decoded", id.short()))
    };
    entry.map(|entry| serde_json::from_slice::<ClusterJob>(entry.value.as_bytes()).map_err(unreadable)).transpose()
}

/// Returns the tenant's job with this name, or whose short name starts with `text`.
pub(crate) async fn find(cluster: &ClusterState, tenant: &Name, text: &str) -> Outcome<ClusterJob> {
    if let Ok(id) = text.parse() {
        return get(cluster, tenant, &id).await?.ok_or_else(|| unknown(text));
    }
    let mut all = list(cluster, tenant).await?;
    all.retain(|job| job.id.matches(text));
    match all.len() {
        0 => Err(unknown(text)),
        1 => Ok(all.swap_remove(0)),
        _ => {
            let names: Vec<&str> = all.iter().take(AMBIGUOUS_MAX).map(|job| job.id.short()).collect();
            let names = names.join(", ");
            let message = format!("job {text} is ambiguous, it matches {names}; give more of its digits");
            Err(refused(RefusalCode::AmbiguousJob, message))
        }
    }
}

/// Returns the tenant's jobs, the oldest first.
pub(crate) async fn list(cluster: &ClusterState, tenant: &Name) -> Outcome<Vec<ClusterJob>> {
    let keys = job_keys(tenant).map_err(rejected)?;
    let (entries, _) = registry::read_all(&*cluster.store, keys).await.map_err(retry_later)?;
    let is_job = |entry: &&Entry| matches!(parse_key(&entry.key), Some(JobKey::Job(_)));
    let log_unreadable = |entry: &Entry, e: &serde_json::Error| {
        log::warn!(
            "the entry {} of the cluster's store can't be decoded; another version may have written it: {e}",
            entry.key
        );
    };
    let job = |entry: &Entry| {
        let job = serde_json::from_slice::<ClusterJob>(entry.value.as_bytes());
        job.inspect_err(|e| log_unreadable(entry, e)).ok()
    };
    Ok(entries.iter().filter(is_job).filter_map(job).collect())
}

/// The node that runs or ran a job, and has its log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum JobLocation {
    ThisNode,
    OtherNode(SocketAddr),
    /// The node is lost, or this node is not connected to it. An unfinished job will be taken over.
    Unreachable,
}

/// Locates the node of a job.
pub(crate) async fn locate(cluster: &ClusterState, job: &ClusterJob) -> Outcome<JobLocation> {
    let owner = match job.state.is_finished() {
        true => None,
        false => {
            let key = owner_key(&job.reference()).map_err(rejected)?;
            match cluster.store.get(&key).await.map_err(retry_later)?.entry {
                Some(owner) => Some(owner.value),
                None => return Ok(JobLocation::Unreachable),
            }
        }
    };
    // A restarted node has the logs of its finished jobs, and runs none of the unfinished ones.
    let is_it = |node: &Member| owner.as_ref().map_or(node.name == job.node, |owner| *owner == owner_value(node));
    if is_it(&cluster.own) {
        return Ok(JobLocation::ThisNode);
    }
    let node = registry::list(&*cluster.store).await.map_err(retry_later)?.into_iter().find(is_it);
    // A tenant is not redirected to a node that this node can't reach either.
    let node = node.filter(|node| cluster.connection(NodeId(node.number.into())).is_some());
    Ok(node.map_or(JobLocation::Unreachable, |node| JobLocation::OtherNode(node.address)))
}
