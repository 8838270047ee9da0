//! Leases of jobs: a node owns the jobs that it runs while it holds their owner keys, and takes over jobs without an owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandbar_jobs::{JobFailure, JobName, RunState, now_ms};
use sandbar_meta::{Change, Condition, Entry, MetaError, MetaValue, Operation, Revision, Transaction};
use sandbar_runtime::{ClusterProgram, ProgramError, ProgramSummary};

use super::cached_results;
use super::job::{ClusterJob, JobKey, RESULT_BYTES_MAX, job_key, job_keys, owner_key, owner_value, parse_key};
use crate::components;
use crate::encoding;
use crate::error::{ClusterError, host_fault};
use crate::member::MemberState;
use crate::registry;
use crate::state::ClusterState;

/// Delay before a failed operation is retried.
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// Maximum finished jobs in the store.
const FINISHED_JOBS_MAX: usize = 1000;

/// A job and its owner, as of the last change that was read from the store.
#[derive(Debug, Default)]
struct WatchedJob {
    job: Option<(ClusterJob, Revision)>,
    owner: Option<JobOwner>,
}

/// Value and revision of an owner key.
#[derive(Debug)]
struct JobOwner {
    value: MetaValue,
    revision: Revision,
}

impl WatchedJob {
    /// Returns an unfinished job, the revision of its entry, and its owner.
    fn unfinished(&self) -> Option<(&ClusterJob, Revision, Option<&JobOwner>)> {
        let (job, revision) = self.job.as_ref().filter(|(job, _)| !job.state.is_finished())?;
        Some((job, *revision, self.owner.as_ref()))
    }
}

