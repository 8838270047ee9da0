//! The tenant API: requests of tenants, which connect from outside the cluster.

use std::sync::Arc;
use std::time::Duration;

use sandbar_jobs::{JobQuery, JobResponse, StoredJob};
use sandbar_wire::{Connection, Frames, Name, Role, TenantRole, TokenId};

use super::door::{DoorPermit, DoorUse};
use super::follow::follow;
use super::job::{ClusterJob, JobWork};
use super::lookup::{self, JobLocation};
use super::submission::{check_submission, submit};
use super::tenant_audit::AuditedRequest;
use super::tenant_client::Client;
use super::tenant_messages::{RefusalCode, TENANT_API, TenantRequest, TenantResponse};
use super::tenant_responses::{Outcome, node_failed, refused, rejected, retry_later, send, while_in_progress};
use crate::error::ClusterError;
use crate::state::ClusterState;
use crate::tenants::{self, NewTokenSpec, TenantError};
use crate::usage::{UsageBy, UsageQuery};
use crate::{actors, chunks, component_registry, files, registry, usage};

/// Maximum time until a tenant sends its request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time until a tenant receives each chunk of a response, and closes the channel after the last response.
pub(crate) const RESPONSE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: usize = 512 << 10;
/// Maximum jobs of a list, and maximum bytes of them as JSON.
const LISTED_MAX: u32 = 1000;
const LISTED_BYTES_MAX: usize = 768 << 10;
/// Maximum arguments of a listed job, and maximum characters of each value and of its error.
const LISTED_ARGUMENTS_MAX: usize = 20;
const LISTED_CHARS_MAX: usize = 200;

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
    // The certificate of a tenant has an access.
    let Some(access) = connection.peer().access else { return };
    let client = Client { tenant: &connection.peer().name, access };
    let response = match cluster.door.enter(client.tenant, DoorUse::Opening) {
        Ok(opening) => {
            tokio::select! {
                response = respond(&cluster, client, opening, &mut frames) => response,
                // The tenant has disconnected, or its certificate is no longer accepted.
                _ = connection.closed() => return,
            }
        }
        Err(rejection) => Some(rejection),
    };
    if let Some(response) = response {
        let _ = send(&frames, &response).await;
    }
    // Keeps the channel open until the tenant has read the response.
    let _ = tokio::time::timeout(RESPONSE_TIME_MAX, async {
        let _ = frames.flush().await;
        frames.recv().await
    })
    .await;
}

/// Reads and handles a request. Returns the last response, unless it was sent or the tenant sends no request.
async fn respond(
    cluster: &Arc<ClusterState>,
    client: Client<'_>,
    opening: DoorPermit,
    frames: &mut Frames,
) -> Option<TenantResponse> {
    let Ok(Ok(Some(bytes))) = tokio::time::timeout(REQUEST_TIME_MAX, frames.recv()).await else { return None };
    let mut audited = AuditedRequest::unknown();
    let handled = async {
        let request = parse(&bytes)?;
        drop(bytes);
        audited = AuditedRequest::new(&request);
        let kind = match &request {
            TenantRequest::Submit(_) | TenantRequest::PushComponent(_) => DoorUse::Submission,
            TenantRequest::Follow { .. } => DoorUse::Follow,
            TenantRequest::Output { .. } | TenantRequest::PullComponent { .. } => DoorUse::Download,
            _ => DoorUse::Request,
        };
        let _permit = cluster.door.enter(client.tenant, kind)?;
        drop(opening);
        let (role, own) = (request.role(), client.access.role);
        if own < role {
            return Err(refused(
                RefusalCode::Role,
                format!("the request needs the role `{role}`, the client has `{own}`"),
            ));
        }
        if audited.is_change() {
            cluster.audit.check().await.map_err(node_failed)?;
        }
        handle(cluster, client, request, frames).await
    };
    let handled = handled.await;
    audited.record(cluster, client, &handled).await;
    handled.unwrap_or_else(Some)
}

/// Parses a request. Unknown fields are ignored: later versions may send them.
fn parse(bytes: &[u8]) -> Outcome<TenantRequest> {
    let malformed = |message: String| refused(RefusalCode::Request, message);
    if bytes.len() > REQUEST_BYTES_MAX {
        return Err(malformed(format!("the request has {} bytes, the limit is {REQUEST_BYTES_MAX}", bytes.len())));
    }
    serde_json::from_slice(bytes).map_err(|e| {
        let own = env!("CARGO_PKG_VERSION");
        malformed(format!("the request can't be decoded by this node, which has version {own}: {e}"))
    })
}

