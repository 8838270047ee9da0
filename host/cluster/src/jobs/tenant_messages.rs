//! Messages of the tenant API. Each is a frame of JSON: a request of the tenant, then responses of the node.

use std::hash::{BuildHasher as _, RandomState};

use sandbar_core::ComponentId;
use sandbar_jobs::{ActorRow, JobQuery, LoggedLine, ProgressRow};
use sandbar_wire::{Channel, PublicKey, TenantRole, TokenId};
use serde::{Deserialize, Serialize};

use super::job::{ClusterJob, JobWork, SubmissionKey};
use crate::component_registry::{ComponentKey, ComponentVersion, NewComponent, RegisteredComponent};
use crate::encoding::text;
use crate::files::{FileId, StoredFile};
use crate::tenants::{Tenant, TenantToken};
use crate::usage::UsageBy;

/// Channel of one request and its responses.
pub(crate) const TENANT_API: Channel = Channel::new(9);

/// A job to submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewClusterJob {
    /// Key of the submission. Submitting with the same key again within a day returns the same job.
    pub key: SubmissionKey,
    /// The program or job file, for people.
    pub program: String,
    /// Work of the job.
    #[serde(flatten)]
    pub work: JobWork,
}

impl NewClusterJob {
    /// Creates a job. `key` is the key of the submission; `None` for a random one.
    pub fn new(program: &str, work: JobWork, key: Option<SubmissionKey>) -> NewClusterJob {
        NewClusterJob { key: key.unwrap_or_else(random_key), program: program.to_owned(), work }
    }
}

fn random_key() -> SubmissionKey {
    loop {
        // `RandomState` has random keys, which make the hashes random.
        let [first, second] = [0u8, 1].map(|_| RandomState::new().hash_one(0u8));
        if let Ok(key) = format!("{first:016x}{second:016x}").parse() {
            return key;
        }
    }
}

/// A request of a tenant.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenantRequest {
    /// Submits a job. The responses are [`TenantResponse::SendComponent`], if the tenant has not sent the component to
    /// this node, [`TenantResponse::SendContent`] for each file that the tenant has not sent, and [`TenantResponse::Job`].
    Submit(NewClusterJob),
    /// Follows one run of a job: its log after some lines, its progress and its state, until the run ends.
    Follow {
        job: String,
        /// Number of the run.
        #[serde(rename = "taken")]
        run: u32,
        /// Log lines that the tenant has.
        #[serde(rename = "after")]
        lines: u64,
        /// The tenant can't reach the node of the job: no redirect, and no log.
        #[serde(rename = "stays")]
        without_log: bool,
    },
    /// Returns a job.
    Status { job: String },
    /// Stops a job.
    Stop { job: String },
    /// Returns the last jobs.
    List { limit: u32 },
    /// Queries the node that runs or ran a job. The response is [`TenantResponse::QueryResponse`].
    #[serde(rename = "look")]
    Query {
        job: String,
        #[serde(rename = "question")]
        query: JobQuery,
    },
    /// Returns the tenant's settings and tokens.
    Tenant,
    /// Creates a token of the tenant.
    CreateToken { role: TenantRole, use_once: bool, lifetime_s: u64 },
    /// Revokes a token of the tenant. The response is [`TenantResponse::Done`].
    RevokeToken {
        #[serde(with = "text")]
        token: TokenId,
    },
    /// Returns [`TenantResponse::Done`] from a node that issues certificates, and [`TenantResponse::Redirect`] to such a
    /// node from others.
    FindIssuer,
    /// Returns the tenant's actors that outlive the jobs that created them.
    Actors,
    /// Ends such an actor, by its name or id. The response is [`TenantResponse::Done`].
    StopActor { actor: String },
    /// Returns the output of a job file. The response is [`TenantResponse::Output`].
    Output { job: String },
    /// Returns what the tenant has used, of one job or all, by job or in all. The response is [`TenantResponse::Usage`].
    Usage { since_ms: u64, job: Option<String>, by: UsageBy },
    /// Registers a component. The responses are [`TenantResponse::SendContent`], if no node has it, and
    /// [`TenantResponse::Component`].
    PushComponent(NewComponent),
    /// Returns the registered components. The response is [`TenantResponse::Components`].
    Components,
    /// Returns a registered component. The response is [`TenantResponse::Output`].
    PullComponent {
        #[serde(with = "text")]
        component: ComponentId,
    },
    /// Yanks a component, or takes that back. The response is [`TenantResponse::Component`].
    YankComponent {
        #[serde(flatten)]
        version: ComponentVersion,
        yanked: bool,
    },
    /// Returns the keys that sign components. The response is [`TenantResponse::ComponentKeys`].
    ComponentKeys,
    /// Adds such a key. The response is [`TenantResponse::Done`].
    AddComponentKey {
        #[serde(with = "text")]
        key: PublicKey,
    },
    /// Removes such a key. The response is [`TenantResponse::Done`].
    RemoveComponentKey {
        #[serde(with = "text")]
        key: PublicKey,
    },
}

