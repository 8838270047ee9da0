//! A client of the tenant API: submits jobs to the nodes of a cluster, follows and queries them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use sandbar_jobs::{ActorRow, JobFolderLimits, JobQuery, JobResponse, LoggedLine, ProgressRow};
use sandbar_wire::{
    Clock, Connection, Endpoint, EndpointEnvironment, ExpectedPeer, Frames, Identity, JoinGrant, JoinToken, Name,
    NodeFolder, Role, SystemClock, TenantRole, TokenId, WireLimits,
};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::job::ClusterJob;
use super::tenant_messages::{NewClusterJob, Refusal, TENANT_API, TenantRequest, TenantResponse};
use super::uploaded::UploadContents;
use crate::addresses::{NodeAddress, unspecified};
use crate::attempts::{announce_if_slow, connect_first, retry};
use crate::error::ClusterError;
use crate::files::{self, FileId, StoredFile};
use crate::identity::{IDENTITY, check_same_cluster};
use crate::tenants::{Tenant, TenantToken};
use crate::uploads::{IncompletePath, UploadError};
use crate::usage::{UsageBy, UsageReport};
use crate::{chunks, components, encoding};

/// Maximum time for which another command locks the data folder.
const FOLDER_TIME_MAX: Duration = Duration::from_secs(5);
/// Delay between retries.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum connect timeout, in milliseconds.
const CONNECT_MS_MAX: u64 = 600_000;
/// Maximum time to renew the certificate when the client connects.
const RENEW_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum silence of a node that processes a request. Then the request is repeated, or sent to another node.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Timeouts of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// Maximum time of the first connection, at any address of the node's name.
    pub connect_max: Duration,
    /// Maximum time to reach any node after a first answer.
    pub reconnect_max: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> ClientTimeouts {
        ClientTimeouts { connect_max: Duration::from_secs(5), reconnect_max: Duration::from_secs(60) }
    }
}

/// A tenant's client of a cluster.
#[derive(Debug)]
pub struct ClusterClient {
    tenant: Name,
    endpoint: Endpoint,
    timeouts: ClientTimeouts,
    /// Addresses of nodes, in the order in which requests are sent to them.
    nodes: VecDeque<SocketAddr>,
    connection: Option<(SocketAddr, Connection)>,
}

/// An event of a followed job.
#[derive(Debug)]
pub enum FollowEvent {
    /// A log line.
    Line(LoggedLine),
    /// Progress of the job's tasks.
    Progress(Vec<ProgressRow>),
    /// The node of the job is lost, and this node has taken the job over and restarts it.
    TakenOver(String),
    /// The node at this address has the job's log, but can't be reached from here. Other nodes report its state.
    LogUnreachable(SocketAddr),
    /// No node responds, for this reason. The client retries for this time.
    Disconnected(String, Duration),
}

/// State of a client that follows a job.
#[derive(Debug, Default)]
struct FollowPosition {
    /// The followed run, once known.
    run: Option<u32>,
    /// Log lines of that run that were received.
    lines: u64,
    disconnected_since: Option<Instant>,
    /// Target of the last redirect.
    redirected_to: Option<SocketAddr>,
    /// The redirect failed: another node reports the state, without the log.
    without_log: bool,
}