/// Takes over jobs without an owner, and aborts jobs that this node no longer owns. Never returns.
pub(crate) async fn hold_leases(cluster: &Arc<ClusterState>) {
    loop {
        // After any failure, all jobs are read again.
        if let Err(error) = hold_leases_once(cluster).await {
            log::debug!("the cluster's jobs are read again: {error}");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn hold_leases_once(cluster: &Arc<ClusterState>) -> Result<(), ClusterError> {
    let (entries, revision) = registry::read_all(&*cluster.store, job_keys()?).await?;
    let mut jobs: BTreeMap<JobName, WatchedJob> = BTreeMap::new();
    entries.iter().for_each(|entry| apply(&mut jobs, entry));
    let own = owner_value(&cluster.own);
    // Jobs that other nodes took over while this node could not read the store.
    let is_of_other = |job: &WatchedJob| job.owner.as_ref().is_some_and(|owner| owner.value != own);
    jobs.iter().filter(|(_, job)| is_of_other(job)).for_each(|(id, _)| cluster.jobs.abort(id));
    // Changes since the last read are unknown.
    cluster.jobs.notify_all();
    let mut watcher = cluster.store.watch(&job_keys()?, revision.next()).await?;
    loop {
        for (job, revision, owner) in jobs.values().filter_map(WatchedJob::unfinished) {
            match owner {
                // This node owns the job, but did not learn that its transaction had succeeded.
                Some(owner) if owner.value == own => {
                    start(cluster, OwnedJob { job: job.clone(), owner_revision: owner.revision });
                }
                Some(_) => {}
                None if *cluster.membership.state.borrow() == MemberState::Ready => {
                    if let Some(owned) = take_over(cluster, job, revision).await? {
                        let (id, from, run) = (job.id.short(), &job.node, owned.job.runs);
                        log::warn!("job {id} is taken over from node `{from}`, which is lost; run {run} starts");
                        // The run that this node had before.
                        cluster.jobs.abort(&owned.job.id);
                        start(cluster, owned);
                    }
                }
                None => {}
            }
        }
        let mut released = Vec::new();
        for change in watcher.next().await? {
            if let Some(JobKey::Job(id) | JobKey::Owner(id)) = parse_key(change.key()) {
                cluster.jobs.notify(&id);
            }
            match change {
                Change::Put(entry) => apply(&mut jobs, &entry),
                Change::Deleted { key, .. } => match parse_key(&key) {
                    Some(JobKey::Owner(id)) => {
                        jobs.entry(id.clone()).or_default().owner = None;
                        released.push(id);
                    }
                    Some(JobKey::Job(id)) => drop(jobs.remove(&id)),
                    None => {}
                },
            }
        }
        // If this node had owned such a job, its lease has expired: the next owner runs the job.
        let has_no_owner =
            |id: &&JobName| jobs.get(*id).and_then(WatchedJob::unfinished).is_some_and(|(.., owner)| owner.is_none());
        released.iter().filter(has_no_owner).for_each(|id| cluster.jobs.abort(id));
        prune(cluster, &jobs).await;
    }
}

/// Applies an entry of the store.
fn apply(jobs: &mut BTreeMap<JobName, WatchedJob>, entry: &Entry) {
    match parse_key(&entry.key) {
        Some(JobKey::Owner(id)) => {
            let owner = JobOwner { value: entry.value.clone(), revision: entry.mod_revision };
            jobs.entry(id).or_default().owner = Some(owner);
        }
        Some(JobKey::Job(id)) => {
            // A job of another version is left to the nodes of that version.
            let job = serde_json::from_slice(entry.value.as_bytes()).ok();
            jobs.entry(id).or_default().job = job.map(|job| (job, entry.mod_revision));
        }
        None => {}
    }
}

/// A job that this node owns, and the revision of its owner key.
pub(crate) struct OwnedJob {
    pub(crate) job: ClusterJob,
    owner_revision: Revision,
}

/// Takes over a job, unless another node does.
async fn take_over(
    cluster: &ClusterState,
    job: &ClusterJob,
    revision: Revision,
) -> Result<Option<OwnedJob>, ClusterError> {
    let Some(key) = job_key(&job.id) else { return Ok(None) };
    let job = ClusterJob { runs: job.runs.saturating_add(1), ..job.clone() };
    acquire(cluster, job, Condition::unchanged(key, revision)).await
}

/// Stores a job with this node as its owner, if it has no owner and the condition holds.
pub(crate) async fn acquire(
    cluster: &ClusterState,
    job: ClusterJob,
    condition: Condition,
) -> Result<Option<OwnedJob>, ClusterError> {
    let (Some(key), Some(owner_key)) = (job_key(&job.id), owner_key(&job.id)) else { return Ok(None) };
    let Some(lease) = cluster.membership.lease() else { return Ok(None) };
    let job = ClusterJob { node: cluster.own.name.clone(), state: RunState::Running, ..job };
    let acquire = Transaction::new()
        .when(Condition::absent(owner_key.clone()))
        .when(condition)
        .then(Operation::put_leased(owner_key, owner_value(&cluster.own), lease))
        .then(Operation::put(key, encode(&job)?));
    let done = cluster.store.transact(acquire).await?;
    Ok(done.succeeded.then_some(OwnedJob { job, owner_revision: done.revision }))
}

fn encode(job: &ClusterJob) -> Result<MetaValue, ClusterError> {
    encoding::json(format_args!("job {}", job.id.short()), job).map(MetaValue::new)
}

/// Starts an owned job, unless it runs already.
pub(crate) fn start(cluster: &Arc<ClusterState>, owned: OwnedJob) {
    let (state, id, number) = (cluster.clone(), owned.job.id.clone(), owned.job.runs);
    let spawn = move || {
        let OwnedJob { job, .. } = &owned;
        log::info!("job {} of tenant `{}` starts: {}", job.id.short(), job.tenant, job.program);
        let task = state.handle.clone().spawn(async move {
            let result = run(&state, &owned.job).await;
            finish(&state, owned, result).await;
        });
        task.abort_handle()
    };
    cluster.jobs.start(&id, number, spawn);
}

async fn run(cluster: &ClusterState, job: &ClusterJob) -> Result<ProgramSummary, ProgramError> {
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("this node runs no programs"))?;
    let program = components::load_from_any(cluster, job.component).await?;
    let tenant = job.tenant_id();
    let recorder = cluster.jobs.store.create_named(&job.id, &job.program, &job.arguments, tenant);
    let recorder = recorder.map_err(host_fault)?;
    cluster.jobs.set_feed(&job.id, job.runs, &recorder);
    let resumed = if job.runs > 1 { cached_results::collect(cluster, &job.id).await } else { Vec::new() };
    let (task, arguments) = (job.task.clone(), job.arguments.clone());
    (runtime.run)(ClusterProgram { program, task, arguments, resumed, recorder }).await
}

/// Stores the outcome of a job, unless another node owns it by now.
async fn finish(cluster: &ClusterState, owned: OwnedJob, result: Result<ProgramSummary, ProgramError>) {
    let OwnedJob { mut job, owner_revision } = owned;
    (job.ended_ms, job.state) = (Some(now_ms()), RunState::Succeeded);
    if let Ok(stored) = cluster.jobs.store.find(job.id.as_str()) {
        job.counts = stored.record.counts;
    }
    job.counts.takeovers = job.runs.saturating_sub(1).into();
    match result {
        Ok(summary) => {
            let bytes = summary.result.to_string().len();
            if bytes > RESULT_BYTES_MAX {
                job.state = RunState::Failed;
                let message =
                    format!("the result has {bytes} bytes as JSON, the limit is {RESULT_BYTES_MAX}; return less");
                job.error = Some(JobFailure::from_message(message));
            } else {
                job.result = summary.result;
            }
        }
        Err(error) => {
            let is_stopped = matches!(error, ProgramError::Stopped | ProgramError::Dropped);
            job.state = if is_stopped { RunState::Stopped } else { RunState::Failed };
            job.error = Some(error.failure());
        }
    }
    let (Some(key), Some(owner)) = (job_key(&job.id), owner_key(&job.id)) else { return };
    let commit = async |job: &ClusterJob| {
        let commit = Transaction::new()
            .when(Condition::unchanged(owner.clone(), owner_revision))
            .then(Operation::put(key.clone(), encode(job)?))
            .then(Operation::delete(&owner));
        Ok(cluster.store.transact(commit).await?)
    };
    // Retrying is safe if it is unknown whether the transaction was executed: then the owner key has changed.
    let done = loop {
        match commit(&job).await {
            Ok(done) => break done,
            // Retrying never helps.
            Err(error @ (ClusterError::Encode(..) | ClusterError::Store(MetaError::Limit { .. })))
                if !job.result.is_null() =>
            {
                (job.state, job.result) = (RunState::Failed, serde_json::Value::Null);
                let message = format!("the result can't be stored: {error}; return less");
                job.error = Some(JobFailure::from_message(message));
                continue;
            }
            Err(error) => log::warn!("the outcome of job {} can't be stored yet, retrying: {error}", job.id.short()),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    };
    cluster.jobs.finish(&job.id, job.runs);
    let (id, state) = (job.id.short(), job.state.as_str());
    match (&job.error, done.succeeded) {
        (_, false) => {
            log::warn!("job {id} now belongs to another node: its outcome on this node ({state}) is discarded")
        }
        (Some(error), true) => log::info!("job {id} {state}: {}", error.message),
        (None, true) => log::info!("job {id} {state}"),
    }
}

/// Deletes the oldest finished jobs beyond [`FINISHED_JOBS_MAX`].
async fn prune(cluster: &ClusterState, jobs: &BTreeMap<JobName, WatchedJob>) {
    let has_finished =
        |(_, watched): &(&JobName, &WatchedJob)| watched.job.as_ref().is_some_and(|(job, _)| job.state.is_finished());
    let finished: Vec<&JobName> = jobs.iter().filter(has_finished).map(|(id, _)| id).collect();
    for id in finished.iter().take(finished.len().saturating_sub(FINISHED_JOBS_MAX)) {
        if let Some(key) = job_key(id) {
            // Another node may have deleted it. A failure is retried after the next change.
            let _ = cluster.store.transact(Transaction::new().then(Operation::delete(&key))).await;
        }
    }
}
