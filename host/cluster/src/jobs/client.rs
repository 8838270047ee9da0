//! A tenant's side: who asks the nodes of a cluster from outside.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use sandbar_jobs::{JobFolderLimits, JobQuery, JobResponse, LoggedLine, ProgressRow};
use sandbar_wire::{
    Clock, Connection, Endpoint, EndpointEnvironment, ExpectedPeer, Frames, Identity, JoinGrant, JoinToken, NodeFolder,
    Role, SystemClock, WireLimits,
};

use super::ClusterJob;
use super::door::JOBS_CHANNEL;
use super::said::{Answered, Asked, NewClusterJob};
use crate::reach::{NodeAddress, aloud, first, patiently, unspecified};
use crate::{ClusterError, IDENTITY, parts, same_cluster};

/// Who has this folder at the moment is done with it within this.
const FOLDER_TIME_MAX: Duration = Duration::from_secs(5);
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// The longest that a connection may take, whatever a user says, in milliseconds.
const CONNECT_MS_MAX: u64 = 600_000;
/// A node that says nothing for so long of what it was asked is asked anew, or another one is.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long a client waits for nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTimes {
    /// For the node that is named, the first time, whatever addresses its name stands for.
    pub connect_max: Duration,
    /// For any node, when what had answered does not any more.
    pub reconnect_max: Duration,
}

impl Default for ClientTimes {
    fn default() -> ClientTimes {
        ClientTimes { connect_max: Duration::from_secs(5), reconnect_max: Duration::from_secs(60) }
    }
}

/// Asks nodes of a cluster as a tenant.
#[derive(Debug)]
pub struct ClusterClient {
    endpoint: Endpoint,
    times: ClientTimes,
    /// Nodes, the one that is asked first first.
    nodes: VecDeque<SocketAddr>,
    connection: Option<(SocketAddr, Connection)>,
}

/// What is told of a job that is followed.
#[derive(Debug)]
pub enum Followed {
    /// A line of its log.
    Line(LoggedLine),
    /// How far its tasks are.
    Progress(Vec<ProgressRow>),
    /// Its node is gone, and this one has taken it: it begins anew.
    TakenOver(String),
    /// The node at this address has its log, and can't be reached from here: what comes of it others tell.
    WithoutLog(SocketAddr),
    /// Nobody answers, for this reason; it is tried again for so long.
    Away(String, Duration),
}

/// How far somebody is who follows a job.
#[derive(Debug, Default)]
struct Trail {
    /// How often it had been taken, and how many lines of its log since then were told.
    taken: Option<u32>,
    lines: u64,
    away_since: Option<Instant>,
    /// The node that it is said to be at.
    sent_to: Option<SocketAddr>,
    /// That could not be reached: another one tells what it can.
    stays: bool,
}

