//! Following of jobs by tenants: log lines, progress and state, each sent when it changes.

use std::sync::Arc;
use std::time::Duration;

use sandbar_jobs::{LogReader, ProgressRow};
use sandbar_wire::{Frames, Name};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::job::JobRef;
use super::local_jobs::JobFeed;
use super::lookup::{self, JobLocation};
use super::tenant_messages::TenantResponse;
use super::tenant_responses::{Outcome, retry_later, send};
use crate::registry;
use crate::state::ClusterState;

/// Maximum time between messages of the job's state. It also bounds the time until a lost store or an established
/// connection, of which nothing notifies, is noticed.
const STATE_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Minimum time between reads of the log and the progress.
const UPDATE_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Minimum time between messages of progress.
const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Sends what happens in one run of a job, until the run ends: log lines after the first `lines`, progress, and state.
pub(crate) async fn follow(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    text: &str,
    run: u32,
    lines: u64,
    without_log: bool,
    frames: &Frames,
) -> Outcome<TenantResponse> {
    let members = registry::list(&*cluster.store).await.map_err(retry_later)?;
    let addresses = members.into_iter().map(|member| member.address.to_string()).collect();
    send(frames, &TenantResponse::Nodes(addresses)).await?;
    let reference = lookup::find(cluster, tenant, text).await?.reference();
    let id = &reference.id;
    let mut changes = cluster.jobs.subscribe(&reference);
    let mut output = RunOutput::new(run, lines);
    loop {
        let job = lookup::get(cluster, tenant, id).await?.ok_or_else(|| lookup::unknown(text))?;
        if job.runs != run {
            return Ok(TenantResponse::Job(Box::new(job)));
        }
        let is_finished = job.state.is_finished();
        match lookup::locate(cluster, &job).await? {
            JobLocation::OtherNode(address) if !without_log => {
                return Ok(TenantResponse::Redirect(address.to_string()));
            }
            JobLocation::ThisNode => output.open(cluster, &reference, is_finished).await,
            JobLocation::OtherNode(_) | JobLocation::Unreachable => {}
        }
        // A job is finished in the store after its last line is in the log.
        output.send_new(frames, is_finished).await?;
        if is_finished {
            return Ok(TenantResponse::Job(Box::new(job)));
        }
        send(frames, &TenantResponse::Job(Box::new(job))).await?;
        let next_state = Instant::now() + STATE_INTERVAL_MAX;
        loop {
            tokio::select! {
                _ = changes.changed() => break,
                () = sleep_until(next_state) => break,
                () = output.changed() => {
                    output.send_new(frames, false).await?;
                    sleep(UPDATE_INTERVAL_MIN).await;
                }
            }
        }
    }
}

/// Log and progress of a run on this node.
struct RunOutput {
    /// Number of the run.
    run: u32,
    /// Log lines that the tenant has.
    lines: u64,
    log: Option<LogReader>,
    running: Option<(JobFeed, watch::Receiver<()>)>,
    /// The last progress that was sent.
    progress: Vec<ProgressRow>,
    /// When further progress may be sent.
    next_progress: Instant,
    /// Progress may have changed since it was last sent.
    is_progress_due: bool,
}

impl RunOutput {
    fn new(run: u32, lines: u64) -> RunOutput {
        RunOutput {
            run,
            lines,
            log: None,
            running: None,
            progress: Vec::new(),
            next_progress: Instant::now(),
            is_progress_due: false,
        }
    }

    /// Opens the log and the feed, once the job has them. A finished job has no feed; one that was followed before it
    /// finished is kept.
    async fn open(&mut self, cluster: &Arc<ClusterState>, job: &JobRef, is_finished: bool) {
        if self.running.is_none() {
            self.running = cluster.jobs.feed(job, self.run).map(|feed| {
                let updates = feed.updates.subscribe();
                (feed, updates)
            });
        }
        // Without a feed, a log is of an earlier run.
        if self.log.is_none() && (self.running.is_some() || is_finished) {
            let (cluster, job, lines) = (cluster.clone(), job.clone(), self.lines);
            let opened = tokio::task::spawn_blocking(move || open_log(&cluster, &job, lines)).await;
            self.log = opened.ok().flatten();
        }
    }

    /// Returns when there may be more to send. Never returns for a job that does not run on this node.
    async fn changed(&mut self) {
        let Some((_, updates)) = &mut self.running else { return std::future::pending().await };
        let due = async {
            match self.is_progress_due {
                true => sleep_until(self.next_progress).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            // The feed has the sender: it is not closed.
            _ = updates.changed() => {}
            () = due => {}
        }
    }

    /// Sends new log lines, and changed progress unless it was sent a moment ago. Sends the last progress in any case.
    async fn send_new(&mut self, frames: &Frames, is_last: bool) -> Outcome<()> {
        while let Some(line) = self.log.as_mut().and_then(LogReader::next_line) {
            send(frames, &TenantResponse::Line(line)).await?;
        }
        let Some((feed, _)) = &self.running else { return Ok(()) };
        self.is_progress_due = !is_last && Instant::now() < self.next_progress;
        if self.is_progress_due {
            return Ok(());
        }
        let progress = feed.progress.rows();
        if progress != self.progress {
            self.next_progress = Instant::now() + PROGRESS_INTERVAL_MIN;
            self.progress.clone_from(&progress);
            send(frames, &TenantResponse::Progress(progress)).await?;
        }
        Ok(())
    }
}

/// Opens the log of a job that this node runs or ran, after the first `lines`.
fn open_log(cluster: &ClusterState, job: &JobRef, lines: u64) -> Option<LogReader> {
    let mut log = cluster.jobs.store(&job.tenant).find(job.id.as_str()).ok()?.log().ok()?;
    for _ in 0..lines {
        log.next_line()?;
    }
    Some(log)
}