impl TenantRequest {
    /// Returns the role that a client needs for the request.
    pub(crate) fn role(&self) -> TenantRole {
        match self {
            TenantRequest::Follow { .. }
            | TenantRequest::Status { .. }
            | TenantRequest::List { .. }
            | TenantRequest::Query { .. }
            | TenantRequest::Output { .. }
            | TenantRequest::FindIssuer
            | TenantRequest::Actors
            | TenantRequest::Usage { .. }
            | TenantRequest::Components
            | TenantRequest::PullComponent { .. }
            | TenantRequest::ComponentKeys => TenantRole::Viewer,
            TenantRequest::Submit(_)
            | TenantRequest::Stop { .. }
            | TenantRequest::StopActor { .. }
            | TenantRequest::PushComponent(_)
            | TenantRequest::YankComponent { .. } => TenantRole::Submitter,
            TenantRequest::Tenant
            | TenantRequest::CreateToken { .. }
            | TenantRequest::RevokeToken { .. }
            | TenantRequest::AddComponentKey { .. }
            | TenantRequest::RemoveComponentKey { .. } => TenantRole::Admin,
        }
    }
}

/// A response of a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenantResponse {
    /// The node needs the component: chunks of it must follow.
    #[serde(rename = "send")]
    SendComponent,
    /// The node needs this file, or this component of a job file: chunks of it must follow.
    SendContent(FileId),
    /// The request is being processed. Repeated until there is another response.
    #[serde(rename = "working")]
    InProgress,
    /// A job. The last response, unless the job is followed, has not finished, and is in the same run.
    Job(Box<ClusterJob>),
    /// Jobs, the last one first.
    Jobs(Vec<ClusterJob>),
    /// A log line of the followed job.
    Line(LoggedLine),
    /// Progress of the followed job.
    Progress(Vec<ProgressRow>),
    /// The node at this address handles such requests.
    #[serde(rename = "elsewhere")]
    Redirect(String),
    /// Chunks follow: the JSON of an [`Option`] of a [`JobResponse`], which is `None` if the job has no such record.
    ///
    /// [`JobResponse`]: sandbar_jobs::JobResponse
    #[serde(rename = "seen")]
    QueryResponse,
    /// Chunks of this file follow: an output, or a component.
    Output(StoredFile),
    /// Addresses of all nodes, for when this one dies.
    Nodes(Vec<String>),
    /// The tenant.
    Tenant(Box<Tenant>),
    /// A new token, and its text, which is a secret.
    Token(Box<TenantToken>, String),
    /// Actors.
    Actors(Vec<ActorRow>),
    /// Chunks follow: the JSON of an [`UsageReport`](crate::UsageReport).
    Usage,
    /// A registered component.
    Component(Box<RegisteredComponent>),
    /// Chunks follow: the JSON of all registered components.
    Components,
    /// Keys that sign components.
    ComponentKeys(Vec<ComponentKey>),
    /// The request is carried out.
    Done,
    /// The request can't be served now, for this reason. The tenant must retry it.
    #[serde(rename = "later")]
    RetryLater(String),
    /// The request is refused.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// Stable code: see [`RefusalCode`].
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Stable codes of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalCode {
    /// The tenant has no such job.
    NoJob,
    /// The tenant has no such actor.
    NoActor,
    /// Several jobs match.
    AmbiguousJob,
    /// The client's role does not allow the request.
    Role,
    /// The request can't be decoded, or is too long.
    Request,
    /// The arguments are too long, too many, or name files that were not sent.
    Arguments,
    /// The job file is invalid, or something is missing that it names.
    JobFile,
    /// A file is too large, is not the announced one, or exceeds the tenant's quota.
    File,
    /// The job has no output, or no node has it any more.
    NoOutput,
    /// The component is too large, is not the announced one, or can't be loaded.
    Component,
    /// The tenant has its maximum number of unfinished jobs.
    JobLimit,
    /// The query is not about the job alone, or the job's node can't answer it.
    Query,
    /// The job's node has its records and is unreachable.
    Unreachable,
    /// A token can't be created or revoked.
    Token,
    /// The node failed. Its log has the reason.
    Node,
}

impl RefusalCode {
    /// Returns the text of the code.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RefusalCode::NoJob => "no-job",
            RefusalCode::NoActor => "no-actor",
            RefusalCode::AmbiguousJob => "ambiguous-job",
            RefusalCode::Role => "role",
            RefusalCode::Request => "request",
            RefusalCode::Arguments => "arguments",
            RefusalCode::JobFile => "job-file",
            RefusalCode::File => "file",
            RefusalCode::NoOutput => "no-output",
            RefusalCode::Component => "component",
            RefusalCode::JobLimit => "job-limit",
            RefusalCode::Query => "query",
            RefusalCode::Unreachable => "unreachable",
            RefusalCode::Token => "token",
            RefusalCode::Node => "node",
        }
    }
}