/// Fuzz harness: parses a request and checks it as the node does before it reads anything else. Returns whether the node
/// would go on.
///
/// # Panics
/// Panics if the request has another meaning after it was encoded and parsed again.
pub fn fuzz_tenant_request(bytes: &[u8]) -> bool {
    let Ok(request) = parse(bytes) else { return false };
    if let Ok(again) = serde_json::to_vec(&request)
        && again.len() <= REQUEST_BYTES_MAX
    {
        assert_eq!(parse(&again).map(|again| format!("{again:?}")).ok(), Some(format!("{request:?}")));
    }
    match &request {
        TenantRequest::Submit(new) => check_submission(new).is_ok(),
        TenantRequest::Query { query, .. } => refused_query(query).is_none(),
        request => request.role() <= TenantRole::Admin,
    }
}

/// Handles a request. Returns the last response, unless it was sent.
async fn handle(
    cluster: &Arc<ClusterState>,
    client: Client<'_>,
    request: TenantRequest,
    frames: &mut Frames,
) -> Outcome<Option<TenantResponse>> {
    let tenant = client.tenant;
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
        TenantRequest::Tenant => {
            let mut found = tenants::list(&*cluster.store, Some(tenant)).await.map_err(rejected)?;
            let own = found.pop().ok_or_else(|| retry_later("the tenant is unknown"))?;
            Ok(Some(TenantResponse::Tenant(Box::new(own))))
        }
        TenantRequest::CreateToken { role, use_once, lifetime_s } => {
            create_token(cluster, client, role, use_once, Duration::from_secs(lifetime_s)).await.map(Some)
        }
        TenantRequest::RevokeToken { token } => revoke_token(cluster, client, token).await.map(Some),
        TenantRequest::Actors => {
            let mut actors = actors::list(cluster, tenant).await;
            actors.truncate(LISTED_MAX as usize);
            Ok(Some(TenantResponse::Actors(actors)))
        }
        TenantRequest::StopActor { actor } => match actors::end(cluster, tenant, &actor).await {
            true => Ok(Some(TenantResponse::Done)),
            false => Err(refused(
                RefusalCode::NoActor,
                "the tenant has no such actor that outlives its job; `host actors list --node ADDRESS` lists them",
            )),
        },
        TenantRequest::Output { job } => send_output(cluster, tenant, &job, frames).await,
        TenantRequest::Usage { since_ms, job, by } => send_usage(cluster, tenant, since_ms, job, by, frames).await,
        TenantRequest::PushComponent(new) => component_registry::push(cluster, tenant, new, frames).await.map(Some),
        TenantRequest::Components => component_registry::list(cluster, tenant, frames).await,
        TenantRequest::PullComponent { component } => {
            component_registry::pull(cluster, tenant, component, frames).await
        }
        TenantRequest::YankComponent { version, yanked } => {
            component_registry::yank(cluster, tenant, &version, yanked).await.map(Some)
        }
        TenantRequest::ComponentKeys => component_registry::keys(cluster, tenant).await.map(Some),
        TenantRequest::AddComponentKey { key } => component_registry::add_key(cluster, tenant, key).await.map(Some),
        TenantRequest::RemoveComponentKey { key } => {
            component_registry::remove_key(cluster, tenant, key).await.map(Some)
        }
        TenantRequest::FindIssuer => Ok(Some(redirect_to_issuer(cluster).await?.unwrap_or(TenantResponse::Done))),
    }
}

/// Sends what the tenant has used since it exists: an earlier one may have had its name.
async fn send_usage(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    since_ms: u64,
    job: Option<String>,
    by: UsageBy,
    frames: &Frames,
) -> Outcome<Option<TenantResponse>> {
    if by == UsageBy::Node {
        return Err(refused(RefusalCode::Query, SHARED_NODES));
    }
    let own = tenants::list(&*cluster.store, Some(tenant)).await.map_err(rejected)?.pop();
    let created_ms = own.map_or(u64::MAX, |own| own.created.0.saturating_mul(1000));
    let query = UsageQuery { tenant: Some(tenant.clone()), job, since_ms: since_ms.max(created_ms), by };
    let report = usage::report(cluster, &query).await.map_err(|error| match error {
        ClusterError::Refused(reason) => refused(RefusalCode::Query, reason),
        error => rejected(error),
    })?;
    let bytes = serde_json::to_vec(&report).map_err(node_failed)?;
    send(frames, &TenantResponse::Usage).await?;
    chunks::send(frames, &bytes, RESPONSE_TIME_MAX).await.map_err(retry_later)?;
    Ok(None)
}

