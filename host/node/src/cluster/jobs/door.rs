//! What a node does for tenants, who come from outside.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::ComponentId;
use sandbar_meta::Condition;
use sandbar_wire::{Channel, Connection, Frames, Role};
use sha2::{Digest, Sha256};

use super::super::{Inner, members, parts, programs};
use super::keep::{begin, own};
use super::said::{ARGUMENTS_BYTES_MAX, Answered, Asked, NewClusterJob};
use super::{ClusterJob, JOBS, job_key, parse_key};
use crate::jobs::{Answer, JobCounts, JobName, LogReader, Question, RunState, StoredJob, now_ms};

/// A tenant's question, and its answers.
pub(super) const JOBS_CHANNEL: Channel = Channel::new(9);
/// A tenant says what it wants within this, and sends each part of a component.
const ASK_TIME_MAX: Duration = Duration::from_secs(30);
/// How often is looked what there is to tell of a job.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How far tasks are is told so often, and how the job is.
const TELL_PROGRESS: u32 = 10;
/// Nodes that have a component beside the one that the tenant gave it to.
const COPIES: usize = 2;
const LISTED_MAX: u32 = 1000;

/// Lets tenants in.
pub(in super::super) async fn open(inner: Arc<Inner>) {
    while let Some(connection) = inner.endpoint.accept(Role::Tenant).await {
        let inner = inner.clone();
        tokio::spawn(async move {
            while let Ok((channel, frames)) = connection.accept().await {
                if channel == JOBS_CHANNEL {
                    tokio::spawn(attend(inner.clone(), connection.clone(), frames));
                }
            }
        });
    }
}

