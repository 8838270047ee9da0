//! What a node does for tenants, who come from outside.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{ComponentId, NodeId};
use sandbar_jobs::{JobCounts, JobName, JobQuery, JobResponse, LogReader, RunState, StoredJob, now_ms};
use sandbar_machine::write_atomically;
use sandbar_meta::Condition;
use sandbar_wire::{Channel, Connection, Frames, Role};
use sha2::{Digest, Sha256};

use super::keep::{begin, own, owner};
use super::said::{ARGUMENTS_BYTES_MAX, Answered, Asked, NewClusterJob};
use super::{ClusterJob, JOBS, job_key, owner_key, parse_key};
use crate::members::{self, Member};
use crate::{Inner, parts, programs};
use sandbar_runtime::names_files;

/// A tenant's question, and its answers.
pub(super) const JOBS_CHANNEL: Channel = Channel::new(9);
/// A tenant says what it wants within this, and sends each part of a component.
const ASK_TIME_MAX: Duration = Duration::from_secs(30);
/// How often is looked what there is to tell of a job.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How far tasks are is told so often, and how the job is.
const TELL_PROGRESS: u32 = 10;
/// How often is told that there is no answer yet.
const TELL_WORK: Duration = Duration::from_secs(1);
/// Nodes that have a component beside the one that the tenant gave it to.
const COPIES: usize = 2;
const LISTED_MAX: u32 = 1000;

/// Lets tenants in.
pub(crate) async fn open(inner: Arc<Inner>) {
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
        Ok(Asked::Follow { job, taken, after, stays }) => {
            follow(&inner, tenant, &job, (taken, after, stays), &frames).await
        }
        Ok(Asked::Status { job }) => find(&inner, tenant, &job).await.map(|job| Answered::Job(Box::new(job))),
        Ok(Asked::Stop { job }) => stop(&inner, tenant, &job).await,
        Ok(Asked::Look { job, question }) => match look(&inner, tenant, &job, question, &frames).await {
            // It was answered.
            Ok(None) => return wait_for_end(&mut frames).await,
            Ok(Some(answered)) | Err(answered) => Err(answered),
        },
        Ok(Asked::List { limit }) => list(&inner, tenant, limit.min(LISTED_MAX)).await.map(Answered::Jobs),
        Err(e) => {
            let own = env!("CARGO_PKG_VERSION");
            Err(refused(format!("what was asked makes no sense to this node, which is of version {own}: {e}")))
        }
    };
    let (Ok(answered) | Err(answered)) = answered;
    // Who asked may be gone.
    let _ = say(&frames, &answered).await;
    wait_for_end(&mut frames).await;
}

/// Until who asked has read the answer. It may be gone.
async fn wait_for_end(frames: &mut Frames) {
    let _ = frames.flush().await;
    let _ = tokio::time::timeout(ASK_TIME_MAX, frames.recv()).await;
}

/// What a node does for a tenant, or why it does not: that is an answer, too.
type Done<T> = Result<T, Answered>;

fn refused(why: impl ToString) -> Answered {
    Answered::Refused(why.to_string())
}

/// For what may be otherwise in a moment.
fn later(why: impl ToString) -> Answered {
    Answered::Later(why.to_string())
}

async fn say(frames: &Frames, answered: &Answered) -> Done<()> {
    let bytes = serde_json::to_vec(answered).map_err(refused)?;
    frames.send(&bytes).await.map_err(refused)
}

/// Has who asked know, until it is done, that what it waits for is worked at.
async fn worked_at<T>(frames: &Frames, work: impl Future<Output = T>) -> T {
    let tell = async {
        loop {
            tokio::time::sleep(TELL_WORK).await;
            // Where who asked is gone, the work is done nevertheless.
            let _ = say(frames, &Answered::Working).await;
        }
    };
    tokio::select! {
        done = work => done,
        never = tell => never,
    }
}