impl ClusterClient {
    /// A client of the cluster that a node is of: with the certificate in this folder, or with a token that gets one. It is
    /// connected to that node. Within a tokio runtime.
    ///
    /// # Errors
    /// When it has neither, or the node does not answer, or does not let it in.
    pub async fn connect(
        data: &Path,
        node: &NodeAddress,
        token: Option<&str>,
        times: ClientTimes,
    ) -> Result<ClusterClient, ClusterError> {
        let connected = async {
            let identity = identity(data, node, token, times.connect_max).await?;
            // Of an address of the other family the endpoint has another socket.
            let endpoint = Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), &identity, limits(times.connect_max))?;
            let attempt = async |address| Ok(endpoint.connect(address, &ExpectedPeer::AnyNode).await?);
            let connect = async || first(node, times.connect_max, attempt).await;
            let (address, connection) = patiently(times.connect_max, connect).await?;
            let (nodes, connection) = (VecDeque::from([address]), Some((address, connection)));
            Ok(ClusterClient { endpoint, times, nodes, connection })
        };
        aloud(node, times.connect_max, connected).await
    }

    /// Has a job of this component run. Gives it as it is then. It is one job however often its nodes have to be asked.
    ///
    /// # Errors
    /// When no node takes it, or none answers for a while.
    pub async fn submit(&mut self, new: NewClusterJob, component: &[u8]) -> Result<ClusterJob, ClusterError> {
        let begun = Instant::now();
        loop {
            match self.submit_once(&new, component).await {
                Err(error) if error.may_retry() && begun.elapsed() < self.times.reconnect_max => {
                    self.turn_away();
                    tokio::time::sleep(TRY_AGAIN).await;
                }
                done => return done,
            }
        }
    }

    async fn submit_once(&mut self, new: &NewClusterJob, component: &[u8]) -> Result<ClusterJob, ClusterError> {
        let mut frames = self.ask(&Asked::Submit(new.clone())).await?;
        loop {
            match answer(&mut frames).await? {
                Answered::Send => parts::send(&frames, component, SILENCE_MAX).await?,
                Answered::Job(job) => return Ok(*job),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// How a job is.
    ///
    /// # Errors
    /// When there is none of that name, or no node answers.
    pub async fn status(&mut self, job: &str) -> Result<ClusterJob, ClusterError> {
        let mut frames = self.ask(&Asked::Status { job: job.to_owned() }).await?;
        match answer(&mut frames).await? {
            Answered::Job(job) => Ok(*job),
            other => Err(unexpected(&other)),
        }
    }

    /// The last jobs, so many at most, the last first.
    ///
    /// # Errors
    /// When no node answers.
    pub async fn list(&mut self, limit: u32) -> Result<Vec<ClusterJob>, ClusterError> {
        let mut frames = self.ask(&Asked::List { limit }).await?;
        match answer(&mut frames).await? {
            Answered::Jobs(jobs) => Ok(jobs),
            other => Err(unexpected(&other)),
        }
    }

    /// What there is to be seen of a job, by the node that runs it, or ran it; none where nothing is kept of what is asked.
    ///
    /// # Errors
    /// When there is none of that name, or its node does not answer for a while.
    pub async fn look(&mut self, job: &str, question: &JobQuery) -> Result<Option<JobResponse>, ClusterError> {
        self.retry_until_answered(async |client| client.look_once(job, question).await).await
    }

    /// None if it is elsewhere: that node is asked next.
    async fn look_once(&mut self, job: &str, question: &JobQuery) -> Result<Option<Option<JobResponse>>, ClusterError> {
        let mut frames = self.ask(&Asked::Look { job: job.to_owned(), question: question.clone() }).await?;
        match answer(&mut frames).await? {
            Answered::Seen => {}
            Answered::Elsewhere(address) => {
                self.turn_to(&address);
                return Ok(None);
            }
            other => return Err(unexpected(&other)),
        }
        let bytes_max = JobFolderLimits::DEFAULT.response_bytes_max;
        let bytes = parts::recv(&mut frames, bytes_max, SILENCE_MAX).await.map_err(ClusterError::Later)?;
        match serde_json::from_slice(&bytes).map_err(|e| ClusterError::Malformed(e.to_string()))? {
            Some(JobResponse::Refused(why)) => Err(ClusterError::Refused(why)),
            seen => Ok(Some(seen)),
        }
    }

    /// Has a job end. Gives it as it was.
    ///
    /// # Errors
    /// When there is none of that name, or no node that runs it answers for a while.
    pub async fn stop(&mut self, job: &str) -> Result<ClusterJob, ClusterError> {
        self.retry_until_answered(async |client| client.stop_once(job).await).await
    }

    /// Retries a request, following redirects to the node that runs the job, for up to `reconnect_max`.
    async fn retry_until_answered<T>(
        &mut self,
        mut once: impl AsyncFnMut(&mut Self) -> Result<Option<T>, ClusterError>,
    ) -> Result<T, ClusterError> {
        let begun = Instant::now();
        loop {
            let error = match once(self).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => ClusterError::Later("it goes from node to node".to_owned()),
                Err(error) => {
                    self.turn_away();
                    error
                }
            };
            if !error.may_retry() || begun.elapsed() > self.times.reconnect_max {
                return Err(error);
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// None if it is elsewhere: that node is asked next.
    async fn stop_once(&mut self, job: &str) -> Result<Option<ClusterJob>, ClusterError> {
        let mut frames = self.ask(&Asked::Stop { job: job.to_owned() }).await?;
        match answer(&mut frames).await? {
            Answered::Job(job) => Ok(Some(*job)),
            Answered::Elsewhere(address) => {
                self.turn_to(&address);
                Ok(None)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Follows a job to its end, wherever it goes.
    ///
    /// # Errors
    /// When there is none of that name, or its nodes don't answer for a while.
    pub async fn follow(&mut self, job: &str, mut told: impl FnMut(Followed)) -> Result<ClusterJob, ClusterError> {
        let mut trail = Trail::default();
        loop {
            match self.follow_once(job, &mut trail, &mut told).await {
                Ok(Some(job)) => return Ok(job),
                Ok(None) => {}
                Err(error) if !error.may_retry() => return Err(error),
                Err(error) => {
                    let time = self.times.reconnect_max;
                    let begun = *trail.away_since.get_or_insert_with(|| {
                        told(Followed::Away(error.to_string(), time));
                        Instant::now()
                    });
                    if begun.elapsed() > time {
                        return Err(ClusterError::GaveUp(Box::new(error), begun.elapsed()));
                    }
                    self.turn_away();
                }
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Until its node is gone, or says that it is elsewhere.
    async fn follow_once(
        &mut self,
        job: &str,
        trail: &mut Trail,
        told: &mut impl FnMut(Followed),
    ) -> Result<Option<ClusterJob>, ClusterError> {
        let now = self.status(job).await?;
        if let Some(sent) = trail.sent_to.take_if(|sent| self.nodes.front() != Some(sent)) {
            trail.stays = true;
            told(Followed::WithoutLog(sent));
        }
        // Its log begins anew with the node that takes it.
        if trail.taken != Some(now.taken) {
            if trail.taken.is_some() {
                told(Followed::TakenOver(now.node.clone()));
            }
            (trail.taken, trail.lines, trail.stays) = (Some(now.taken), 0, false);
        }
        let follow =
            Asked::Follow { job: now.id.to_string(), taken: now.taken, after: trail.lines, stays: trail.stays };
        let mut frames = self.ask(&follow).await?;
        loop {
            match answer(&mut frames).await? {
                Answered::Nodes(addresses) => {
                    trail.away_since = None;
                    let first = self.nodes.front().copied();
                    let others = addresses.iter().filter_map(|text| text.parse().ok());
                    self.nodes = first.into_iter().chain(others.filter(|other| Some(*other) != first)).collect();
                }
                Answered::Line(line) => {
                    trail.lines += 1;
                    told(Followed::Line(line));
                }
                Answered::Progress(rows) => told(Followed::Progress(rows)),
                Answered::Job(job) if job.state.is_finished() => return Ok(Some(*job)),
                Answered::Job(job) if job.taken != now.taken => return Ok(None),
                Answered::Job(_) => {}
                Answered::Elsewhere(address) => {
                    trail.sent_to = self.turn_to(&address);
                    return Ok(None);
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Asks the next node from now on, if there is another.
    fn turn_away(&mut self) {
        self.connection = None;
        let first = self.nodes.pop_front();
        self.nodes.extend(first);
    }

    /// Asks this node from now on.
    fn turn_to(&mut self, address: &str) -> Option<SocketAddr> {
        let address = address.parse().ok()?;
        self.nodes.retain(|other| *other != address);
        self.nodes.push_front(address);
        self.connection = None;
        Some(address)
    }

    /// Asks the first node that answers.
    async fn ask(&mut self, asked: &Asked) -> Result<Frames, ClusterError> {
        let bytes = serde_json::to_vec(asked).unwrap_or_default();
        let mut failed = None;
        for _ in 0..self.nodes.len() {
            match self.open().await {
                Ok(frames) => {
                    frames.send(&bytes).await?;
                    return Ok(frames);
                }
                Err(error) => failed = Some(error),
            }
            self.turn_away();
        }
        Err(failed.unwrap_or(ClusterError::Silent))
    }

    async fn open(&mut self) -> Result<Frames, ClusterError> {
        let address = *self.nodes.front().ok_or(ClusterError::Silent)?;
        let known = self.connection.take().filter(|(to, connection)| *to == address && !connection.is_closed());
        let connection = match known {
            Some((_, connection)) => connection,
            None => self.endpoint.connect(address, &ExpectedPeer::AnyNode).await?,
        };
        let opened = tokio::time::timeout(SILENCE_MAX, connection.open(JOBS_CHANNEL)).await;
        let frames = opened.map_err(|_| ClusterError::Silent)??;
        self.connection = Some((address, connection));
        Ok(frames)
    }

    /// Tells the node that nothing more comes.
    pub async fn close(self) {
        self.endpoint.close("thank you").await;
    }
}

async fn answer(frames: &mut Frames) -> Result<Answered, ClusterError> {
    loop {
        let frame = tokio::time::timeout(SILENCE_MAX, frames.recv()).await.map_err(|_| ClusterError::Silent)?;
        return match serde_json::from_slice(&frame?.ok_or(ClusterError::Silent)?) {
            Ok(Answered::Working) => continue,
            Ok(Answered::Refused(why)) => Err(ClusterError::Refused(why)),
            Ok(Answered::Later(why)) => Err(ClusterError::Later(why)),
            Ok(answered) => Ok(answered),
            Err(e) => Err(ClusterError::Malformed(e.to_string())),
        };
    }
}

fn unexpected(answered: &Answered) -> ClusterError {
    ClusterError::Malformed(format!("{answered:?}").chars().take(200).collect())
}

/// What is waited for no longer than a user has said.
fn limits(connect: Duration) -> WireLimits {
    let ms = u64::try_from(connect.as_millis()).unwrap_or(u64::MAX);
    let usual = WireLimits::default();
    WireLimits { connect_time_ms_max: ms.clamp(1, usual.connect_time_ms_max.max(CONNECT_MS_MAX)), ..usual }
}

/// Who the tenant is: as it was before, or by a token.
async fn identity(
    data: &Path,
    node: &NodeAddress,
    token: Option<&str>,
    time: Duration,
) -> Result<Identity, ClusterError> {
    let folder = data.join(IDENTITY);
    // Several commands of one user may begin at once: each has the folder for a moment.
    let begun = Instant::now();
    let folder = loop {
        match NodeFolder::lock(&folder) {
            Ok(locked) => break locked,
            Err(_) if begun.elapsed() < FOLDER_TIME_MAX => tokio::time::sleep(TRY_AGAIN).await,
            Err(e) => return Err(e.into()),
        }
    };
    let token = token.map(|text| text.parse::<JoinToken>().map_err(ClusterError::Token));
    match folder.load(SystemClock.now()) {
        Ok(Some(identity)) => {
            if let Some(token) = token {
                same_cluster(data, &identity, &token?)?;
            }
            return Ok(identity);
        }
        // A token gets another one.
        Err(error) if token.is_none() => return Err(error.into()),
        Ok(None) | Err(_) => {}
    }
    let token = token.ok_or(ClusterError::NoTenant)??;
    let JoinGrant::Tenant(name) = token.grant().clone() else { return Err(ClusterError::NoTenant) };
    let (key, limits) = (folder.key()?, limits(time));
    let attempt = async |address| {
        let environment = EndpointEnvironment::udp(unspecified(address))?;
        Ok(sandbar_wire::join(environment, address, &token, key.clone(), (Role::Tenant, &name), &limits).await?)
    };
    let (_, identity) = patiently(time, async || first(node, time, &attempt).await).await?;
    folder.save(&identity)?;
    Ok(identity)
}
