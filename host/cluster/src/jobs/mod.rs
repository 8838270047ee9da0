//! Jobs that a cluster has: a node runs each, and another one takes it over when that one is gone.
//!
//! A job is a value of the cluster's store, with its program's hash and its arguments. Who runs it has a key beside it, which
//! goes with its lease: then another node takes the job, and begins it anew. What comes of a job is written only by who has
//! that key, in one transaction with giving it up: a job has one result, however often it was begun.

mod client;
mod door;
mod keep;
mod remains;
mod said;

use sandbar_core::ComponentId;
use sandbar_jobs::{JobCounts, JobFailure, JobName, RunState};
use sandbar_meta::Key;
use serde::{Deserialize, Serialize};

pub use client::{ClientTimes, ClusterClient, Followed};
pub(super) use door::open;
pub(super) use keep::keep;
pub use said::NewClusterJob;

/// Under which jobs are, by name, and who has them.
const JOBS: &str = "jobs/";
const JOB: &str = "/job";
const OWNER: &str = "/owner";

/// A job of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterJob {
    /// What it is called.
    pub id: JobName,
    /// Whose it is.
    pub tenant: String,
    /// The program, as it was given.
    pub program: String,
    /// Its component.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// The task that it begins with.
    pub task: String,
    /// That task's arguments.
    pub arguments: Vec<(String, String)>,
    /// When it was submitted: milliseconds since 1970.
    pub submitted_ms: u64,
    /// When it had ended, as above.
    pub ended_ms: Option<u64>,
    /// Where it is.
    pub state: RunState,
    /// How often a node has taken it.
    pub taken: u32,
    /// The node that took it last.
    pub node: String,
    /// What its first task returned.
    pub result: serde_json::Value,
    /// Why it failed or was stopped.
    pub error: Option<JobFailure>,
    /// What its tasks came to, in the end.
    pub counts: JobCounts,
}

/// What is written as text in JSON.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

fn job_key(id: &JobName) -> Option<Key> {
    Key::new(format!("{JOBS}{id}{JOB}").into_bytes()).ok()
}

fn owner_key(id: &JobName) -> Option<Key> {
    Key::new(format!("{JOBS}{id}{OWNER}").into_bytes()).ok()
}

/// Which job a key is of, and whether it is its owner's.
fn parse_key(key: &Key) -> Option<(JobName, bool)> {
    let text = std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(JOBS)?;
    match (text.strip_suffix(JOB), text.strip_suffix(OWNER)) {
        (Some(id), _) => Some((id.parse().ok()?, false)),
        (None, Some(id)) => Some((id.parse().ok()?, true)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod golden;
