//! The tenant API: requests of tenants, which connect from outside the cluster.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::ComponentId;
use sandbar_jobs::{JobCounts, JobQuery, RunState, now_ms};
use sandbar_machine::write_atomically;
use sandbar_meta::Condition;
use sandbar_runtime::first_file_argument;
use sandbar_wire::{Connection, Frames, Role};

use super::follow::follow;
use super::job::{ARGUMENTS_BYTES_MAX, ClusterJob, job_key};
use super::leases::{acquire, start};
use super::lookup::{self, JobLocation};
use super::tenant_messages::{NewClusterJob, TENANT_API, TenantRequest, TenantResponse};
use super::tenant_responses::{Outcome, refused, rejected, retry_later, send, while_in_progress};
use crate::component_id::component_id;
use crate::state::ClusterState;
use crate::{chunks, components};

/// Maximum time until a tenant sends its request, each chunk of a component, and the end of the channel.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// Number of other nodes that get a copy of a job's component.
const COMPONENT_COPIES: usize = 2;
/// Maximum jobs of a list.
const LISTED_MAX: u32 = 1000;

/// Accepts connections of tenants.
pub(crate) async fn accept_tenants(cluster: Arc<ClusterState>) {
    while let Some(connection) = cluster.network.endpoint.accept(Role::Tenant).await {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            while let Ok((channel, frames)) = connection.accept().await {
                if channel == TENANT_API {
                    tokio::spawn(serve(cluster.clone(), connection.clone(), frames));
                }
            }
        });
    }
}

/// Serves one request.
async fn serve(cluster: Arc<ClusterState>, connection: Connection, mut frames: Frames) {
    let Ok(Ok(Some(request))) = tokio::time::timeout(REQUEST_TIME_MAX, frames.recv()).await else { return };
    let tenant = connection.peer().name.as_str();
    let response = match serde_json::from_slice(&request) {
        Ok(request) => handle(&cluster, tenant, request, &mut frames).await,
        Err(e) => {
            let own = env!("CARGO_PKG_VERSION");
            Err(refused(format!("the request can't be decoded by this node, which has version {own}: {e}")))
        }
    };
    if let Some(response) = response.unwrap_or_else(Some) {
        // The tenant may have disconnected.
        let _ = send(&frames, &response).await;
    }
    // Keeps the channel open until the tenant has read the response.
    let _ = frames.flush().await;
    let _ = tokio::time::timeout(REQUEST_TIME_MAX, frames.recv()).await;
}

/// Handles a request. Returns the last response, unless it was sent.
async fn handle(
    cluster: &Arc<ClusterState>,
    tenant: &str,
    request: TenantRequest,
    frames: &mut Frames,
) -> Outcome<Option<TenantResponse>> {
    match request {
        TenantRequest::Submit(new) => submit(cluster, tenant, new, frames).await.map(Some),
        TenantRequest::Follow { job, run, lines, without_log } => {
            follow(cluster, tenant, &job, run, lines, without_log, frames).await.map(Some)
        }
        TenantRequest::Status { job } => {
            let job = lookup::find(cluster, tenant, &job).await?;
            Ok(Some(TenantResponse::Job(Box::new(job))))
        }
        TenantRequest::Stop { job } => stop(cluster, tenant, &job).await.map(Some),
        TenantRequest::Query { job, query } => handle_query(cluster, tenant, &job, query, frames).await,
        TenantRequest::List { limit } => {
            let jobs = list(cluster, tenant, limit.min(LISTED_MAX)).await?;
            Ok(Some(TenantResponse::Jobs(jobs)))
        }
    }
}

