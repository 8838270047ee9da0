//! The source of jobs: this machine's job store or, with `--node`, a cluster.

use std::time::Instant;

use sandbar_node::{
    ClusterClient, ClusterJob, InspectError, JobCounts, JobFailure, JobName, JobQuery, JobRecord, JobResponse,
    JobStore, RunState, StoredJob, machine,
};
use serde::Serialize;

use crate::cluster_args::Remote;
use crate::error::CliError;
use crate::job_limits::{END_TIME_MAX, POLL_INTERVAL};
use crate::remote_client::connect;

/// A job of this machine, or of a cluster, through one of its nodes.
pub(crate) enum SourcedJob {
    Local(Box<StoredJob>),
    Cluster(Box<JobInCluster>),
}

/// A job of a cluster, and the connection through which it is queried.
pub(crate) struct JobInCluster {
    pub(crate) client: ClusterClient,
    pub(crate) job: ClusterJob,
}

/// Record of a job in a list. Serialized without its source.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum ListedJob {
    Local(Box<JobRecord>),
    Cluster(Box<ClusterJob>),
}

/// Properties that the jobs of both sources have.
pub(crate) struct JobFields<'a> {
    pub(crate) id: &'a JobName,
    pub(crate) program: &'a str,
    pub(crate) state: RunState,
    pub(crate) result: &'a serde_json::Value,
    pub(crate) error: Option<&'a JobFailure>,
    pub(crate) counts: &'a JobCounts,
}

impl<'a> From<&'a JobRecord> for JobFields<'a> {
    fn from(job: &'a JobRecord) -> JobFields<'a> {
        let JobRecord { id, program, state, result, error, counts, .. } = job;
        JobFields { id, program, state: *state, result, error: error.as_ref(), counts }
    }
}

impl<'a> From<&'a ClusterJob> for JobFields<'a> {
    fn from(job: &'a ClusterJob) -> JobFields<'a> {
        let ClusterJob { id, program, state, result, error, counts, .. } = job;
        JobFields { id, program, state: *state, result, error: error.as_ref(), counts }
    }
}

impl ListedJob {
    pub(crate) fn fields(&self) -> JobFields<'_> {
        match self {
            ListedJob::Local(record) => record.as_ref().into(),
            ListedJob::Cluster(job) => job.as_ref().into(),
        }
    }
}

/// Opens the user's job store.
pub(crate) fn job_store() -> Result<JobStore, CliError> {
    Ok(JobStore::open(machine::state_folder()?.join("jobs")))
}

/// Returns at most `limit` jobs, the newest first.
pub(crate) async fn list(limit: usize, remote: Remote) -> Result<Vec<ListedJob>, CliError> {
    let Some(mut client) = connect(remote).await? else {
        let jobs = job_store()?.jobs(limit)?.into_iter();
        return Ok(jobs.map(|job| ListedJob::Local(Box::new(job.record))).collect());
    };
    let jobs = client.list(u32::try_from(limit).unwrap_or(u32::MAX)).await.map_err(CliError::failed)?;
    client.close().await;
    Ok(jobs.into_iter().map(|job| ListedJob::Cluster(Box::new(job))).collect())
}

impl SourcedJob {
    /// Returns the job of this name, or the last one.
    pub(crate) async fn find(id: Option<&str>, remote: Remote) -> Result<SourcedJob, CliError> {
        let Some(mut client) = connect(remote).await? else {
            let store = job_store()?;
            let job = id.map_or_else(|| store.last(), |id| store.find(id))?;
            return Ok(SourcedJob::Local(Box::new(job)));
        };
        let last = match id {
            Some(_) => None,
            None => client.list(1).await.map_err(CliError::failed)?.into_iter().next(),
        };
        let id = id.or(last.as_ref().map(|last| last.id.as_str()));
        let id = id.ok_or_else(|| CliError::failed("the cluster has no job of this tenant"))?;
        let job = client.status(id).await.map_err(CliError::failed)?;
        Ok(SourcedJob::Cluster(Box::new(JobInCluster { client, job })))
    }