impl ClusterClient {
    /// Connects to a node of a cluster, with the certificate in the data folder, or with a token for one. Must be called in a
    /// tokio runtime.
    ///
    /// # Errors
    /// Fails if the folder has no certificate and there is no token, or if the node does not respond or refuses the client.
    pub async fn connect(
        data: &Path,
        node: &NodeAddress,
        token: Option<&str>,
        timeouts: ClientTimeouts,
    ) -> Result<ClusterClient, ClusterError> {
        let time = timeouts.connect_max;
        let connected = async {
            let identity = load_or_join(data, node, token, time).await?;
            // The endpoint has another socket for addresses of the other family.
            let endpoint = Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), &identity, limits(time))?;
            let attempt = async |address| Ok(endpoint.connect(address, &ExpectedPeer::AnyNode).await?);
            let (address, connection) = retry(time, async || connect_first(node, time, attempt).await).await?;
            let (nodes, connection) = (VecDeque::from([address]), Some((address, connection)));
            let tenant = identity.own().name.clone();
            Ok::<_, ClusterError>((ClusterClient { tenant, endpoint, timeouts, nodes, connection }, identity))
        };
        let (mut client, identity) = announce_if_slow(node, time, connected).await?;
        // The renewal may need another node.
        let node = (client.nodes.clone(), client.connection.clone());
        let renewed = tokio::time::timeout(RENEW_TIME_MAX, client.renew_certificate(data, &identity)).await;
        match renewed.unwrap_or(Err(ClusterError::NoResponse)) {
            Ok(()) => {}
            Err(error) => log::debug!("the certificate can't be renewed yet: {error}"),
        }
        (client.nodes, client.connection) = node;
        Ok(client)
    }

    /// Returns the name of the client's tenant.
    pub fn tenant_name(&self) -> &Name {
        &self.tenant
    }

    /// Submits a job with these components and files. Returns it as the node stored it. However often the request is
    /// repeated, the job is submitted once: its submission key is the same.
    ///
    /// # Errors
    /// Fails if a node refuses the job, or none responds in time.
    pub async fn submit(&mut self, new: NewClusterJob, contents: &UploadContents) -> Result<ClusterJob, ClusterError> {
        let started = Instant::now();
        loop {
            match self.submit_once(&new, contents).await {
                Err(error) if error.may_retry() && started.elapsed() < self.timeouts.reconnect_max => {
                    self.use_next_node();
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                done => return done,
            }
        }
    }

    async fn submit_once(
        &mut self,
        new: &NewClusterJob,
        contents: &UploadContents,
    ) -> Result<ClusterJob, ClusterError> {
        let mut frames = self.send(&TenantRequest::Submit(new.clone())).await?;
        let path = |file: FileId| {
            let registered = || ClusterError::Refused(format!("{}: {}", file.short(), components::NOWHERE));
            let unknown = || ClusterError::Malformed(format!("a request of the unknown file {file}"));
            let is_registered = new.work.components().contains(&file.component());
            contents.path(file).ok_or_else(|| if is_registered { registered() } else { unknown() })
        };
        loop {
            match receive(&mut frames).await? {
                TenantResponse::SendComponent => {
                    for component in new.work.components() {
                        files::send(&frames, path(component.into())?).await?;
                    }
                }
                TenantResponse::SendContent(file) => files::send(&frames, path(file)?).await?,
                TenantResponse::Job(job) => return Ok(*job),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Returns a job.
    ///
    /// # Errors
    /// Fails if no job has that name, or no node responds.
    pub async fn status(&mut self, job: &str) -> Result<ClusterJob, ClusterError> {
        self.retry_until_answered(async |client| client.status_once(job).await.map(Some)).await
    }

    async fn status_once(&mut self, job: &str) -> Result<ClusterJob, ClusterError> {
        let mut frames = self.send(&TenantRequest::Status { job: job.to_owned() }).await?;
        match receive(&mut frames).await? {
            TenantResponse::Job(job) => Ok(*job),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns at most `limit` jobs, the last one first.
    ///
    /// # Errors
    /// Fails if no node responds.
    pub async fn list(&mut self, limit: u32) -> Result<Vec<ClusterJob>, ClusterError> {
        let list = async |client: &mut ClusterClient| {
            let mut frames = client.send(&TenantRequest::List { limit }).await?;
            match receive(&mut frames).await? {
                TenantResponse::Jobs(jobs) => Ok(Some(jobs)),
                other => Err(unexpected(&other)),
            }
        };
        self.retry_until_answered(list).await
    }

    /// Returns the client's tenant, with its settings and tokens.
    ///
    /// # Errors
    /// Fails if the client is no admin, or no node responds.
    pub async fn tenant(&mut self) -> Result<Tenant, ClusterError> {
        match self.request_redirected(&TenantRequest::Tenant).await? {
            TenantResponse::Tenant(tenant) => Ok(*tenant),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a token of the client's tenant. Returns it with its secret text.
    ///
    /// # Errors
    /// Fails if the client is no admin, the lifetime is too long, or no node that issues certificates responds.
    pub async fn create_token(
        &mut self,
        role: TenantRole,
        use_once: bool,
        lifetime: Duration,
    ) -> Result<(TenantToken, String), ClusterError> {
        let request = TenantRequest::CreateToken { role, use_once, lifetime_s: lifetime.as_secs() };
        match self.request_redirected(&request).await? {
            TenantResponse::Token(token, text) => Ok((*token, text)),
            other => Err(unexpected(&other)),
        }
    }

    /// Revokes a token of the client's tenant, and all certificates that came from it.
    ///
    /// # Errors
    /// Fails if the client is no admin, the tenant has no such token, or no node responds.
    pub async fn revoke_token(&mut self, token: TokenId) -> Result<(), ClusterError> {
        self.request_change(&TenantRequest::RevokeToken { token }).await
    }

    /// Sends a request, to another node if the first one redirects it. Returns the response.
    pub(super) async fn request_redirected(&mut self, request: &TenantRequest) -> Result<TenantResponse, ClusterError> {
        let once = async |client: &mut ClusterClient| {
            let mut frames = client.send(request).await?;
            match receive(&mut frames).await? {
                TenantResponse::Redirect(address) => {
                    client.use_node(&address);
                    Ok(None)
                }
                response => Ok(Some(response)),
            }
        };
        self.retry_until_answered(once).await
    }

    /// Renews the client's certificate if two thirds of its time are over. Until it has expired, failures do not matter.
    async fn renew_certificate(&mut self, data: &Path, identity: &Identity) -> Result<(), ClusterError> {
        if SystemClock.now() < identity.renew_at() {
            return Ok(());
        }
        match self.request_redirected(&TenantRequest::FindIssuer).await? {
            TenantResponse::Done => {}
            other => return Err(unexpected(&other)),
        }
        let (_, connection) = self.connection.as_ref().ok_or(ClusterError::NoResponse)?;
        let renewed = self.endpoint.renew(connection).await?;
        lock(&data.join(IDENTITY)).await?.save(&renewed)?;
        self.endpoint.set_identity(&renewed)?;
        Ok(())
    }

    /// Queries the node that runs or ran a job. Returns `None` if the job has no record of that kind.
    ///
    /// # Errors
    /// Fails if no job has that name, or its node does not respond in time.
    pub async fn query(&mut self, job: &str, query: &JobQuery) -> Result<Option<JobResponse>, ClusterError> {
        self.retry_until_answered(async |client| client.query_once(job, query).await).await
    }

    /// Returns `None` after a redirect.
    async fn query_once(&mut self, job: &str, query: &JobQuery) -> Result<Option<Option<JobResponse>>, ClusterError> {
        let mut frames = self.send(&TenantRequest::Query { job: job.to_owned(), query: query.clone() }).await?;
        match receive(&mut frames).await? {
            TenantResponse::QueryResponse => {}
            TenantResponse::Redirect(address) => {
                self.use_node(&address);
                return Ok(None);
            }
            other => return Err(unexpected(&other)),
        }
        let bytes_max = JobFolderLimits::DEFAULT.response_bytes_max;
        let bytes = chunks::receive(&mut frames, bytes_max, SILENCE_MAX).await?;
        match serde_json::from_slice(&bytes).map_err(|e| ClusterError::Malformed(e.to_string()))? {
            Some(JobResponse::Refused(reason)) => Err(ClusterError::Refused(reason)),
            response => Ok(Some(response)),
        }
    }

    /// Returns what the tenant has used since this time, in milliseconds since 1970: of one job or all, by job or in all.
    ///
    /// # Errors
    /// Fails if no node responds, or the report is too long.
    pub async fn usage(&mut self, since_ms: u64, job: Option<&str>, by: UsageBy) -> Result<UsageReport, ClusterError> {
        let request = TenantRequest::Usage { since_ms, job: job.map(str::to_owned), by };
        self.request_json(&request, |response| matches!(response, TenantResponse::Usage)).await
    }

    /// Sends a request, and returns the JSON whose chunks follow the response that `is_start` accepts.
    pub(super) async fn request_json<T: DeserializeOwned>(
        &mut self,
        request: &TenantRequest,
        is_start: fn(&TenantResponse) -> bool,
    ) -> Result<T, ClusterError> {
        let once = async |client: &mut ClusterClient| {
            let mut frames = client.send(request).await?;
            let start = receive(&mut frames).await?;
            if !is_start(&start) {
                return Err(unexpected(&start));
            }
            let bytes_max = JobFolderLimits::DEFAULT.response_bytes_max;
            let bytes = chunks::receive(&mut frames, bytes_max, SILENCE_MAX).await?;
            serde_json::from_slice(&bytes).map(Some).map_err(|e| ClusterError::Malformed(e.to_string()))
        };
        self.retry_until_answered(once).await
    }

    /// Returns the tenant's actors that outlive the jobs that created them, in the order of their names.
    ///
    /// # Errors
    /// Fails if no node responds.
    pub async fn actors(&mut self) -> Result<Vec<ActorRow>, ClusterError> {
        match self.request_redirected(&TenantRequest::Actors).await? {
            TenantResponse::Actors(actors) => Ok(actors),
            other => Err(unexpected(&other)),
        }
    }

    /// Stops such an actor, by its name or id.
    ///
    /// # Errors
    /// Fails if the tenant has no such actor, the client is a viewer, or no node responds.
    pub async fn stop_actor(&mut self, actor: &str) -> Result<(), ClusterError> {
        self.request_change(&TenantRequest::StopActor { actor: actor.to_owned() }).await
    }

    /// Downloads the output of a job file, and then replaces the file at `path`. Creates the folders of `path`.
    ///
    /// # Errors
    /// Fails if the job has no output, no node has it any more, or the file can't be written.
    pub async fn download_output(&mut self, job: &str, path: &Path) -> Result<StoredFile, ClusterError> {
        self.download(&TenantRequest::Output { job: job.to_owned() }, path).await
    }

    /// Downloads the file that a request names.
    pub(super) async fn download(&mut self, request: &TenantRequest, path: &Path) -> Result<StoredFile, ClusterError> {
        let refused = |error: UploadError| ClusterError::Refused(error.to_string());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let draft = IncompletePath::new(folder).map_err(refused)?;
        let file = File::create_new(draft.path()).map_err(|e| ClusterError::Folder(draft.path().to_owned(), e))?;
        let once = async |client: &mut ClusterClient| client.download_once(request, &file, path).await.map(Some);
        let stored = self.retry_until_answered(once).await?;
        draft.complete(path).map_err(refused)?;
        Ok(stored)
    }

    async fn download_once(
        &mut self,
        request: &TenantRequest,
        file: &File,
        path: &Path,
    ) -> Result<StoredFile, ClusterError> {
        let fail = |e| ClusterError::Folder(path.to_owned(), e);
        let mut frames = self.send(request).await?;
        let stored = match receive(&mut frames).await? {
            TenantResponse::Output(stored) => stored,
            other => return Err(unexpected(&other)),
        };
        // An earlier attempt may have written a part.
        file.set_len(0).map_err(fail)?;
        let mut written = file;
        written.rewind().map_err(fail)?;
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        let write = |chunk: &[u8]| {
            hash.update(chunk);
            bytes += chunk.len() as u64;
            written.write_all(chunk)
        };
        chunks::receive_into(&mut frames, stored.bytes, SILENCE_MAX, write).await?;
        if bytes != stored.bytes || FileId::from_hash(hash) != stored.file {
            return Err(ClusterError::MessageIncomplete);
        }
        Ok(stored)
    }

    pub(super) async fn request_change(&mut self, request: &TenantRequest) -> Result<(), ClusterError> {
        match self.request_redirected(request).await? {
            TenantResponse::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Stops a job. Returns it as it was before.
    ///
    /// # Errors
    /// Fails if no job has that name, or its node does not respond in time.
    pub async fn stop(&mut self, job: &str) -> Result<ClusterJob, ClusterError> {
        self.retry_until_answered(async |client| client.stop_once(job).await).await
    }

    /// Retries a request, following redirects to the node that runs the job, for up to `reconnect_max`.
    pub(super) async fn retry_until_answered<T>(
        &mut self,
        mut once: impl AsyncFnMut(&mut Self) -> Result<Option<T>, ClusterError>,
    ) -> Result<T, ClusterError> {
        let started = Instant::now();
        loop {
            let error = match once(self).await {
                Ok(Some(response)) => return Ok(response),
                Ok(None) => ClusterError::RetryLater("nodes redirect the request to each other".to_owned()),
                Err(error) => {
                    self.use_next_node();
                    error
                }
            };
            if !error.may_retry() || started.elapsed() > self.timeouts.reconnect_max {
                return Err(error);
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Returns `None` after a redirect.
    async fn stop_once(&mut self, job: &str) -> Result<Option<ClusterJob>, ClusterError> {
        let mut frames = self.send(&TenantRequest::Stop { job: job.to_owned() }).await?;
        match receive(&mut frames).await? {
            TenantResponse::Job(job) => Ok(Some(*job)),
            TenantResponse::Redirect(address) => {
                self.use_node(&address);
                Ok(None)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Follows a job to its end, whichever nodes run it. Returns the finished job.
    ///
    /// # Errors
    /// Fails if no job has that name, or no node responds in time.
    pub async fn follow(
        &mut self,
        job: &str,
        mut on_event: impl FnMut(FollowEvent),
    ) -> Result<ClusterJob, ClusterError> {
        let mut position = FollowPosition::default();
        loop {
            match self.follow_once(job, &mut position, &mut on_event).await {
                Ok(Some(job)) => return Ok(job),
                Ok(None) => {}
                Err(error) if !error.may_retry() => return Err(error),
                Err(error) => {
                    let time = self.timeouts.reconnect_max;
                    let since = *position.disconnected_since.get_or_insert_with(|| {
                        on_event(FollowEvent::Disconnected(error.to_string(), time));
                        Instant::now()
                    });
                    if since.elapsed() > time {
                        return Err(ClusterError::TimedOut(Box::new(error), since.elapsed()));
                    }
                    self.use_next_node();
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Follows one run on one node. Returns `None` if the run has ended without finishing the job, or after a redirect.
    async fn follow_once(
        &mut self,
        job: &str,
        position: &mut FollowPosition,
        on_event: &mut impl FnMut(FollowEvent),
    ) -> Result<Option<ClusterJob>, ClusterError> {
        let current = self.status(job).await?;
        let failed_redirect = position.redirected_to.take_if(|target| self.nodes.front() != Some(target));
        if let Some(target) = failed_redirect {
            position.without_log = true;
            on_event(FollowEvent::LogUnreachable(target));
        }
        // Each run has its own log.
        if position.run != Some(current.runs) {
            if position.run.is_some() {
                on_event(FollowEvent::TakenOver(current.node.clone()));
            }
            (position.run, position.lines, position.without_log) = (Some(current.runs), 0, false);
        }
        let (run, lines, without_log) = (current.runs, position.lines, position.without_log);
        let follow = TenantRequest::Follow { job: current.id.to_string(), run, lines, without_log };
        let mut frames = self.send(&follow).await?;
        loop {
            match receive(&mut frames).await? {
                TenantResponse::Nodes(addresses) => {
                    position.disconnected_since = None;
                    let first = self.nodes.front().copied();
                    let others = addresses.iter().filter_map(|text| text.parse().ok());
                    self.nodes = first.into_iter().chain(others.filter(|other| Some(*other) != first)).collect();
                }
                TenantResponse::Line(line) => {
                    position.lines += 1;
                    on_event(FollowEvent::Line(line));
                }
                TenantResponse::Progress(rows) => on_event(FollowEvent::Progress(rows)),
                TenantResponse::Job(job) if job.state.is_finished() => return Ok(Some(*job)),
                TenantResponse::Job(job) if job.runs != run => return Ok(None),
                TenantResponse::Job(_) => {}
                TenantResponse::Redirect(address) => {
                    position.redirected_to = self.use_node(&address);
                    return Ok(None);
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Sends the next requests to the next node, if the client knows several.
    fn use_next_node(&mut self) {
        self.connection = None;
        let first = self.nodes.pop_front();
        self.nodes.extend(first);
    }

    /// Sends the next requests to this node.
    fn use_node(&mut self, address: &str) -> Option<SocketAddr> {
        let address = address.parse().ok()?;
        self.nodes.retain(|other| *other != address);
        self.nodes.push_front(address);
        self.connection = None;
        Some(address)
    }

    /// Sends a request to the first node that accepts it.
    pub(super) async fn send(&mut self, request: &TenantRequest) -> Result<Frames, ClusterError> {
        let bytes = encoding::json("the request", request)?;
        let mut failed = None;
        for _ in 0..self.nodes.len() {
            match self.open().await {
                Ok(frames) => {
                    frames.send(&bytes).await?;
                    return Ok(frames);
                }
                Err(error) => failed = Some(error),
            }
            self.use_next_node();
        }
        Err(failed.unwrap_or(ClusterError::NoResponse))
    }

    async fn open(&mut self) -> Result<Frames, ClusterError> {
        let address = *self.nodes.front().ok_or(ClusterError::NoResponse)?;
        let open = self.connection.take().filter(|(to, connection)| *to == address && !connection.is_closed());
        let connection = match open {
            Some((_, connection)) => connection,
            None => self.endpoint.connect(address, &ExpectedPeer::AnyNode).await?,
        };
        let opened = tokio::time::timeout(SILENCE_MAX, connection.open(TENANT_API)).await;
        let frames = opened.map_err(|_| ClusterError::NoResponse)??;
        self.connection = Some((address, connection));
        Ok(frames)
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.endpoint.close("the client has finished").await;
    }
}

/// Receives the next response.
pub(super) async fn receive(frames: &mut Frames) -> Result<TenantResponse, ClusterError> {
    loop {
        let frame = tokio::time::timeout(SILENCE_MAX, frames.recv()).await.map_err(|_| ClusterError::NoResponse)?;
        return match serde_json::from_slice(&frame?.ok_or(ClusterError::NoResponse)?) {
            Ok(TenantResponse::InProgress) => continue,
            Ok(TenantResponse::Refused(Refusal { code, message })) => Err(ClusterError::Denied { code, message }),
            Ok(TenantResponse::RetryLater(reason)) => Err(ClusterError::RetryLater(reason)),
            Ok(response) => Ok(response),
            Err(e) => Err(ClusterError::Malformed(e.to_string())),
        };
    }
}

pub(super) fn unexpected(response: &TenantResponse) -> ClusterError {
    let start: String = format!("{response:?}").chars().take(200).collect();
    ClusterError::Malformed(format!("the response does not belong to the request: {start}"))
}

/// Returns the limits of an endpoint with this connect timeout.
fn limits(connect: Duration) -> WireLimits {
    let ms = u64::try_from(connect.as_millis()).unwrap_or(u64::MAX);
    let default = WireLimits::default();
    WireLimits { connect_time_ms_max: ms.clamp(1, default.connect_time_ms_max.max(CONNECT_MS_MAX)), ..default }
}

/// Returns whether a token is for a tenant's certificate, and not the one from which the stored certificate comes.
fn is_other_token(data: &Path, identity: &Identity, token: &JoinToken) -> Result<bool, ClusterError> {
    let own = identity.own();
    match token.grant() {
        JoinGrant::Node => Ok(false),
        JoinGrant::Tenant(name, _) if *name != own.name => Err(ClusterError::OtherTenant {
            folder: data.to_owned(),
            has: own.name.to_string(),
            token: name.to_string(),
        }),
        JoinGrant::Tenant(..) => Ok(own.access.is_none_or(|access| access.token != token.id())),
    }
}

/// Locks the folder of the identity. Several commands of one user can start at once: each locks it for a moment.
async fn lock(folder: &Path) -> Result<NodeFolder, ClusterError> {
    let started = Instant::now();
    loop {
        match NodeFolder::lock(folder) {
            Ok(locked) => return Ok(locked),
            Err(_) if started.elapsed() < FOLDER_TIME_MAX => tokio::time::sleep(RETRY_DELAY).await,
            Err(e) => return Err(e.into()),
        }
    }
}

/// Returns the tenant's identity: the stored one, or a new one for a token.
async fn load_or_join(
    data: &Path,
    node: &NodeAddress,
    token: Option<&str>,
    time: Duration,
) -> Result<Identity, ClusterError> {
    let folder = lock(&data.join(IDENTITY)).await?;
    let token = token.map(|text| text.parse::<JoinToken>().map_err(ClusterError::Token)).transpose()?;
    match folder.load(SystemClock.now()) {
        Ok(Some(identity)) => {
            let Some(given) = &token else { return Ok(identity) };
            check_same_cluster(data, &identity, given)?;
            if !is_other_token(data, &identity, given)? {
                return Ok(identity);
            }
        }
        // With a token, an unusable certificate is replaced.
        Err(error) if token.is_none() => return Err(error.into()),
        Ok(None) | Err(_) => {}
    }
    let token = token.ok_or(ClusterError::TokenRequired)?;
    let JoinGrant::Tenant(name, _) = token.grant().clone() else { return Err(ClusterError::TokenRequired) };
    let (key, limits) = (folder.key()?, limits(time));
    let attempt = async |address| {
        let environment = EndpointEnvironment::udp(unspecified(address))?;
        Ok(sandbar_wire::join(environment, address, &token, key.clone(), Role::Tenant, &name, &limits).await?)
    };
    let (_, identity) = retry(time, async || connect_first(node, time, &attempt).await).await?;
    folder.save(&identity)?;
    Ok(identity)
}