/// Takes a job in, and runs it.
async fn submit(inner: &Arc<Inner>, tenant: &str, new: NewClusterJob, frames: &mut Frames) -> Done<Answered> {
    let NewClusterJob { id, program, component, task, arguments } = new;
    if let Some(job) = get(inner, tenant, &id).await? {
        // Who submitted it did not hear that it was taken in.
        return Ok(Answered::Job(Box::new(job)));
    }
    let bytes: usize = arguments.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ARGUMENTS_BYTES_MAX {
        return Err(refused(format!("its arguments have {bytes} bytes, {ARGUMENTS_BYTES_MAX} may be")));
    }
    if let Some(name) = names_files(&arguments) {
        let words = format!("argument `{name}` is a file: the cluster's nodes don't have this machine's files");
        return Err(refused(words));
    }
    let path = inner.component_path(component).ok_or_else(|| refused("this node runs no programs"))?;
    if !path.is_file() {
        say(frames, &Answered::Send).await?;
        let bytes = receive(component, frames).await?;
        write_atomically(&path, &bytes).map_err(|e| refused(format!("its component can't be kept: {e}")))?;
    }
    let prepared = async {
        // What can't be run is said at once.
        programs::load_anywhere(inner, component).await.map_err(refused)?;
        programs::copy(inner, component, COPIES).await;
        Ok(())
    };
    worked_at(frames, prepared).await?;
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
    let key = job_key(&id).ok_or_else(|| refused("it has no name"))?;
    let Some(owned) = own(inner, job, Condition::absent(key)).await.map_err(later)? else {
        return Err(later("the node is not a member of its cluster now"));
    };
    let job = owned.job.clone();
    begin(inner, owned);
    Ok(Answered::Job(Box::new(job)))
}

/// The bytes of a component.
async fn receive(component: ComponentId, frames: &mut Frames) -> Done<Vec<u8>> {
    let bytes = parts::recv(frames, programs::COMPONENT_BYTES_MAX, ASK_TIME_MAX).await;
    let bytes = bytes.map_err(|why| refused(format!("its component: {why}")))?;
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    match ComponentId::from_digest(digest) == component {
        true => Ok(bytes),
        false => Err(refused("what came is another component than was said")),
    }
}

fn unknown(job: &str) -> Answered {
    refused(format!("there is no job `{job}`"))
}

/// A tenant's job of this whole name, if there is one.
async fn get(inner: &Inner, tenant: &str, id: &JobName) -> Done<Option<ClusterJob>> {
    let key = job_key(id).ok_or_else(|| unknown(id.as_str()))?;
    let got = inner.store.get(&key).await.map_err(later)?;
    let unreadable =
        |e| refused(format!("job {}, as the cluster's store has it, can't be read by this node: {e}", id.short()));
    let job = got.entry.map(|entry| serde_json::from_slice::<ClusterJob>(entry.value.as_bytes()).map_err(unreadable));
    Ok(job.transpose()?.filter(|job| job.tenant == tenant))
}

/// A tenant's job: by its name, or how its last digits begin. Of another's it is not said that there is one.
async fn find(inner: &Inner, tenant: &str, text: &str) -> Done<ClusterJob> {
    let mut all = jobs(inner, tenant).await?;
    all.retain(|job| job.id.matches(text));
    match all.len() {
        0 => Err(unknown(text)),
        1 => Ok(all.swap_remove(0)),
        _ => {
            let names: Vec<&str> = all.iter().map(|job| job.id.short()).collect();
            Err(refused(format!("`{text}` may be several jobs: {}", names.join(", "))))
        }
    }
}

async fn jobs(inner: &Inner, tenant: &str) -> Done<Vec<ClusterJob>> {
    let span = sandbar_meta::KeyRange::prefix(JOBS.as_bytes()).map_err(refused)?;
    let (entries, _) = members::all(&*inner.store, span).await.map_err(later)?;
    let is_job = |entry: &&sandbar_meta::Entry| parse_key(&entry.key).is_some_and(|(_, is_owner)| !is_owner);
    let unreadable = |entry: &sandbar_meta::Entry, e: &serde_json::Error| {
        log::warn!("{}, as the cluster's store has it, can't be read by this node: {e}", entry.key);
    };
    let job = |entry: &sandbar_meta::Entry| {
        let job = serde_json::from_slice::<ClusterJob>(entry.value.as_bytes());
        job.inspect_err(|e| unreadable(entry, e)).ok()
    };
    let all = entries.iter().filter(is_job).filter_map(job);
    Ok(all.filter(|job| job.tenant == tenant).collect())
}

async fn list(inner: &Inner, tenant: &str, limit: u32) -> Done<Vec<ClusterJob>> {
    let mut all = jobs(inner, tenant).await?;
    all.reverse();
    all.truncate(limit as usize);
    // What it returned is told by its status.
    all.iter_mut().for_each(|job| job.result = serde_json::Value::Null);
    Ok(all)
}

/// Where a job runs, or ran, which has its log.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Here,
    At(SocketAddr),
    /// Its node is gone, for all that this one knows. If it has not ended it will be another's.
    Nowhere,
}

