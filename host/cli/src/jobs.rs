//! `host jobs`: running and finished programs of this machine or of a cluster.

use std::process::ExitCode;

use sandbar_node::{ClusterJob, JobCounts, JobQuery, JobRecord, JobResponse, RunState, StoredJob};
use serde::Serialize;

use crate::cluster_args::Remote;
use crate::error::CliError;
use crate::job_limits::{POLL_INTERVAL, SCANNED_JOBS_MAX};
use crate::job_source::{self, JobFields, JobInCluster, ListedJob, SourcedJob, job_store, query_running};
use crate::remote::FollowOutput;
use crate::table::{Columns, cell, ending, time};
use crate::view_args::{JobSelector, Jobs};
use crate::{output, remote_jobs};

pub(crate) async fn run(jobs: Jobs) -> Result<ExitCode, CliError> {
    match jobs {
        Jobs::List { state, limit, json, remote } => list(state.map(RunState::from), limit, json, remote).await?,
        Jobs::Status(JobSelector { id, json, remote }) => {
            let mut job = SourcedJob::find(id.as_deref(), remote).await?;
            match &mut job {
                SourcedJob::Local(job) => local_status(job, json).await?,
                SourcedJob::Cluster(remote) => cluster_status(&remote.job, json)?,
            }
            job.close().await;
        }
        Jobs::Logs { id, follow, task, remote } => match SourcedJob::find(id.as_deref(), remote).await? {
            SourcedJob::Local(job) => local_logs(&job, follow, task.as_deref()).await?,
            SourcedJob::Cluster(remote) => cluster_logs(*remote, follow, task).await?,
        },
        Jobs::Stop { id, remote } => stop(&id, remote).await?,
        Jobs::Output { id, output, remote } => remote_jobs::download(&id, &output, remote).await?,
        Jobs::Delete { ids } => {
            let store = job_store()?;
            for id in ids {
                store.remove(&store.find(&id)?)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(state: Option<RunState>, limit: usize, as_json: bool, remote: Remote) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct JobList {
        jobs: Vec<ListedJob>,
    }
    let own_columns = if remote.node.is_some() { ["NODE", "TAKEN"] } else { ["SUBMITTED", "TOOK"] };
    let scanned = if state.is_some() { SCANNED_JOBS_MAX } else { limit };
    let mut jobs = job_source::list(scanned, remote).await?;
    jobs.retain(|job| state.is_none_or(|state| state == job.fields().state));
    jobs.truncate(limit);
    if as_json {
        return output::json(&JobList { jobs });
    }
    let [third, fourth] = own_columns;
    let mut table = Columns::new(&["JOB", "STATE", "PROGRAM", third, fourth, "TASKS", "FAILED", "ERROR"]);
    for job in &jobs {
        let JobFields { id, program, state, error, counts, .. } = job.fields();
        let (third, fourth, tasks) = match job {
            ListedJob::Local(record) => {
                let tasks = counts.succeeded + counts.failed + counts.stopped;
                (record.submitted_utc(), time(record.duration_ms() * 1_000_000), tasks)
            }
            ListedJob::Cluster(job) => (job.node.clone(), job.runs.to_string(), counts.tasks),
        };
        table.row([
            id.short().to_owned(),
            state.as_str().to_owned(),
            ending(program),
            third,
            fourth,
            cell(state.is_finished().then_some(tasks)),
            cell(state.is_finished().then_some(counts.failed)),
            error.map_or_else(String::new, |error| error.message.clone()),
        ]);
    }
    output::print(&table.text())
}

async fn local_status(job: &StoredJob, as_json: bool) -> Result<(), CliError> {
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
    if let Ok(Some(JobResponse::Summary(summary))) = query_running(job, JobQuery::Summary).await {
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
    let mut lines = vec![
        ("submitted", record.submitted_utc()),
        ("took", time(record.duration_ms() * 1_000_000)),
        ("process", record.process.to_string()),
        ("tasks", format!("{pending} pending, {running} running, {}", task_counts(record.counts))),
    ];
    lines.extend(record.progress.iter().map(|row| ("progress", row.to_string())));
    if record.state.is_finished() {
        lines.push(("log", format!("{} lines, {} dropped", record.log.lines, record.log.dropped)));
    }
    let error = record.error.as_ref().map(ToString::to_string);
    output::print(&status_text((&record).into(), &record.arguments, lines, error))
}

fn cluster_status(job: &ClusterJob, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::json(job);
    }
    let mut lines = vec![("node", job.node.clone())];
    if job.runs > 1 {
        lines.push(("takeovers", format!("{}: its earlier nodes are lost", job.runs - 1)));
    }
    if job.state.is_finished() {
        lines.push(("tasks", task_counts(JobCounts { takeovers: 0, ..job.counts })));
    }
    let arguments = job.work.arguments().iter().map(|(name, value)| (name, value));
    let error = job.error.as_ref().map(|error| error.message.clone());
    output::print(&status_text(job.into(), arguments, lines, error))
}

/// Describes the finished tasks of a job, its failures and losses.
fn task_counts(counts: JobCounts) -> String {
    let JobCounts { succeeded, failed, stopped, .. } = counts;
    let troubles = JobCounts { failed: 0, ..counts }.failure_summary();
    let troubles = troubles.map_or_else(String::new, |troubles| format!("; {troubles}"));
    format!("{succeeded} succeeded, {failed} failed, {stopped} stopped{troubles}")
}

/// Describes a job: its program, the `lines` of its source, and its outcome.
fn status_text<'a>(
    job: JobFields<'_>,
    arguments: impl IntoIterator<Item = (&'a String, &'a String)>,
    lines: Vec<(&'static str, String)>,
    error: Option<String>,
) -> String {
    let arguments: Vec<String> = arguments.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut all = vec![
        ("job", format!("{} ({})", job.id.short(), job.id)),
        ("state", job.state.as_str().to_owned()),
        ("program", job.program.to_owned()),
        ("arguments", arguments.join(" ")),
    ];
    all.extend(lines);
    all.extend(output::result_text(job.result).map(|result| ("result", result)));
    all.extend(error.map(|error| ("error", error)));
    all.retain(|(_, text)| !text.is_empty());
    all.into_iter().map(|(name, text)| format!("{name:<10} {}\n", text.replace('\n', "\n           "))).collect()
}

async fn local_logs(job: &StoredJob, follow: bool, task: Option<&str>) -> Result<(), CliError> {
    let mut log = job.log()?;
    loop {
        // A job writes no log lines after its end.
        let goes_on = follow && job.is_running();
        while let Some(line) = log.next_line() {
            if output::is_line_of(&line, task) && !output::stream(&format!("{}\n", output::log_text(&line)))? {
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

async fn cluster_logs(
    JobInCluster { mut client, job }: JobInCluster,
    follow: bool,
    task: Option<String>,
) -> Result<(), CliError> {
    let mut output = FollowOutput::of_logs(task);
    let followed = client.follow(job.id.as_str(), |event| output.print(event));
    if follow || job.state.is_finished() {
        followed.await.map_err(CliError::failed)?;
    } else {
        // The log lines so far.
        let _ = tokio::time::timeout(POLL_INTERVAL * 10, followed).await;
    }
    Ok(())
}

async fn stop(id: &str, remote: Remote) -> Result<(), CliError> {
    let (mut job, was_running) = SourcedJob::stop(id, remote).await?;
    let name = job.fields().id.short().to_owned();
    if !was_running {
        let state = job.state().await?;
        output::message(&format!("job {name} has ended already: {}", state.as_str()));
        return Ok(());
    }
    let state = job.wait_for_end().await?;
    job.close().await;
    output::message(&format!("job {name}: {}", state.as_str()));
    Ok(())
}
