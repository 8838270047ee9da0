//! Messages of the tenant API. Each is a frame of JSON: a request of the tenant, then responses of the node.

use sandbar_core::ComponentId;
use sandbar_jobs::{JobName, JobQuery, LoggedLine, ProgressRow};
use sandbar_wire::Channel;
use serde::{Deserialize, Serialize};

use super::job::{ClusterJob, text};
use crate::component_id::component_id;

/// Channel of one request and its responses.
pub(crate) const TENANT_API: Channel = Channel::new(9);

/// A job to submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewClusterJob {
    /// Name of the job. Submitting a name again has no further effect.
    pub id: JobName,
    /// The program, for people.
    pub program: String,
    /// Component of the program.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// First task.
    pub task: String,
    /// Arguments of the first task, as JSON or else text.
    pub arguments: Vec<(String, String)>,
}

impl NewClusterJob {
    /// Creates a job of a component, with a generated name.
    pub fn new(component: &[u8], program: &str, task: &str, arguments: Vec<(String, String)>) -> NewClusterJob {
        let (program, task) = (program.to_owned(), task.to_owned());
        NewClusterJob { id: JobName::generate(), program, component: component_id(component), task, arguments }
    }
}

/// A request of a tenant.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenantRequest {
    /// Submits a job. The responses are [`TenantResponse::SendComponent`], if the node lacks the component, and
    /// [`TenantResponse::Job`].
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
}

/// A response of a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenantResponse {
    /// The node needs the component: chunks of it must follow.
    #[serde(rename = "send")]
    SendComponent,
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
    /// The node at this address runs the job.
    #[serde(rename = "elsewhere")]
    Redirect(String),
    /// Chunks follow: the JSON of an [`Option`] of a [`JobResponse`], which is `None` if the job has no such record.
    ///
    /// [`JobResponse`]: sandbar_jobs::JobResponse
    #[serde(rename = "seen")]
    QueryResponse,
    /// Addresses of all nodes, for when this one dies.
    Nodes(Vec<String>),
    /// The request can't be served now, for this reason. The tenant must retry it.
    #[serde(rename = "later")]
    RetryLater(String),
    /// The request is refused, for this reason.
    Refused(String),
}
