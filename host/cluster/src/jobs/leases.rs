//! Leases of jobs: a node owns the jobs that it runs while it holds their owner keys, and takes over jobs without an owner.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Code, Fault};
use sandbar_jobs::{JobCounts, JobFailure, RunState, now_ms};
use sandbar_meta::{Condition, MetaError, MetaValue, Operation, Revision, Transaction};
use sandbar_runtime::{ArgumentFiles, ClusterProgram, ProgramError, ProgramSummary};
use sandbar_train::NamedFile;
use sandbar_wire::Name;

use super::cached_results;
use super::index::{JobIndex, JobOwner};
use super::job::{
    ClusterJob, FileArgument, JobWork, ProgramWork, RESULT_BYTES_MAX, all_keys, job_key, owner_key, owner_value,
    submission_key,
};
use super::job_files::{self, FileWork, FinishedRun};
use crate::components;
use crate::encoding;
use crate::error::{ClusterError, host_fault};
use crate::files::{self, FileUse, StoredFile};
use crate::member::MemberState;
use crate::registry;
use crate::state::ClusterState;

/// Delay before a failed operation is retried.
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// Maximum nodes that may be lost while they run a job. A job that takes down its nodes must not take down all.
const LOSSES_MAX: u32 = 3;
/// Maximum time to mark the jobs of a node that leaves.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum finished jobs that are dropped in one transaction.
const DROPPED_MAX: usize = 50;

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
    let (entries, revision) = registry::read_all(&*cluster.store, all_keys()?).await?;
    let index = JobIndex::new(&entries, revision);
    drop(entries);
    let own = owner_value(&cluster.own);
    // Jobs that other nodes took over, or that were deleted, while this node could not read the store.
    cluster.jobs.abort_unless(|job| index.owners().any(|(other, owner)| other == job && owner.value == own));
    cluster.jobs.set_index(index);
    // Changes since the last read are unknown.
    cluster.jobs.notify_all();
    let mut watcher = cluster.store.watch(&all_keys()?, revision.next()).await?;
    loop {
        let (owned, lost) = pending(cluster, &own);
        owned.into_iter().for_each(|owned| start(cluster, owned));
        if *cluster.membership.state.borrow() == MemberState::Ready {
            if !lost.is_empty() && cluster.membership.lease().is_none() {
                // No change of a job will tell when this node has one.
                return Err(ClusterError::RetryLater("this node has no lease yet".to_owned()));
            }
            for (job, revision) in lost {
                take_over(cluster, job, revision).await?;
            }
        }
        let changes = watcher.next().await?;
        let changed = cluster.jobs.update_index(changes, watcher.position());
        changed.jobs.iter().for_each(|job| cluster.jobs.notify(job));
        // If this node had owned such a job, its lease has expired and the next owner runs the job, or the tenant was
        // removed.
        changed.released.iter().for_each(|job| cluster.jobs.abort(job));
        let of_own = changed.finished.into_iter().filter(|(_, node)| *node == cluster.own.name);
        for tenant in of_own.map(|(job, _)| job.tenant).collect::<BTreeSet<Name>>() {
            drop_surplus(cluster, &tenant).await;
        }
    }
}

/// Returns the jobs that this node owns, and those without an owner, with the revisions of their entries.
fn pending(cluster: &ClusterState, own: &MetaValue) -> (Vec<OwnedJob>, Vec<(ClusterJob, Revision)>) {
    let (mut owned, mut lost) = (Vec::new(), Vec::new());
    for (job, revision, owner) in cluster.jobs.index().unfinished() {
        match owner {
            // This node may not have learned that its transaction had succeeded.
            Some(owner) if owner.value == *own => {
                if !cluster.jobs.is_running_or_ended(&job.reference()) {
                    owned.push(OwnedJob { job: job.clone(), owner_revision: owner.revision });
                }
            }
            Some(_) => {}
            None => lost.push((job.clone(), revision)),
        }
    }
    (owned, lost)
}

/// A job that this node owns, and the revision of its owner key.
pub(crate) struct OwnedJob {
    pub(crate) job: ClusterJob,
    owner_revision: Revision,
}

/// Takes over a job without an owner, unless another node does. Fails the job if it has lost too many nodes.
async fn take_over(cluster: &Arc<ClusterState>, job: ClusterJob, revision: Revision) -> Result<(), ClusterError> {
    let (key, from, id) = (job_key(&job.reference())?, job.node.clone(), job.id.short().to_owned());
    let losses = job.losses.saturating_add(u32::from(!job.handed_over));
    if losses > LOSSES_MAX {
        let message = format!(
            "{losses} nodes were lost while they ran it, the last one was `{from}`: it is not taken over again; find out \
             what it does to its nodes before you submit it again"
        );
        let error = JobFailure::from_fault(&Fault::new(Code::TakeoverLimit, message), &[]);
        let counts = JobCounts { takeovers: job.runs.saturating_sub(1).into(), ..job.counts };
        let (state, ended_ms, error) = (RunState::Failed, Some(now_ms()), Some(error));
        let job = ClusterJob { state, ended_ms, error, losses, counts, ..job };
        let fail = Transaction::new()
            .when(Condition::absent(owner_key(&job.reference())?))
            .when(Condition::unchanged(key.clone(), revision))
            .then(Operation::put(key, encode(&job)?));
        if cluster.store.transact(fail).await?.succeeded {
            log::warn!("job {id} of tenant `{}` fails: {losses} nodes were lost while they ran it", job.tenant);
        }
        return Ok(());
    }
    let job = ClusterJob { runs: job.runs.saturating_add(1), losses, handed_over: false, ..job };
    if let Some(owned) = acquire(cluster, job, vec![Condition::unchanged(key, revision)], Vec::new()).await? {
        log::warn!("job {id} is taken over from node `{from}`, which is lost; run {} starts", owned.job.runs);
        // The run that this node had before.
        cluster.jobs.abort(&owned.job.reference());
        start(cluster, owned);
    }
    Ok(())
}

