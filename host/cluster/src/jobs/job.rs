//! A job of a cluster, and its keys in the cluster's store.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use sandbar_core::{ComponentId, TenantId};
use sandbar_jobs::{JobCounts, JobFailure, JobName, RunState};
use sandbar_meta::{Key, KeyRange, MetaError, MetaValue};
use sandbar_train::Job;
use sandbar_wire::Name;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::encoding::text;
use crate::error::ClusterError;
use crate::files::{NamedStoredFile, StoredFile};
use crate::member::Member;

/// Prefix of the keys of a tenant's jobs. The tenant's name follows, then one of the parts below.
const TENANTS: &str = "tenants/";
/// Prefix of jobs. The job's name follows, then one of the suffixes.
const JOBS: &str = "/jobs/";
const JOB: &str = "/job";
const OWNER: &str = "/owner";
/// Prefix of submission keys.
const SUBMISSIONS: &str = "/submissions/";
/// Changed by each submission of the tenant.
const SUBMITTED: &str = "/submitted";
/// Maximum bytes of a job's work, as JSON.
pub(crate) const WORK_BYTES_MAX: usize = 256 << 10;
/// Maximum bytes of a job's result, as JSON.
pub(crate) const RESULT_BYTES_MAX: usize = 512 << 10;
/// Maximum characters of a submission key.
const SUBMISSION_KEY_CHARS_MAX: usize = 64;

/// A job of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterJob {
    /// Name of the job, which a node chose.
    pub id: JobName,
    /// Tenant that submitted it.
    pub tenant: Name,
    /// Key under which it was submitted: a submission with the same key is the same job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SubmissionKey>,
    /// The program or job file, as the tenant named it.
    pub program: String,
    /// Work of the job.
    #[serde(flatten)]
    pub work: JobWork,
    /// Time of submission, in milliseconds since 1970, by the clock of the node that received it.
    pub submitted_ms: u64,
    /// Time of its end, in milliseconds since 1970, by the clock of the node that ran it.
    pub ended_ms: Option<u64>,
    /// State of the job.
    pub state: RunState,
    /// Number of runs: one, and one for each takeover.
    #[serde(rename = "taken")]
    pub runs: u32,
    /// Number of nodes that were lost while they ran it. A node that left in order is not lost.
    #[serde(default)]
    pub losses: u32,
    /// Whether its node is leaving in order.
    #[serde(default)]
    pub handed_over: bool,
    /// Node of the last run.
    pub node: String,
    /// Result of the first task; the summary of the run of a job file or a prediction.
    pub result: serde_json::Value,
    /// Output of a job file or a prediction, once it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<StoredFile>,
    /// Why the job failed or was stopped.
    pub error: Option<JobFailure>,
    /// Counters of its tasks, once it has finished.
    pub counts: JobCounts,
}

/// The work of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobWork {
    /// A job file.
    JobFile {
        /// The job.
        job_file: Box<JobFileWork>,
    },
    /// Predictions with the models of a job file.
    Prediction {
        /// The prediction.
        prediction: Box<PredictionWork>,
    },
    /// A program.
    Program(ProgramWork),
}

/// A program, and the arguments of its first task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramWork {
    /// Component of the program.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// Bytes of the component.
    #[serde(default)]
    pub component_bytes: u64,
    /// First task.
    pub task: String,
    /// Arguments of the first task, as JSON or else text; `@PATH` for those in `files`.
    pub arguments: Vec<(String, String)>,
    /// Files that arguments name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileArgument>,
}

/// Files of an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileArgument {
    /// Name of the argument.
    pub argument: String,
    /// The files.
    pub files: Vec<NamedStoredFile>,
}

/// A job file's job. Its own paths are names for messages and metadata: nodes open none of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobFileWork {
    /// The job.
    pub job: Job,
    /// Its input.
    pub inputs: Vec<NamedStoredFile>,
    /// Components of its functions.
    pub components: Vec<JobComponent>,
}

/// A prediction with stored models. Its paths are names for messages: nodes open none of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictionWork {
    /// The model file.
    pub models: NamedStoredFile,
    /// The rows.
    pub inputs: Vec<NamedStoredFile>,
    /// Output, whose extension sets the format.
    pub output: String,
    /// Label of the models to use; by default the best model of each group.
    pub model: Option<String>,
    /// For models per file: the training file whose models to use.
    pub file: Option<String>,
    /// Components of the models' functions.
    pub components: Vec<JobComponent>,
}

/// A component of the functions of a job file or of models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobComponent {
    /// Path in the job's functions, before the `#`; for models, the component's id.
    pub name: String,
    /// Path at which the client found it.
    pub found: String,
    /// The component.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// Bytes of the component.
    pub bytes: u64,
}

impl JobWork {
    /// Returns the arguments of a program's first task.
    pub fn arguments(&self) -> &[(String, String)] {
        match self {
            JobWork::Program(program) => &program.arguments,
            JobWork::JobFile { .. } | JobWork::Prediction { .. } => &[],
        }
    }

    /// Returns the components that the work needs.
    pub(crate) fn components(&self) -> Vec<ComponentId> {
        let ids = |components: &[JobComponent]| components.iter().map(|component| component.component).collect();
        match self {
            JobWork::Program(program) => vec![program.component],
            JobWork::JobFile { job_file } => ids(&job_file.components),
            JobWork::Prediction { prediction } => ids(&prediction.components),
        }
    }

    /// Returns the files that the work needs, each once.
    pub(crate) fn files(&self) -> BTreeSet<StoredFile> {
        match self {
            JobWork::Program(program) => {
                program.files.iter().flat_map(|argument| &argument.files).map(|file| file.content).collect()
            }
            JobWork::JobFile { job_file } => job_file.inputs.iter().map(|input| input.content).collect(),
            JobWork::Prediction { prediction } => prediction.files().map(|file| file.content).collect(),
        }
    }
}

