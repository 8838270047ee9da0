//! A job of a cluster, and its keys in the cluster's store.

use sandbar_core::{ComponentId, TenantId};
use sandbar_jobs::{JobCounts, JobFailure, JobName, RunState};
use sandbar_meta::{Key, KeyRange, MetaError, MetaValue};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::member::Member;

/// Prefix of the keys of jobs. The job's name follows, then one of the suffixes.
const JOBS: &str = "jobs/";
const JOB: &str = "/job";
const OWNER: &str = "/owner";
/// Maximum bytes of a job's arguments.
pub(crate) const ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Maximum bytes of a job's result, as JSON.
pub(crate) const RESULT_BYTES_MAX: usize = 512 << 10;

/// A job of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterJob {
    /// Name of the job.
    pub id: JobName,
    /// Tenant that submitted it.
    pub tenant: String,
    /// The program, as the tenant named it.
    pub program: String,
    /// Component of the program.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// First task.
    pub task: String,
    /// Arguments of the first task.
    pub arguments: Vec<(String, String)>,
    /// Time of submission, in milliseconds since 1970.
    pub submitted_ms: u64,
    /// Time of its end, in milliseconds since 1970.
    pub ended_ms: Option<u64>,
    /// State of the job.
    pub state: RunState,
    /// Number of runs: one, and one for each takeover.
    #[serde(rename = "taken")]
    pub runs: u32,
    /// Node of the last run.
    pub node: String,
    /// Result of the first task.
    pub result: serde_json::Value,
    /// Why the job failed or was stopped.
    pub error: Option<JobFailure>,
    /// Counters of its tasks, once it has finished.
    pub counts: JobCounts,
}

impl ClusterJob {
    /// Returns the id of its tenant on the nodes that run it.
    pub(crate) fn tenant_id(&self) -> TenantId {
        TenantId::from_digest(Sha256::digest(&self.tenant).into())
    }
}

/// Serializes values as text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Returns the key of a job.
pub(crate) fn job_key(id: &JobName) -> Option<Key> {
    Key::new(format!("{JOBS}{id}{JOB}").into_bytes()).ok()
}

/// Returns the key of a job's owner.
pub(crate) fn owner_key(id: &JobName) -> Option<Key> {
    Key::new(format!("{JOBS}{id}{OWNER}").into_bytes()).ok()
}

/// Returns the range of the keys of all jobs and owners.
pub(crate) fn job_keys() -> Result<KeyRange, MetaError> {
    Ok(KeyRange::prefix(JOBS.as_bytes())?)
}

/// A parsed key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobKey {
    Job(JobName),
    Owner(JobName),
}

/// Parses a key of a job or owner.
pub(crate) fn parse_key(key: &Key) -> Option<JobKey> {
    let text = std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(JOBS)?;
    match (text.strip_suffix(JOB), text.strip_suffix(OWNER)) {
        (Some(id), _) => id.parse().ok().map(JobKey::Job),
        (None, Some(id)) => id.parse().ok().map(JobKey::Owner),
        (None, None) => None,
    }
}

/// Returns the value of an owner key: it names a process of a node, and not an earlier process of that node.
pub(crate) fn owner_value(node: &Member) -> MetaValue {
    MetaValue::new(format!("{}/{}", node.name, node.number).into_bytes())
}
