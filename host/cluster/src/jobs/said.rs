//! What a tenant and a node say to each other, each a frame of JSON: a question, and what is answered.

use sandbar_core::ComponentId;
use sandbar_jobs::{JobName, JobQuery, LoggedLine, ProgressRow};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ClusterJob, text};

/// Bytes of a job's arguments.
pub(super) const ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Bytes of a job's result, as JSON.
pub(super) const RESULT_BYTES_MAX: usize = 512 << 10;

/// A job to be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewClusterJob {
    /// What it is to be called: one that is submitted again is the same.
    pub id: JobName,
    /// The program, for people.
    pub program: String,
    /// Its component.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// The task that it begins with.
    pub task: String,
    /// That task's arguments: JSON, or else text.
    pub arguments: Vec<(String, String)>,
}

impl NewClusterJob {
    /// A job of this component.
    pub fn of(component: &[u8], program: &str, task: &str, arguments: Vec<(String, String)>) -> NewClusterJob {
        let digest: [u8; 32] = Sha256::digest(component).into();
        let (program, task) = (program.to_owned(), task.to_owned());
        NewClusterJob { id: JobName::generate(), program, component: ComponentId::from_digest(digest), task, arguments }
    }
}

/// What a tenant asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Asked {
    /// A job is to be run. The answer is [`Answered::Send`], if its component is wanted, and then [`Answered::Job`].
    Submit(NewClusterJob),
    /// What becomes of a job is to be told, for as long as it was taken so often: from after so many lines of its log on.
    /// Who `stays` can't reach the node that runs it, and is told all but its log.
    Follow { job: String, taken: u32, after: u64, stays: bool },
    /// How a job is.
    Status { job: String },
    /// A job is to end.
    Stop { job: String },
    /// The last jobs, so many at most.
    List { limit: u32 },
    /// What is to be seen of a job, by the node that runs it, or ran it. The answer is [`Answered::Seen`].
    Look { job: String, question: JobQuery },
}

/// What a node answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answered {
    /// The component is wanted: frames of it, and an empty one.
    Send,
    /// It is worked at: said again and again until there is an answer.
    Working,
    /// How a job is; the last answer, unless it is followed, has not ended, and was not taken since.
    Job(Box<ClusterJob>),
    /// Jobs, the last first.
    Jobs(Vec<ClusterJob>),
    /// A line of the log of a job that is followed.
    Line(LoggedLine),
    /// How far its tasks are.
    Progress(Vec<ProgressRow>),
    /// Another node runs it, at this address.
    Elsewhere(String),
    /// What there is to be seen of a job follows, in frames and an empty one: an [`Option`] of an [`JobResponse`], none where nothing
    /// is kept of it.
    ///
    /// [`JobResponse`]: sandbar_jobs::JobResponse
    Seen,
    /// Nodes that could be asked instead, if this one is gone.
    Nodes(Vec<String>),
    /// It is not done now, for this reason: it is to be asked again.
    Later(String),
    /// It is not done, for this reason.
    Refused(String),
}