/// Stores a job and starts it.
async fn submit(
    cluster: &Arc<ClusterState>,
    tenant: &str,
    new: NewClusterJob,
    frames: &mut Frames,
) -> Outcome<TenantResponse> {
    let NewClusterJob { id, program, component, task, arguments } = new;
    if let Some(job) = lookup::get(cluster, tenant, &id).await? {
        // The tenant did not receive the response to its first request.
        return Ok(TenantResponse::Job(Box::new(job)));
    }
    let bytes: usize = arguments.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ARGUMENTS_BYTES_MAX {
        return Err(refused(format!("the arguments have {bytes} bytes, the limit is {ARGUMENTS_BYTES_MAX}")));
    }
    if let Some(name) = first_file_argument(&arguments) {
        return Err(refused(format!(
            "argument `{name}` is a file: the cluster's nodes don't have this machine's files"
        )));
    }
    let path = cluster.component_path(component).ok_or_else(|| refused("this node runs no programs"))?;
    if !path.is_file() {
        send(frames, &TenantResponse::SendComponent).await?;
        let bytes = receive(component, frames).await?;
        write_atomically(&path, &bytes).map_err(|e| refused(format!("the component can't be stored: {e}")))?;
    }
    let prepared = async {
        // Reports a program that can't run at once.
        components::load_from_any(cluster, component).await.map_err(refused)?;
        components::replicate(cluster, component, COMPONENT_COPIES).await;
        Ok(())
    };
    while_in_progress(frames, prepared).await?;
    let job = ClusterJob {
        id: id.clone(),
        tenant: tenant.to_owned(),
        program,
        component,
        task,
        arguments,
        submitted_ms: now_ms(),
        ended_ms: None,
        state: RunState::Pending,
        runs: 1,
        node: String::new(),
        result: serde_json::Value::Null,
        error: None,
        counts: JobCounts::default(),
    };
    let key = job_key(&id).ok_or_else(|| refused(format!("`{id}` is not the name of a job")))?;
    let Some(owned) = acquire(cluster, job, Condition::absent(key)).await.map_err(rejected)? else {
        return Err(retry_later("the node is not a member of its cluster now"));
    };
    let job = owned.job.clone();
    start(cluster, owned);
    Ok(TenantResponse::Job(Box::new(job)))
}

/// Receives a component.
async fn receive(component: ComponentId, frames: &mut Frames) -> Outcome<Vec<u8>> {
    let bytes = chunks::receive(frames, components::COMPONENT_BYTES_MAX, REQUEST_TIME_MAX).await;
    let bytes = bytes.map_err(|reason| refused(format!("the component can't be received: {reason}")))?;
    match component_id(&bytes) == component {
        true => Ok(bytes),
        false => Err(refused("the sent component is not the one of the job")),
    }
}

/// Returns the tenant's last jobs, without their results.
async fn list(cluster: &ClusterState, tenant: &str, limit: u32) -> Outcome<Vec<ClusterJob>> {
    let mut all = lookup::list(cluster, tenant).await?;
    all.reverse();
    all.truncate(limit as usize);
    all.iter_mut().for_each(|job| job.result = serde_json::Value::Null);
    Ok(all)
}

/// Stops a job.
async fn stop(cluster: &ClusterState, tenant: &str, text: &str) -> Outcome<TenantResponse> {
    let job = lookup::find(cluster, tenant, text).await?;
    if job.state.is_finished() {
        return Ok(TenantResponse::Job(Box::new(job)));
    }
    match lookup::locate(cluster, &job).await? {
        JobLocation::OtherNode(address) => return Ok(TenantResponse::Redirect(address.to_string())),
        JobLocation::Unreachable => return Err(retry_later(NOT_TAKEN_OVER)),
        JobLocation::ThisNode => {}
    }
    // The job may not have started yet.
    let stored = cluster.jobs.store.find(job.id.as_str()).map_err(retry_later)?;
    let stopped = tokio::task::spawn_blocking(move || stored.query_node(&JobQuery::Stop)).await;
    stopped.map_err(retry_later)?.map_err(retry_later)?;
    Ok(TenantResponse::Job(Box::new(job)))
}

const NOT_TAKEN_OVER: &str = "the job's node is lost, and no other node has taken the job over yet";

/// Sends the response to a query of a job. Returns a redirect if another node has the job's records.
async fn handle_query(
    cluster: &Arc<ClusterState>,
    tenant: &str,
    text: &str,
    query: JobQuery,
    frames: &Frames,
) -> Outcome<Option<TenantResponse>> {
    if query == JobQuery::Stop {
        return Err(refused("a query can't stop a job"));
    }
    let job = lookup::find(cluster, tenant, text).await?;
    match lookup::locate(cluster, &job).await? {
        JobLocation::OtherNode(address) => return Ok(Some(TenantResponse::Redirect(address.to_string()))),
        JobLocation::Unreachable if job.state.is_finished() => {
            return Err(refused(format!("node `{}`, which ran the job and has its records, is unreachable", job.node)));
        }
        JobLocation::Unreachable => return Err(retry_later(NOT_TAKEN_OVER)),
        JobLocation::ThisNode => {}
    }
    let stored = cluster.jobs.store.find(job.id.as_str()).map_err(retry_later)?;
    let response = tokio::task::spawn_blocking(move || stored.query(&query)).await.map_err(refused)?;
    let bytes = serde_json::to_vec(&response.map_err(refused)?).map_err(refused)?;
    send(frames, &TenantResponse::QueryResponse).await?;
    chunks::send(frames, &bytes, REQUEST_TIME_MAX).await.map_err(refused)?;
    Ok(None)
}
