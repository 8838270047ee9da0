//! Which node runs a job: who takes it first.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sandbar_jobs::{JobFailure, JobName, RunState, now_ms};
use sandbar_meta::{Change, Condition, Entry, KeyRange, MetaError, MetaValue, Operation, Revision, Transaction};

use super::said::RESULT_BYTES_MAX;
use super::{ClusterJob, JOBS, job_key, owner_key, parse_key, remains};
use crate::members::{self, Member, MemberState};
use crate::{ClusterError, Inner, programs};
use sandbar_runtime::ProgramError;
use sandbar_runtime::{ClusterProgram, ProgramSummary};

/// What did not work is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// Jobs that have ended and are kept.
const ENDED_MAX: usize = 1000;

/// A job, as far as the store's changes have been seen.
#[derive(Debug, Default)]
struct Seen {
    job: Option<(ClusterJob, Revision)>,
    owner: Option<Owner>,
}

/// Who has a job, and since which revision.
#[derive(Debug)]
struct Owner {
    name: MetaValue,
    since: Revision,
}

impl Seen {
    /// Of a job that has not ended: the job, the revision of it, and who has it.
    fn alive(&self) -> Option<(&ClusterJob, Revision, Option<&Owner>)> {
        let (job, revision) = self.job.as_ref().filter(|(job, _)| !job.state.is_finished())?;
        Some((job, *revision, self.owner.as_ref()))
    }
}

/// What stands in the key of a job's owner: a process of a node, not one before it.
pub(super) fn owner(node: &Member) -> MetaValue {
    MetaValue::new(format!("{}/{}", node.name, node.number).into_bytes())
}