async fn place(inner: &Inner, job: &ClusterJob) -> Done<Place> {
    let own = match job.state.is_finished() {
        true => None,
        false => {
            let key = owner_key(&job.id).ok_or_else(|| unknown(job.id.as_str()))?;
            match inner.store.get(&key).await.map_err(later)?.entry {
                Some(owner) => Some(owner.value),
                None => return Ok(Place::Nowhere),
            }
        }
    };
    // A node that began anew still has the logs of what ended before, and runs nothing of it.
    let is_it = |node: &Member| own.as_ref().map_or(node.name == job.node, |own| *own == owner(node));
    if is_it(&inner.own) {
        return Ok(Place::Here);
    }
    let there = members::list(&*inner.store).await.map_err(later)?.into_iter().find(is_it);
    // A tenant is not sent to where this node can't go itself: it would wait there for nothing.
    let there = there.filter(|node| inner.link(NodeId(node.number.into())).is_some());
    Ok(there.map_or(Place::Nowhere, |node| Place::At(node.address)))
}

/// Ends a job.
async fn stop(inner: &Inner, tenant: &str, text: &str) -> Done<Answered> {
    let job = find(inner, tenant, text).await?;
    if job.state.is_finished() {
        return Ok(Answered::Job(Box::new(job)));
    }
    match place(inner, &job).await? {
        Place::At(address) => return Ok(Answered::Elsewhere(address.to_string())),
        Place::Nowhere => return Err(later("its node is gone, and no other has taken it yet")),
        Place::Here => {}
    }
    // It may be about to begin.
    let stored = inner.shelf.find(job.id.as_str()).map_err(later)?;
    ask(&stored, JobQuery::Stop).await.map_err(later)?;
    Ok(Answered::Job(Box::new(job)))
}

/// Sends what there is to be seen of a job. Gives what is said instead, where another node has it.
async fn look(
    inner: &Arc<Inner>,
    tenant: &str,
    text: &str,
    question: JobQuery,
    frames: &Frames,
) -> Done<Option<Answered>> {
    if question == JobQuery::Stop {
        return Err(refused("a job is not looked at to stop it"));
    }
    let job = find(inner, tenant, text).await?;
    match place(inner, &job).await? {
        Place::At(address) => return Ok(Some(Answered::Elsewhere(address.to_string()))),
        Place::Nowhere if job.state.is_finished() => {
            return Err(refused(format!(
                "node `{}`, which ran it and has what was kept of it, is not there",
                job.node
            )));
        }
        Place::Nowhere => return Err(later("its node is gone, and no other has taken it yet")),
        Place::Here => {}
    }
    let stored = inner.shelf.find(job.id.as_str()).map_err(later)?;
    let looked = tokio::task::spawn_blocking(move || stored.query(&question)).await.map_err(refused)?;
    let bytes = serde_json::to_vec(&looked.map_err(refused)?).map_err(refused)?;
    say(frames, &Answered::Seen).await?;
    parts::send(frames, &bytes, ASK_TIME_MAX).await.map_err(refused)?;
    Ok(None)
}

async fn ask(stored: &StoredJob, question: JobQuery) -> Result<JobResponse, String> {
    let stored = stored.clone();
    let asked = tokio::task::spawn_blocking(move || stored.query_node(&question)).await;
    asked.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Tells what becomes of a job, until it has ended or was taken more often: after so many lines of its log.
async fn follow(
    inner: &Arc<Inner>,
    tenant: &str,
    text: &str,
    (taken, after, stays): (u32, u64, bool),
    frames: &Frames,
) -> Done<Answered> {
    let addresses = members::list(&*inner.store).await.map_err(later)?;
    let addresses = addresses.into_iter().map(|member| member.address.to_string()).collect();
    say(frames, &Answered::Nodes(addresses)).await?;
    let id = find(inner, tenant, text).await?.id;
    let (mut log, mut told, mut round, mut is_here) = (None, String::new(), 0_u32, false);
    loop {
        let mut now = None;
        // What has just ended is not told of only with the next progress.
        let is_over = is_here && !inner.running().contains_key(&id);
        if round % TELL_PROGRESS == 0 || is_over {
            let job = get(inner, tenant, &id).await?.ok_or_else(|| unknown(text))?;
            if job.taken != taken {
                return Ok(Answered::Job(Box::new(job)));
            }
            is_here = match place(inner, &job).await? {
                Place::At(address) if !stays => return Ok(Answered::Elsewhere(address.to_string())),
                place => place == Place::Here,
            };
            now = Some(job);
        }
        // Lines that are there before it is known to have ended are all that it has.
        if log.is_none() && is_here {
            log = reader(inner, &id, after);
        }
        while let Some(line) = log.as_mut().and_then(LogReader::next_line) {
            say(frames, &Answered::Line(line)).await?;
        }
        if let Some(job) = now {
            if job.state.is_finished() {
                return Ok(Answered::Job(Box::new(job)));
            }
            if is_here
                && let Ok(stored) = inner.shelf.find(id.as_str())
                && let Ok(JobResponse::Summary(summary)) = ask(&stored, JobQuery::Summary).await
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