/// Stores a job with this node as its owner, if it has no owner and the conditions hold.
pub(crate) async fn acquire(
    cluster: &ClusterState,
    job: ClusterJob,
    conditions: Vec<Condition>,
    operations: Vec<Operation>,
) -> Result<Option<OwnedJob>, ClusterError> {
    let (key, owner_key) = (job_key(&job.reference())?, owner_key(&job.reference())?);
    let Some(lease) = cluster.membership.lease() else { return Ok(None) };
    let job = ClusterJob { node: cluster.own.name.clone(), state: RunState::Running, ..job };
    let mut acquire = Transaction::new()
        .when(Condition::absent(owner_key.clone()))
        .then(Operation::put_leased(owner_key, owner_value(&cluster.own), lease))
        .then(Operation::put(key, encode(&job)?));
    acquire.conditions.extend(conditions);
    acquire.then.extend(operations);
    let done = cluster.store.transact(acquire).await?;
    Ok(done.succeeded.then_some(OwnedJob { job, owner_revision: done.revision }))
}

/// Marks the jobs of this node, which leaves in order: their takeover is not the loss of a node.
pub(crate) async fn hand_over(cluster: &ClusterState) {
    let own = owner_value(&cluster.own);
    let jobs: Vec<_> = {
        let index = cluster.jobs.index();
        let of_own = |(job, _, owner): (&ClusterJob, Revision, Option<&JobOwner>)| {
            owner.filter(|owner| owner.value == own).map(|owner| (job.clone(), owner.revision))
        };
        index.unfinished().filter_map(of_own).collect()
    };
    let mark = async {
        for (job, owner_revision) in jobs {
            let job = ClusterJob { handed_over: true, ..job };
            let (Ok(key), Ok(owner_key)) = (job_key(&job.reference()), owner_key(&job.reference())) else { continue };
            let Ok(value) = encode(&job) else { continue };
            let mark = Transaction::new()
                .when(Condition::unchanged(owner_key, owner_revision))
                .then(Operation::put(key, value));
            if let Err(error) = cluster.store.transact(mark).await {
                log::debug!("job {} can't be marked: {error}", job.id.short());
            }
        }
    };
    let _ = tokio::time::timeout(HAND_OVER_TIME_MAX, mark).await;
}

fn encode(job: &ClusterJob) -> Result<MetaValue, ClusterError> {
    encoding::json(format_args!("job {}", job.id.short()), job).map(MetaValue::new)
}

/// Starts an owned job, unless it runs already.
pub(crate) fn start(cluster: &Arc<ClusterState>, owned: OwnedJob) {
    let (state, id, number) = (cluster.clone(), owned.job.reference(), owned.job.runs);
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

async fn run(cluster: &ClusterState, job: &ClusterJob) -> FinishedRun {
    match &job.work {
        JobWork::JobFile { job_file } => job_files::run(cluster, job, FileWork::JobFile(job_file)).await,
        JobWork::Prediction { prediction } => job_files::run(cluster, job, FileWork::Prediction(prediction)).await,
        JobWork::Program(program) => match run_program(cluster, job, program).await {
            Ok(summary) => {
                FinishedRun { state: RunState::Succeeded, result: summary.result, output: None, error: None }
            }
            Err(error) => {
                let is_stopped = matches!(error, ProgramError::Stopped | ProgramError::Dropped);
                let state = if is_stopped { RunState::Stopped } else { RunState::Failed };
                FinishedRun { state, result: serde_json::Value::Null, output: None, error: Some(error.failure()) }
            }
        },
    }
}

async fn run_program(
    cluster: &ClusterState,
    job: &ClusterJob,
    work: &ProgramWork,
) -> Result<ProgramSummary, ProgramError> {
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("this node runs no programs"))?;
    let reference = job.reference();
    let program = components::load_of_tenant(cluster, &job.tenant, work.component).await?;
    // Until the run has ended, these keep its files.
    let (files, _uses) = argument_files(cluster, &job.tenant, &work.files).await?;
    let tenant = job.tenant_id();
    let store = cluster.jobs.store(&job.tenant);
    let recorder = store.create_named(&job.id, &job.program, &work.arguments, tenant);
    let recorder = recorder.map_err(host_fault)?;
    cluster.jobs.set_feed(&reference, job.runs, &recorder);
    let resumed = if job.runs > 1 { cached_results::collect(cluster, &job.id).await } else { Vec::new() };
    let (task, arguments) = (work.task.clone(), work.arguments.clone());
    let run = job.runs;
    (runtime.run)(ClusterProgram { program, task, arguments, files, resumed, run, recorder }).await
}