/// Creates a token of the client's tenant.
async fn create_token(
    cluster: &ClusterState,
    client: Client<'_>,
    role: TenantRole,
    use_once: bool,
    lifetime: Duration,
) -> Outcome<TenantResponse> {
    check_role(client, role).map_err(|error| refused(RefusalCode::Role, error))?;
    if let Some(redirect) = redirect_to_issuer(cluster).await? {
        return Ok(redirect);
    }
    let spec = NewTokenSpec { role, use_once, lifetime, created_by: Some(client.access.token) };
    let issued = tenants::issue_token(&*cluster.store, cluster.authority.as_deref(), client.tenant, spec).await;
    match issued {
        Ok((token, text)) => Ok(TenantResponse::Token(Box::new(token), text)),
        Err(ClusterError::Identity(error)) => Err(refused(RefusalCode::Token, error)),
        Err(error) => Err(rejected(error)),
    }
}

/// Revokes a token of the client's tenant.
async fn revoke_token(cluster: &ClusterState, client: Client<'_>, token: TokenId) -> Outcome<TenantResponse> {
    let may_revoke = |token: &tenants::TenantToken| check_role(client, token.role);
    tenants::revoke_token(&*cluster.store, client.tenant, token, &may_revoke).await.map_err(rejected)?;
    cluster.network.endpoint.read_access().await;
    Ok(TenantResponse::Done)
}

fn check_role(client: Client<'_>, role: TenantRole) -> Result<(), TenantError> {
    let own = client.access.role;
    if role <= own { Ok(()) } else { Err(TenantError::HigherRole { own, role }) }
}

/// Returns a redirect to a node that issues certificates, unless this node does.
async fn redirect_to_issuer(cluster: &ClusterState) -> Outcome<Option<TenantResponse>> {
    if cluster.authority.is_some() {
        return Ok(None);
    }
    let members = registry::list(&*cluster.store).await.map_err(rejected)?;
    let issuer = members.into_iter().find(|member| member.has_authority);
    let issuer =
        issuer.ok_or_else(|| TenantResponse::RetryLater("no node that issues certificates lives".to_owned()))?;
    Ok(Some(TenantResponse::Redirect(issuer.address.to_string())))
}

/// Returns the tenant's last jobs, without their results, and with shortened arguments.
async fn list(cluster: &ClusterState, tenant: &Name, limit: u32) -> Outcome<Vec<ClusterJob>> {
    let all = lookup::list(cluster, tenant).await?;
    let mut bytes = 0;
    let mut listed = Vec::new();
    for job in all.into_iter().rev().take(limit as usize).map(shorten) {
        bytes += serde_json::to_vec(&job).map_err(node_failed)?.len();
        if bytes > LISTED_BYTES_MAX {
            break;
        }
        listed.push(job);
    }
    Ok(listed)
}

fn shorten(mut job: ClusterJob) -> ClusterJob {
    let cut = |text: &mut String| {
        if let Some((at, _)) = text.char_indices().nth(LISTED_CHARS_MAX) {
            text.truncate(at);
            text.push('…');
        }
    };
    job.result = serde_json::Value::Null;
    match &mut job.work {
        JobWork::Program(program) => {
            program.arguments.truncate(LISTED_ARGUMENTS_MAX);
            program.files.clear();
            for (name, value) in &mut program.arguments {
                cut(name);
                cut(value);
            }
        }
        JobWork::JobFile { job_file } => {
            job_file.inputs.clear();
            job_file.components.clear();
            let job = &mut job_file.job;
            job.input.paths.clear();
            job.transform.clear();
            job.train = None;
        }
        JobWork::Prediction { prediction } => {
            prediction.inputs.clear();
            prediction.components.clear();
        }
    }
    if let Some(error) = &mut job.error {
        cut(&mut error.message);
    }
    job
}

/// Finds the records of a job on this node.
async fn find_stored(cluster: &Arc<ClusterState>, job: &ClusterJob) -> Outcome<StoredJob> {
    let (store, id) = (cluster.jobs.store(&job.tenant), job.id.clone());
    // The job may not have started yet.
    let found = tokio::task::spawn_blocking(move || store.find(id.as_str())).await.map_err(node_failed)?;
    found.map_err(retry_later)
}

