//! `host jobs`: running and finished programs of this machine.

use std::process::ExitCode;
use std::time::Instant;

use sandbar_node::{InspectError, JobCounts, JobQuery, JobRecord, JobResponse, JobStore, RunState, StoredJob, machine};
use serde::Serialize;

use crate::error::CliError;
use crate::job_limits::{END_TIME_MAX, POLL_INTERVAL, SCANNED_JOBS_MAX};
use crate::table::{Columns, cell, ending, time};
use crate::view_args::{JobSelector, Jobs};
use crate::{output, remote};

pub(crate) async fn run(jobs: Jobs) -> Result<ExitCode, CliError> {
    match jobs {
        Jobs::List { state, limit, json, remote } => match remote::Cluster::connect(remote).await? {
            Some(cluster) => cluster.list(state.map(RunState::from), limit, json).await?,
            None => list(state.map(RunState::from), limit, json)?,
        },
        Jobs::Status(JobSelector { id, json, remote }) => match remote::Cluster::connect(remote).await? {
            Some(cluster) => cluster.status(id.as_deref(), json).await?,
            None => status(find(id.as_deref())?, json).await?,
        },
        Jobs::Logs { id, follow, task, remote } => match remote::Cluster::connect(remote).await? {
            Some(cluster) => cluster.logs(id.as_deref(), follow, task.as_deref()).await?,
            None => logs(&find(id.as_deref())?, follow, task.as_deref()).await?,
        },
        Jobs::Stop { id, remote } => match remote::Cluster::connect(remote).await? {
            Some(cluster) => cluster.stop(&id).await?,
            None => stop(find(Some(&id))?).await?,
        },
        Jobs::Delete { ids } => {
            let store = job_store()?;
            for id in ids {
                store.remove(&store.find(&id)?)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the user's job store.
pub(crate) fn job_store() -> Result<JobStore, CliError> {
    Ok(JobStore::open(machine::state_folder()?.join("jobs")))
}

/// Returns the job of this name, or the last one.
pub(crate) fn find(id: Option<&str>) -> Result<StoredJob, CliError> {
    let store = job_store()?;
    Ok(match id {
        Some(id) => store.find(id)?,
        None => store.last()?,
    })
}

/// Returns the response to a query of a job, or `None` if the job has no record of it.
pub(crate) async fn query_job(job: &StoredJob, query: JobQuery) -> Result<Option<JobResponse>, CliError> {
    let (queried, name) = (job.clone(), job.record.id.short().to_owned());
    let response = tokio::task::spawn_blocking(move || queried.query(&query)).await;
    let response = response.map_err(|e| CliError::Failed(e.to_string()))?;
    response.map_err(|e| CliError::Failed(format!("job {name}: {e}")))
}

/// Sends a query to a running job. Returns `None` if the job does not run.
async fn query_running(job: &StoredJob, query: JobQuery) -> Result<Option<JobResponse>, CliError> {
    if !job.is_running() {
        return Ok(None);
    }
    let (queried, name) = (job.clone(), job.record.id.short().to_owned());
    let response = tokio::task::spawn_blocking(move || queried.query_node(&query)).await;
    match response.map_err(|e| CliError::Failed(e.to_string()))? {
        Ok(response) => Ok(Some(response)),
        // The job may have just ended.
        Err(InspectError::Io(_)) if !job.is_running() => Ok(None),
        Err(e) => Err(CliError::Failed(format!("job {name}: {e}"))),
    }
}

fn list(state: Option<RunState>, limit: usize, as_json: bool) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct JobList {
        jobs: Vec<JobRecord>,
    }
    let scanned = if state.is_some() { SCANNED_JOBS_MAX } else { limit };
    let mut jobs: Vec<JobRecord> = job_store()?.jobs(scanned)?.into_iter().map(|job| job.record).collect();
    jobs.retain(|job| state.is_none_or(|state| state == job.state));
    jobs.truncate(limit);
    if as_json {
        return output::json(&JobList { jobs });
    }
    let mut table = Columns::new(&["JOB", "STATE", "PROGRAM", "SUBMITTED", "TOOK", "TASKS", "FAILED", "ERROR"]);
    for job in &jobs {
        let has_counts = job.state.is_finished();
        table.row([
            job.id.short().to_owned(),
            job.state.as_str().to_owned(),
            ending(&job.program),
            job.submitted_utc(),
            time(job.duration_ms() * 1_000_000),
            cell(has_counts.then_some(job.counts.succeeded + job.counts.failed + job.counts.stopped)),
            cell(has_counts.then_some(job.counts.failed)),
            job.error.as_ref().map_or_else(String::new, |error| error.message.clone()),
        ]);
    }
    output::print(&table.text())
}

async fn status(job: StoredJob, as_json: bool) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct Status<'a> {
        #[serde(flatten)]
        record: &'a JobRecord,
        /// Live tasks.
        pending: u64,
        running: u64,
    }
    let (mut record, mut pending, mut running) = (job.record.clone(), 0, 0);
    // A program that is still being built has no summary.
    if let Ok(Some(JobResponse::Summary(summary))) = query_running(&job, JobQuery::Summary).await {
        (pending, running) = (summary.sum(|name| name.pending), summary.sum(|name| name.running));
        let (succeeded, failed, stopped) =
            (summary.sum(|name| name.succeeded), summary.sum(|name| name.failed), summary.sum(|name| name.stopped));
        record.progress.clone_from(&summary.progress);
        let all = succeeded + failed + stopped + pending + running;
        record.counts = JobCounts { tasks: all.saturating_sub(1), succeeded, failed, stopped, ..record.counts };
    }
    if as_json {
        return output::json(&Status { record: &record, pending, running });
    }
    output::print(&status_text(&record, pending, running))
}

fn status_text(record: &JobRecord, pending: u64, running: u64) -> String {
    let JobCounts { succeeded, failed, stopped, .. } = record.counts;
    let troubles = JobCounts { failed: 0, ..record.counts }.failure_summary();
    let arguments: Vec<String> = record.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut lines = vec![
        ("job", format!("{} ({})", record.id.short(), record.id)),
        ("state", record.state.as_str().to_owned()),
        ("program", record.program.clone()),
        ("arguments", arguments.join(" ")),
        ("submitted", record.submitted_utc()),
        ("took", time(record.duration_ms() * 1_000_000)),
        ("process", record.process.to_string()),
        (
            "tasks",
            format!(
                "{pending} pending, {running} running, {succeeded} succeeded, {failed} failed, {stopped} stopped{}",
                troubles.map_or_else(String::new, |troubles| format!("; {troubles}"))
            ),
        ),
    ];
    lines.extend(record.progress.iter().map(|row| ("progress", row.to_string())));
    if record.state.is_finished() {
        lines.push(("log", format!("{} lines, {} dropped", record.log.lines, record.log.dropped)));
    }
    if !record.result.is_null() {
        lines.push(("result", record.result.as_str().map_or_else(|| record.result.to_string(), str::to_owned)));
    }
    if let Some(error) = &record.error {
        let chain = if error.chain.is_empty() { String::new() } else { format!("{}: ", error.chain.join(" > ")) };
        let code = error.code.as_ref().map_or_else(String::new, |code| format!(" [{code}]"));
        lines.push(("error", format!("{chain}{}{code}", error.message)));
    }
    lines.retain(|(_, text)| !text.is_empty());
    lines.into_iter().map(|(name, text)| format!("{name:<10} {}\n", text.replace('\n', "\n           "))).collect()
}

async fn logs(job: &StoredJob, follow: bool, task: Option<&str>) -> Result<(), CliError> {
    let mut log = job.log()?;
    loop {
        // A job writes no log lines after its end.
        let goes_on = follow && job.is_running();
        while let Some(line) = log.next_line() {
            let is_selected = task.is_none_or(|task| line.name == task || line.task.as_deref() == Some(task));
            let text = || format!("{} {}\n", line.source(), line.message().replace('\n', "\n  "));
            if is_selected && !output::stream(&text())? {
                return Ok(());
            }
        }
        if !goes_on {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let dropped = job.reload().record.log.dropped;
    if dropped > 0 {
        output::message(&format!("({dropped} more lines were dropped)"));
    }
    Ok(())
}

async fn stop(job: StoredJob) -> Result<(), CliError> {
    let name = job.record.id.short().to_owned();
    if query_running(&job, JobQuery::Stop).await?.is_none() {
        output::message(&format!("job {name} has ended already: {}", job.reload().record.state.as_str()));
        return Ok(());
    }
    let since = Instant::now();
    while job.is_running() {
        if since.elapsed() > END_TIME_MAX {
            let message = format!(
                "job {name} did not end within {} s; its process is {}",
                END_TIME_MAX.as_secs(),
                job.record.process
            );
            return Err(CliError::Failed(message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    output::message(&format!("job {name}: {}", job.reload().record.state.as_str()));
    Ok(())
}