/// Returns the files of a program's arguments on this node.
async fn argument_files(
    cluster: &ClusterState,
    tenant: &Name,
    arguments: &[FileArgument],
) -> Result<(Vec<ArgumentFiles>, Vec<FileUse>), Fault> {
    let (mut all, mut uses) = (Vec::new(), Vec::new());
    for FileArgument { argument, files } in arguments {
        let contents: Vec<StoredFile> = files.iter().map(|file| file.content).collect();
        let own = files::fetch_all(cluster, tenant, &contents).await?;
        let named = files.iter().zip(&own);
        let named = named.map(|(file, own)| NamedFile { name: file.name.clone(), path: own.path().to_owned() });
        all.push(ArgumentFiles { argument: argument.clone(), files: named.collect() });
        uses.extend(own);
    }
    Ok((all, uses))
}

/// Stores the outcome of a job, unless another node owns it by now.
async fn finish(cluster: &ClusterState, owned: OwnedJob, finished: FinishedRun) {
    let OwnedJob { mut job, owner_revision } = owned;
    if let Ok(stored) = cluster.jobs.store(&job.tenant).find(job.id.as_str()) {
        job.counts = stored.record.counts;
    }
    job.counts.takeovers = job.runs.saturating_sub(1).into();
    (job.ended_ms, job.state) = (Some(now_ms()), finished.state);
    (job.result, job.output, job.error) = (finished.result, finished.output, finished.error);
    let bytes = if job.result.is_null() { 0 } else { job.result.to_string().len() };
    if bytes > RESULT_BYTES_MAX {
        (job.state, job.result, job.output) = (RunState::Failed, serde_json::Value::Null, None);
        let message = format!("the result has {bytes} bytes as JSON, the limit is {RESULT_BYTES_MAX}; return less");
        job.error = Some(JobFailure::from_message(message));
    }
    let (Ok(key), Ok(owner)) = (job_key(&job.reference()), owner_key(&job.reference())) else { return };
    let is_owned = Condition::unchanged(owner.clone(), owner_revision);
    // Retrying is safe if it is unknown whether the transaction was executed: then the owner key has changed.
    let done = loop {
        let commit = encode(&job).map(|value| {
            let commit = Transaction::new().when(is_owned.clone());
            commit.then(Operation::put(key.clone(), value)).then(Operation::delete(&owner))
        });
        let done = match commit {
            Ok(commit) => cluster.store.transact(commit).await.map_err(ClusterError::from),
            Err(error) => Err(error),
        };
        match done {
            Ok(done) => break done,
            // Retrying never helps.
            Err(error @ (ClusterError::Encode(..) | ClusterError::Store(MetaError::Limit { .. })))
                if !job.result.is_null() =>
            {
                (job.state, job.result, job.output) = (RunState::Failed, serde_json::Value::Null, None);
                let message = format!("the result can't be stored: {error}; return less");
                job.error = Some(JobFailure::from_message(message));
                continue;
            }
            Err(error) => log::warn!("the outcome of job {} can't be stored yet, retrying: {error}", job.id.short()),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    };
    cluster.jobs.finish(&job.reference(), job.runs, done.revision);
    let (id, state) = (job.id.short(), job.state.as_str());
    match (&job.error, done.succeeded) {
        (_, false) => {
            log::warn!("job {id} now belongs to another node: its outcome on this node ({state}) is discarded")
        }
        (Some(error), true) => log::info!("job {id} {state}: {}", error.message),
        (None, true) => log::info!("job {id} {state}"),
    }
}

/// Drops the finished jobs of a tenant beyond its limits, those that ended first. Dropping a job forgets its submission
/// key.
async fn drop_surplus(cluster: &ClusterState, tenant: &Name) {
    let settings = cluster.tenants.settings(tenant).unwrap_or_default();
    let (jobs_max, bytes_max) = (settings.finished_jobs_max, settings.finished_job_bytes_max);
    let surplus = cluster.jobs.index().surplus(tenant, jobs_max, bytes_max);
    for dropped in surplus.chunks(DROPPED_MAX) {
        let mut transaction = Transaction::new();
        for (job, finished) in dropped {
            let submission = finished.key.as_ref().map(|key| submission_key(tenant, key));
            let keys = [Some(job_key(job)), submission].into_iter().flatten().flatten();
            transaction.then.extend(keys.map(|key| Operation::delete(&key)));
        }
        // Another node may have deleted some. A failure is retried after the next job of the tenant.
        if let Err(error) = cluster.store.transact(transaction).await {
            log::debug!("finished jobs of tenant `{tenant}` can't be dropped: {error}");
        }
    }
}