/// Stops a job.
async fn stop(cluster: &Arc<ClusterState>, tenant: &Name, text: &str) -> Outcome<TenantResponse> {
    let job = lookup::find(cluster, tenant, text).await?;
    if job.state.is_finished() {
        return Ok(TenantResponse::Job(Box::new(job)));
    }
    match lookup::locate(cluster, &job).await? {
        JobLocation::OtherNode(address) => return Ok(TenantResponse::Redirect(address.to_string())),
        JobLocation::Unreachable => return Err(TenantResponse::RetryLater(NOT_TAKEN_OVER.to_owned())),
        JobLocation::ThisNode => {}
    }
    let stored = find_stored(cluster, &job).await?;
    let stopped = tokio::task::spawn_blocking(move || stored.query_node(&JobQuery::Stop)).await;
    stopped.map_err(retry_later)?.map_err(retry_later)?;
    Ok(TenantResponse::Job(Box::new(job)))
}

/// Sends the output of a job file, which any node may have.
async fn send_output(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    text: &str,
    frames: &Frames,
) -> Outcome<Option<TenantResponse>> {
    let job = lookup::find(cluster, tenant, text).await?;
    let (id, state) = (job.id.short(), job.state.as_str());
    let Some(output) = job.output else {
        let message = format!("job {id} ({state}) has no output: only job files that have succeeded have one");
        return Err(refused(RefusalCode::NoOutput, message));
    };
    let fetched = while_in_progress(frames, files::fetch_all(cluster, tenant, &[output])).await;
    let fetched = fetched.map_err(|fault| {
        log::debug!("the output of job {id} can't be sent: {fault}");
        let message = format!(
            "no node has the output of job {id} any more: the tenant's other files needed the space \
             (`files-bytes-max`), or its nodes are unreachable; submit the job again"
        );
        refused(RefusalCode::NoOutput, message)
    })?;
    send(frames, &TenantResponse::Output(output)).await?;
    for file in &fetched {
        files::send(frames, file.path()).await.map_err(retry_later)?;
    }
    Ok(None)
}

const NOT_TAKEN_OVER: &str = "the job's node is lost, and no other node has taken the job over yet";

/// Sends the response to a query of a job. Returns a redirect if another node has the job's records.
async fn handle_query(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    text: &str,
    query: JobQuery,
    frames: &Frames,
) -> Outcome<Option<TenantResponse>> {
    if let Some(reason) = refused_query(&query) {
        return Err(refused(RefusalCode::Query, reason));
    }
    let job = lookup::find(cluster, tenant, text).await?;
    if !matches!(job.work, JobWork::Program(_)) {
        return Err(refused(RefusalCode::Query, "the job runs a job file or predicts: it has no tasks"));
    }
    match lookup::locate(cluster, &job).await? {
        JobLocation::OtherNode(address) => return Ok(Some(TenantResponse::Redirect(address.to_string()))),
        JobLocation::Unreachable if job.state.is_finished() => {
            let message = format!("node `{}`, which ran the job and has its records, is unreachable", job.node);
            return Err(refused(RefusalCode::Unreachable, message));
        }
        JobLocation::Unreachable => return Err(TenantResponse::RetryLater(NOT_TAKEN_OVER.to_owned())),
        JobLocation::ThisNode => {}
    }
    let stored = find_stored(cluster, &job).await?;
    let response = tokio::task::spawn_blocking(move || stored.query(&query)).await.map_err(node_failed)?;
    let response = response.map_err(retry_later)?.map(without_node);
    let bytes = serde_json::to_vec(&response).map_err(node_failed)?;
    send(frames, &TenantResponse::QueryResponse).await?;
    chunks::send(frames, &bytes, RESPONSE_TIME_MAX).await.map_err(retry_later)?;
    Ok(None)
}

const SHARED_NODES: &str = "workers and nodes are shared with other tenants: only the cluster's operator can list them";

/// Returns why a query of a tenant is refused, if it is. Workers and nodes serve other tenants, too.
fn refused_query(query: &JobQuery) -> Option<&'static str> {
    match query {
        JobQuery::Stop => Some("a query can't stop a job"),
        JobQuery::Workers { .. } | JobQuery::Nodes { .. } => Some(SHARED_NODES),
        JobQuery::Tasks { .. }
        | JobQuery::Summary
        | JobQuery::Actors { .. }
        | JobQuery::Objects { .. }
        | JobQuery::Groups { .. }
        | JobQuery::Memory => None,
    }
}

/// Removes what a response says about the node.
fn without_node(response: JobResponse) -> JobResponse {
    match response {
        JobResponse::Memory(mut view) => {
            view.processes.clear();
            JobResponse::Memory(view)
        }
        other => other,
    }
}