    /// Requests that the job of this name stops. Returns the job, and whether it was running.
    pub(crate) async fn stop(id: &str, remote: Remote) -> Result<(SourcedJob, bool), CliError> {
        let Some(mut client) = connect(remote).await? else {
            let job = job_store()?.find(id)?;
            let was_running = query_running(&job, JobQuery::Stop).await?.is_some();
            return Ok((SourcedJob::Local(Box::new(job)), was_running));
        };
        let job = client.stop(id).await.map_err(CliError::failed)?;
        Ok((SourcedJob::Cluster(Box::new(JobInCluster { client, job })), true))
    }

    /// Returns the job as it was when it was found.
    pub(crate) fn fields(&self) -> JobFields<'_> {
        match self {
            SourcedJob::Local(job) => (&job.record).into(),
            SourcedJob::Cluster(remote) => (&remote.job).into(),
        }
    }

    /// Returns the job's state now.
    pub(crate) async fn state(&mut self) -> Result<RunState, CliError> {
        match self {
            SourcedJob::Local(job) => Ok(job.reload().record.state),
            SourcedJob::Cluster(remote) => {
                let JobInCluster { client, job } = remote.as_mut();
                Ok(client.status(job.id.as_str()).await.map_err(CliError::failed)?.state)
            }
        }
    }

    /// Returns the response to a query, or `None` if the job has no record of it.
    pub(crate) async fn query(&mut self, query: JobQuery) -> Result<Option<JobResponse>, CliError> {
        match self {
            SourcedJob::Local(job) => {
                let (queried, name) = (job.clone(), job.record.id.short().to_owned());
                let response = tokio::task::spawn_blocking(move || queried.query(&query)).await;
                let response = response.map_err(CliError::failed)?;
                response.map_err(|e| CliError::Failed(format!("job {name}: {e}")))
            }
            SourcedJob::Cluster(remote) => {
                let JobInCluster { client, job } = remote.as_mut();
                client.query(job.id.as_str(), &query).await.map_err(CliError::failed)
            }
        }
    }

    /// Waits until the job has ended, for up to [`END_TIME_MAX`]. Returns its final state.
    pub(crate) async fn wait_for_end(&mut self) -> Result<RunState, CliError> {
        let since = Instant::now();
        while self.is_running().await? {
            if since.elapsed() > END_TIME_MAX {
                let process = match self {
                    SourcedJob::Local(job) => format!("; its process is {}", job.record.process),
                    SourcedJob::Cluster(_) => String::new(),
                };
                let (name, seconds) = (self.fields().id.short().to_owned(), END_TIME_MAX.as_secs());
                return Err(CliError::Failed(format!("job {name} did not end within {seconds} s{process}")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.state().await
    }

    /// Returns whether the job runs now. A job of this machine runs until its process has ended.
    async fn is_running(&mut self) -> Result<bool, CliError> {
        match self {
            SourcedJob::Local(job) => Ok(job.is_running()),
            SourcedJob::Cluster(_) => Ok(!self.state().await?.is_finished()),
        }
    }

    /// Closes the connection to the cluster.
    pub(crate) async fn close(self) {
        if let SourcedJob::Cluster(remote) = self {
            remote.client.close().await;
        }
    }
}

/// Sends a query to a running job of this machine. Returns `None` if the job does not run.
pub(crate) async fn query_running(job: &StoredJob, query: JobQuery) -> Result<Option<JobResponse>, CliError> {
    if !job.is_running() {
        return Ok(None);
    }
    let (queried, name) = (job.clone(), job.record.id.short().to_owned());
    let response = tokio::task::spawn_blocking(move || queried.query_node(&query)).await;
    match response.map_err(CliError::failed)? {
        Ok(response) => Ok(Some(response)),
        // The job may have just ended.
        Err(InspectError::Io(_)) if !job.is_running() => Ok(None),
        Err(e) => Err(CliError::Failed(format!("job {name}: {e}"))),
    }
}