/// Takes jobs that nobody has, again and again.
pub(crate) async fn keep(inner: &Arc<Inner>) {
    loop {
        // Whatever fails is tried anew from the start.
        if let Err(error) = keep_once(inner).await {
            log::debug!("the cluster's jobs are looked at again: {error}");
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn keep_once(inner: &Arc<Inner>) -> Result<(), ClusterError> {
    let span = KeyRange::prefix(JOBS.as_bytes())?;
    let (entries, revision) = members::all(&*inner.store, span.clone()).await?;
    let mut seen: BTreeMap<JobName, Seen> = BTreeMap::new();
    entries.iter().for_each(|entry| see(&mut seen, entry));
    // What others have by now, they took while this node heard nothing.
    let is_others = |seen: &Seen| seen.owner.as_ref().is_some_and(|owned| owned.name != owner(&inner.own));
    seen.iter().filter(|(_, seen)| is_others(seen)).for_each(|(id, _)| inner.end_job(id));
    let mut watcher = inner.store.watch(&span, revision.next()).await?;
    loop {
        for (job, revision, owned) in seen.values().filter_map(Seen::alive) {
            match owned {
                // It was not known whether it had been taken.
                Some(Owner { name, since }) if *name == owner(&inner.own) => {
                    begin(inner, Owned { job: job.clone(), revision: *since });
                }
                Some(_) => {}
                None if *inner.state.borrow() == MemberState::Ready => {
                    if let Some(owned) = take(inner, job, revision).await? {
                        log::warn!(
                            "job {} is taken over from node `{}`, which is gone; it begins for the {}. time",
                            job.id.short(),
                            job.node,
                            owned.job.taken
                        );
                        // What runs of it here is of before.
                        inner.end_job(&owned.job.id);
                        begin(inner, owned);
                    }
                }
                None => {}
            }
        }
        let mut given_up = Vec::new();
        for change in watcher.next().await? {
            match change {
                Change::Put(entry) => see(&mut seen, &entry),
                Change::Deleted { key, .. } => match parse_key(&key) {
                    Some((id, true)) => {
                        seen.entry(id.clone()).or_default().owner = None;
                        given_up.push(id);
                    }
                    Some((id, false)) => drop(seen.remove(&id)),
                    None => {}
                },
            }
        }
        // Whoever takes it next runs it: if it was this node's, and has not ended, it is not any more.
        let is_nobodys =
            |id: &&JobName| seen.get(*id).and_then(Seen::alive).is_some_and(|(_, _, owner)| owner.is_none());
        given_up.iter().filter(is_nobodys).for_each(|id| inner.end_job(id));
        drop_oldest(inner, &seen).await;
    }
}

fn see(seen: &mut BTreeMap<JobName, Seen>, entry: &Entry) {
    let Some((id, is_owner)) = parse_key(&entry.key) else { return };
    let seen = seen.entry(id).or_default();
    if is_owner {
        seen.owner = Some(Owner { name: entry.value.clone(), since: entry.mod_revision });
    } else {
        // One of another version is left to nodes of that.
        seen.job = serde_json::from_slice(entry.value.as_bytes()).ok().map(|job| (job, entry.mod_revision));
    }
}

/// A job that this node has taken, and the revision of its key as owner.
pub(super) struct Owned {
    pub(super) job: ClusterJob,
    revision: Revision,
}

/// Takes a job, unless another does.
async fn take(inner: &Inner, job: &ClusterJob, revision: Revision) -> Result<Option<Owned>, ClusterError> {
    let Some(key) = job_key(&job.id) else { return Ok(None) };
    let job = ClusterJob { taken: job.taken.saturating_add(1), ..job.clone() };
    own(inner, job, Condition::unchanged(key, revision)).await
}

/// Writes a job as this node's, if nobody has it and that holds.
pub(super) async fn own(inner: &Inner, job: ClusterJob, holds: Condition) -> Result<Option<Owned>, ClusterError> {
    let (Some(key), Some(key_of_owner)) = (job_key(&job.id), owner_key(&job.id)) else { return Ok(None) };
    let lease = *inner.lease.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lease) = lease else { return Ok(None) };
    let job = ClusterJob { node: inner.own.name.clone(), state: RunState::Running, ..job };
    let take = Transaction::new()
        .when(Condition::absent(key_of_owner.clone()))
        .when(holds)
        .then(Operation::put_leased(key_of_owner, owner(&inner.own), lease))
        .then(Operation::put(key, encoded(&job)));
    let done = inner.store.transact(take).await?;
    Ok(done.succeeded.then_some(Owned { job, revision: done.revision }))
}

fn encoded(job: &ClusterJob) -> MetaValue {
    MetaValue::new(serde_json::to_vec(job).unwrap_or_default())
}

/// Runs a job that is this node's, if it does not run yet.
pub(super) fn begin(inner: &Arc<Inner>, owned: Owned) {
    let (own, id) = (inner.clone(), owned.job.id.clone());
    let mut running = inner.running();
    if running.contains_key(&id) {
        return;
    }
    let Owned { job, .. } = &owned;
    log::info!("job {} of tenant `{}` begins: {}", job.id.short(), job.tenant, job.program);
    let task = inner.handle.spawn(async move {
        let result = run(&own, &owned.job).await;
        finish(&own, owned, result).await;
    });
    running.insert(id, task.abort_handle());
}

async fn run(inner: &Inner, job: &ClusterJob) -> Result<ProgramSummary, ProgramError> {
    let hub = inner.hub.get().ok_or_else(|| programs::fault("this node runs no programs"))?;
    let program = programs::load_anywhere(inner, job.component).await?;
    let keeper = inner.shelf.create_named(&job.id, &job.program, &job.arguments);
    let keeper = keeper.map_err(|e| programs::fault(&e.to_string()))?;
    let remnants = if job.taken > 1 { remains::gather(inner, &job.id).await } else { Vec::new() };
    (hub.run)(ClusterProgram {
        program,
        task: job.task.clone(),
        arguments: job.arguments.clone(),
        resumed: remnants,
        recorder: keeper,
    })
    .await
}

/// Writes what came of a job, unless it is another's by now.
async fn finish(inner: &Inner, owned: Owned, result: Result<ProgramSummary, ProgramError>) {
    let Owned { mut job, revision } = owned;
    (job.ended_ms, job.state) = (Some(now_ms()), RunState::Succeeded);
    if let Ok(stored) = inner.shelf.find(job.id.as_str()) {
        job.counts = stored.record.counts;
    }
    job.counts.takeovers = job.taken.saturating_sub(1).into();
    match result {
        Ok(summary) if summary.result.to_string().len() > RESULT_BYTES_MAX => {
            job.state = RunState::Failed;
            let words = format!("what it returned has more than {RESULT_BYTES_MAX} bytes as JSON: return less");
            job.error = Some(JobFailure::from_message(words));
        }
        Ok(summary) => job.result = summary.result,
        Err(error) => {
            let is_stopped = matches!(error, ProgramError::Stopped | ProgramError::Dropped);
            job.state = if is_stopped { RunState::Stopped } else { RunState::Failed };
            job.error = Some(error.failure());
        }
    }
    let (Some(key), Some(owner)) = (job_key(&job.id), owner_key(&job.id)) else { return };
    let commit = |job: &ClusterJob| {
        Transaction::new()
            .when(Condition::unchanged(owner.clone(), revision))
            .then(Operation::put(key.clone(), encoded(job)))
            .then(Operation::delete(&owner))
    };
    // Where it is not known whether it was done, it is not done twice: the key is gone then.
    let done = loop {
        match inner.store.transact(commit(&job)).await {
            Ok(done) => break done,
            // However often that was tried.
            Err(error @ MetaError::Limit { .. }) if !job.result.is_null() => {
                (job.state, job.result) = (RunState::Failed, serde_json::Value::Null);
                job.error =
                    Some(JobFailure::from_message(format!("what it returned can't be kept: {error}; return less")));
                continue;
            }
            Err(error) => log::warn!("what became of job {} can't be written yet: {error}", job.id.short()),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    };
    inner.running().remove(&job.id);
    let (id, state) = (job.id.short(), job.state.as_str());
    match (&job.error, done.succeeded) {
        (_, false) => log::warn!("job {id} is not this node's any more: what it came to here ({state}) does not count"),
        (Some(error), true) => log::info!("job {id} {state}: {}", error.message),
        (None, true) => log::info!("job {id} {state}"),
    }
}

/// Drops the oldest of too many jobs that have ended.
async fn drop_oldest(inner: &Inner, seen: &BTreeMap<JobName, Seen>) {
    let has_ended = |(_, seen): &(&JobName, &Seen)| seen.job.as_ref().is_some_and(|(job, _)| job.state.is_finished());
    let ended: Vec<&JobName> = seen.iter().filter(has_ended).map(|(id, _)| id).collect();
    for id in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
        if let Some(key) = job_key(id) {
            // Another node may have done it, or the next change does.
            let _ = inner.store.transact(Transaction::new().then(Operation::delete(&key))).await;
        }
    }
}

impl Inner {
    /// A job that this node runs is to run here no more.
    fn end_job(&self, id: &JobName) {
        if let Some(task) = self.running().remove(id) {
            log::warn!("job {} is not this node's any more: it ends here", id.short());
            task.abort();
        }
    }
}