async fn attend(inner: Arc<Inner>, connection: Connection, mut frames: Frames) {
    let Ok(Ok(Some(asked))) = tokio::time::timeout(ASK_TIME_MAX, frames.recv()).await else { return };
    let tenant = connection.peer().name.as_str();
    let answered = match serde_json::from_slice(&asked) {
        Ok(Asked::Submit(new)) => submit(&inner, tenant, new, &mut frames).await,
        Ok(Asked::Follow { job, after }) => follow(&inner, tenant, &job, after, &frames).await,
        Ok(Asked::Status { job }) => find(&inner, tenant, &job).await.map(|job| Answered::Job(Box::new(job))),
        Ok(Asked::Stop { job }) => stop(&inner, tenant, &job).await,
        Ok(Asked::List { limit }) => list(&inner, tenant, limit.min(LISTED_MAX)).await.map(Answered::Jobs),
        Err(e) => Err(format!("what was asked makes no sense to this node, which is of version {VERSION}: {e}")),
    };
    let answered = answered.unwrap_or_else(Answered::Refused);
    // Who asked may be gone.
    let _ = say(&frames, &answered).await;
    let _ = frames.flush().await;
    let _ = tokio::time::timeout(ASK_TIME_MAX, frames.recv()).await;
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

async fn say(frames: &Frames, answered: &Answered) -> Result<(), String> {
    let bytes = serde_json::to_vec(answered).map_err(|e| e.to_string())?;
    frames.send(&bytes).await.map_err(|e| e.to_string())
}

/// Takes a job in, and runs it.
async fn submit(inner: &Arc<Inner>, tenant: &str, new: NewClusterJob, frames: &mut Frames) -> Result<Answered, String> {
    let NewClusterJob { id, program, component, task, arguments } = new;
    if let Ok(job) = get(inner, tenant, &id).await {
        // Who submitted it did not hear that it was taken in.
        return Ok(Answered::Job(Box::new(job)));
    }
    let bytes: usize = arguments.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ARGUMENTS_BYTES_MAX {
        return Err(format!("its arguments have {bytes} bytes, {ARGUMENTS_BYTES_MAX} may be"));
    }
    if let Some((name, _)) = arguments.iter().find(|(_, value)| value.starts_with('@') && !value.starts_with("@@")) {
        return Err(format!("argument `{name}` is a file: the cluster's nodes don't have this machine's files"));
    }
    let path = inner.component_path(component).ok_or("this node runs no programs")?;
    if !path.is_file() {
        say(frames, &Answered::Send).await?;
        let bytes = receive(component, frames).await?;
        programs::keep(&path, &bytes).map_err(|e| format!("its component can't be kept: {e}"))?;
    }
    // What can't be run is said at once.
    programs::load_anywhere(inner, component).await.map_err(|fault| fault.to_string())?;
    programs::copy(inner, component, COPIES).await;
    let job = ClusterJob {
        id: id.clone(),
        tenant: tenant.to_owned(),
        program,
        component,
        task,
        arguments,
        submitted_ms: now_ms(),
        ended_ms: None,
        state: RunState::Pending,
        taken: 1,
        node: String::new(),
        result: serde_json::Value::Null,
        error: None,
        counts: JobCounts::default(),
    };
    let key = job_key(&id).ok_or("it has no name")?;
    let Ok(Some(owned)) = own(inner, job, Condition::absent(key)).await else {
        return Ok(Answered::Later("the node is not a member of its cluster now".to_owned()));
    };
    let job = owned.job.clone();
    begin(inner, owned);
    Ok(Answered::Job(Box::new(job)))
}

/// The bytes of a component.
async fn receive(component: ComponentId, frames: &mut Frames) -> Result<Vec<u8>, String> {
    let bytes = parts::recv(frames, programs::COMPONENT_BYTES_MAX, ASK_TIME_MAX).await;
    let bytes = bytes.map_err(|why| format!("its component: {why}"))?;
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    match ComponentId::from_digest(digest) == component {
        true => Ok(bytes),
        false => Err("what came is another component than was said".to_owned()),
    }
}

/// A tenant's job of this whole name.
async fn get(inner: &Inner, tenant: &str, id: &JobName) -> Result<ClusterJob, String> {
    let unknown = || format!("there is no job `{id}`");
    let got = inner.store.get(&job_key(id).ok_or_else(unknown)?).await.map_err(|e| e.to_string())?;
    let job = got.entry.and_then(|entry| serde_json::from_slice::<ClusterJob>(entry.value.as_bytes()).ok());
    job.filter(|job| job.tenant == tenant).ok_or_else(unknown)
}

/// A tenant's job: by its name, or how its last digits begin. Of another's it is not said that there is one.
async fn find(inner: &Inner, tenant: &str, text: &str) -> Result<ClusterJob, String> {
    let mut all = jobs(inner, tenant).await?;
    all.retain(|job| job.id.may_be(text));
    match all.len() {
        0 => Err(format!("there is no job `{text}`")),
        1 => Ok(all.swap_remove(0)),
        _ => {
            let names: Vec<&str> = all.iter().map(|job| job.id.short()).collect();
            Err(format!("`{text}` may be several jobs: {}", names.join(", ")))
        }
    }
}

async fn jobs(inner: &Inner, tenant: &str) -> Result<Vec<ClusterJob>, String> {
    let span = sandbar_meta::Span::prefix(JOBS.as_bytes()).map_err(|e| e.to_string())?;
    let (entries, _) = members::all(&*inner.store, span).await.map_err(|e| e.to_string())?;
    let is_job = |entry: &&sandbar_meta::Entry| parse_key(&entry.key).is_some_and(|(_, is_owner)| !is_owner);
    let job = |entry: &sandbar_meta::Entry| serde_json::from_slice::<ClusterJob>(entry.value.as_bytes()).ok();
    let all = entries.iter().filter(is_job).filter_map(job);
    Ok(all.filter(|job| job.tenant == tenant).collect())
}

async fn list(inner: &Inner, tenant: &str, limit: u32) -> Result<Vec<ClusterJob>, String> {
    let mut all = jobs(inner, tenant).await?;
    all.reverse();
    all.truncate(limit as usize);
    // What it returned is told by its status.
    all.iter_mut().for_each(|job| job.result = serde_json::Value::Null);
    Ok(all)
}

/// Where a job runs, if not here.
async fn elsewhere(inner: &Inner, job: &ClusterJob) -> Option<Answered> {
    if job.state.has_ended() || job.node == inner.own.name {
        return None;
    }
    let members = members::list(&*inner.store).await.ok()?;
    let there = members.into_iter().find(|member| member.name == job.node)?;
    Some(Answered::Elsewhere(there.address.to_string()))
}

/// Ends a job.
async fn stop(inner: &Inner, tenant: &str, text: &str) -> Result<Answered, String> {
    let job = find(inner, tenant, text).await?;
    if job.state.has_ended() {
        return Ok(Answered::Job(Box::new(job)));
    }
    if let Some(elsewhere) = elsewhere(inner, &job).await {
        return Ok(elsewhere);
    }
    let stored = inner.shelf.find(job.id.as_str()).map_err(|e| e.to_string())?;
    ask(&stored, Question::Stop).await?;
    Ok(Answered::Job(Box::new(job)))
}

async fn ask(stored: &StoredJob, question: Question) -> Result<Answer, String> {
    let stored = stored.clone();
    let asked = tokio::task::spawn_blocking(move || stored.ask(&question)).await;
    asked.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Tells what becomes of a job, until it has ended.
async fn follow(inner: &Arc<Inner>, tenant: &str, text: &str, after: u64, frames: &Frames) -> Result<Answered, String> {
    let addresses = members::list(&*inner.store).await.map_err(|e| e.to_string())?;
    let addresses = addresses.into_iter().map(|member| member.address.to_string()).collect();
    say(frames, &Answered::Nodes(addresses)).await?;
    let id = find(inner, tenant, text).await?.id;
    let (mut log, mut told, mut round) = (None, String::new(), 0_u32);
    loop {
        let job = match round % TELL_PROGRESS {
            0 => Some(get(inner, tenant, &id).await?),
            _ => None,
        };
        if let Some(job) = &job
            && let Some(elsewhere) = elsewhere(inner, job).await
        {
            return Ok(elsewhere);
        }
        // Lines that are there before it is known to have ended are all that it has.
        if log.is_none() {
            log = reader(inner, &id, after);
        }
        while let Some(line) = log.as_mut().and_then(LogReader::next_line) {
            say(frames, &Answered::Line(line)).await?;
        }
        if let Some(job) = job {
            if job.state.has_ended() {
                return Ok(Answered::Job(Box::new(job)));
            }
            if let Ok(stored) = inner.shelf.find(id.as_str())
                && let Ok(Answer::Summary(summary)) = ask(&stored, Question::Summary).await
            {
                let text = serde_json::to_string(&summary.progress).unwrap_or_default();
                if text != told && !summary.progress.is_empty() {
                    say(frames, &Answered::Progress(summary.progress)).await?;
                    told = text;
                }
            }
            say(frames, &Answered::Job(Box::new(job))).await?;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        round = round.wrapping_add(1);
    }
}

/// The log of a job that runs, or ran, here, after so many lines.
fn reader(inner: &Inner, id: &JobName, after: u64) -> Option<LogReader> {
    let mut log = inner.shelf.find(id.as_str()).ok()?.log().ok()?;
    for _ in 0..after {
        log.next_line()?;
    }
    Some(log)
}
