//! Following of jobs by tenants: log lines, progress and state.

use std::sync::Arc;
use std::time::Duration;

use sandbar_jobs::{JobName, JobQuery, JobResponse, LogReader, StoredJob};
use sandbar_wire::Frames;

use super::lookup::{self, JobLocation};
use super::tenant_messages::TenantResponse;
use super::tenant_responses::{Outcome, retry_later, send};
use crate::registry;
use crate::state::ClusterState;

/// Interval at which the log is read.
const LOG_INTERVAL: Duration = Duration::from_millis(50);
/// Progress and state are sent every so many intervals.
const STATE_INTERVALS: u32 = 10;

/// Sends what happens in one run of a job, until the run ends: log lines after the first `lines`, progress, and state.
pub(crate) async fn follow(
    cluster: &Arc<ClusterState>,
    tenant: &str,
    text: &str,
    (run, lines, without_log): (u32, u64, bool),
    frames: &Frames,
) -> Outcome<TenantResponse> {
    let members = registry::list(&*cluster.store).await.map_err(retry_later)?;
    let addresses = members.into_iter().map(|member| member.address.to_string()).collect();
    send(frames, &TenantResponse::Nodes(addresses)).await?;
    let id = lookup::find(cluster, tenant, text).await?.id;
    let (mut log, mut sent_progress, mut round, mut is_here) = (None, Vec::new(), 0_u32, false);
    loop {
        let mut now = None;
        // The end of a job is reported at once, not with the next progress.
        let is_over = is_here && !cluster.jobs.running().contains_key(&id);
        if round % STATE_INTERVALS == 0 || is_over {
            let job = lookup::get(cluster, tenant, &id).await?.ok_or_else(|| lookup::unknown(text))?;
            if job.runs != run {
                return Ok(TenantResponse::Job(Box::new(job)));
            }
            is_here = match lookup::locate(cluster, &job).await? {
                JobLocation::OtherNode(address) if !without_log => {
                    return Ok(TenantResponse::Redirect(address.to_string()));
                }
                location => location == JobLocation::ThisNode,
            };
            now = Some(job);
        }
        // Lines that exist before the job is known to have finished are all that it has.
        if log.is_none() && is_here {
            log = open_log(cluster, &id, lines);
        }
        while let Some(line) = log.as_mut().and_then(LogReader::next_line) {
            send(frames, &TenantResponse::Line(line)).await?;
        }
        if let Some(job) = now {
            if job.state.is_finished() {
                return Ok(TenantResponse::Job(Box::new(job)));
            }
            if is_here
                && let Ok(stored) = cluster.jobs.store.find(id.as_str())
                && let Ok(JobResponse::Summary(summary)) = summary(&stored).await
            {
                if summary.progress != sent_progress {
                    sent_progress = summary.progress.clone();
                    send(frames, &TenantResponse::Progress(summary.progress)).await?;
                }
            }
            send(frames, &TenantResponse::Job(Box::new(job))).await?;
        }
        tokio::time::sleep(LOG_INTERVAL).await;
        round = round.wrapping_add(1);
    }
}

async fn summary(stored: &StoredJob) -> Result<JobResponse, String> {
    let stored = stored.clone();
    let summary = tokio::task::spawn_blocking(move || stored.query_node(&JobQuery::Summary)).await;
    summary.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Opens the log of a job that this node runs or ran, after the first `lines`.
fn open_log(cluster: &ClusterState, id: &JobName, lines: u64) -> Option<LogReader> {
    let mut log = cluster.jobs.store.find(id.as_str()).ok()?.log().ok()?;
    for _ in 0..lines {
        log.next_line()?;
    }
    Some(log)
}