impl PredictionWork {
    /// Returns its input and, as the last one, its models.
    pub(crate) fn files(&self) -> impl Iterator<Item = &NamedStoredFile> {
        self.inputs.iter().chain([&self.models])
    }
}

impl ClusterJob {
    /// Returns the id of its tenant on the nodes that run it.
    pub(crate) fn tenant_id(&self) -> TenantId {
        tenant_id(&self.tenant)
    }

    /// Returns the tenant and name of the job, which identify it.
    pub(crate) fn reference(&self) -> JobRef {
        JobRef { tenant: self.tenant.clone(), id: self.id.clone() }
    }
}

/// Returns the id of a tenant on the nodes.
pub(crate) fn tenant_id(tenant: &Name) -> TenantId {
    TenantId::from_digest(Sha256::digest(tenant.as_str()).into())
}

/// A job among all of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobRef {
    pub(crate) tenant: Name,
    pub(crate) id: JobName,
}

/// A key that a client chooses for a submission, so that it may repeat it: 1 to 64 letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SubmissionKey(String);

impl FromStr for SubmissionKey {
    type Err = String;

    fn from_str(text: &str) -> Result<SubmissionKey, String> {
        let is_valid = (1..=SUBMISSION_KEY_CHARS_MAX).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'));
        let key = is_valid.then(|| SubmissionKey(text.to_owned()));
        key.ok_or_else(|| format!("a submission key has 1 to {SUBMISSION_KEY_CHARS_MAX} letters, digits, `-` and `_`"))
    }
}

impl TryFrom<String> for SubmissionKey {
    type Error = String;

    fn try_from(text: String) -> Result<SubmissionKey, String> {
        text.parse()
    }
}

impl From<SubmissionKey> for String {
    fn from(key: SubmissionKey) -> String {
        key.0
    }
}

impl fmt::Display for SubmissionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn key(text: String) -> Result<Key, ClusterError> {
    Ok(Key::new(text.into_bytes()).map_err(MetaError::from)?)
}

fn prefix(text: String) -> Result<KeyRange, ClusterError> {
    Ok(KeyRange::prefix(text.into_bytes()).map_err(MetaError::from)?)
}

/// Returns the key of a job.
pub(crate) fn job_key(JobRef { tenant, id }: &JobRef) -> Result<Key, ClusterError> {
    key(format!("{TENANTS}{tenant}{JOBS}{id}{JOB}"))
}

/// Returns the key of a job's owner.
pub(crate) fn owner_key(JobRef { tenant, id }: &JobRef) -> Result<Key, ClusterError> {
    key(format!("{TENANTS}{tenant}{JOBS}{id}{OWNER}"))
}

/// Returns the key of a submission.
pub(crate) fn submission_key(tenant: &Name, submission: &SubmissionKey) -> Result<Key, ClusterError> {
    key(format!("{TENANTS}{tenant}{SUBMISSIONS}{submission}"))
}

/// Returns the key that each submission of a tenant changes.
pub(crate) fn submitted_key(tenant: &Name) -> Result<Key, ClusterError> {
    key(format!("{TENANTS}{tenant}{SUBMITTED}"))
}

/// Returns the range of the keys of a tenant's jobs and owners.
pub(crate) fn job_keys(tenant: &Name) -> Result<KeyRange, ClusterError> {
    prefix(format!("{TENANTS}{tenant}{JOBS}"))
}

/// Returns a key of a tenant that is not of a job.
pub(crate) fn key_of_tenant(tenant: &Name, rest: impl fmt::Display) -> Result<Key, ClusterError> {
    key(format!("{TENANTS}{tenant}/{rest}"))
}

/// Returns the range of a tenant's keys with a prefix.
pub(crate) fn keys_of_tenant(tenant: &Name, start: &str) -> Result<KeyRange, ClusterError> {
    prefix(format!("{TENANTS}{tenant}/{start}"))
}

/// Returns the range of all keys of a tenant.
pub(crate) fn tenant_keys(tenant: &Name) -> Result<KeyRange, ClusterError> {
    prefix(format!("{TENANTS}{tenant}/"))
}

/// Returns the range of all keys of all tenants.
pub(crate) fn all_keys() -> Result<KeyRange, ClusterError> {
    prefix(TENANTS.to_owned())
}

/// A parsed key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobKey {
    Job(JobRef),
    Owner(JobRef),
}

/// Parses a key of a job or owner.
pub(crate) fn parse_key(key: &Key) -> Option<JobKey> {
    let text = std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(TENANTS)?;
    let (tenant, rest) = text.split_once(JOBS)?;
    let tenant: Name = tenant.parse().ok()?;
    let of = |id: &str| Some(JobRef { tenant: tenant.clone(), id: id.parse().ok()? });
    match (rest.strip_suffix(JOB), rest.strip_suffix(OWNER)) {
        (Some(id), _) => of(id).map(JobKey::Job),
        (None, Some(id)) => of(id).map(JobKey::Owner),
        (None, None) => None,
    }
}

/// Returns the value of an owner key: it names a process of a node, and not an earlier process of that node.
pub(crate) fn owner_value(node: &Member) -> MetaValue {
    MetaValue::new(format!("{}/{}", node.name, node.number).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submission_keys_are_short_and_plain() {
        let long = "a".repeat(65);
        for (text, is_key) in [
            ("a", true),
            ("A-1_b", true),
            (&long[1..], true),
            (&long, false),
            ("", false),
            ("a/b", false),
            ("ä", false),
        ] {
            assert_eq!(text.parse::<SubmissionKey>().is_ok(), is_key, "{text}");
        }
    }
}
