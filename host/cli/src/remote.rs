//! Jobs of a cluster from outside: `host submit --node`, `host jobs ... --node`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use sandbar_node::{
    ClusterClient, ClusterJob, FollowEvent, JobCounts, JobQuery, JobResponse, LoggedLine, NewClusterJob, NodeAddress,
    ProgressRow, RunState, build_crate, machine,
};
use serde::Serialize;

use crate::args::Submit;
use crate::cluster_args::{Remote, TimeoutArgs};
use crate::error::CliError;
use crate::job_limits::{END_TIME_MAX, POLL_INTERVAL, SCANNED_JOBS_MAX};
use crate::output::OutputForm;
use crate::signals::Interruption;
use crate::table::{Columns, cell, ending};
use crate::{output, signals};

/// Default first task of a program.
const MAIN: &str = "main";

fn failed(e: impl std::fmt::Display) -> CliError {
    CliError::Failed(e.to_string())
}

/// A connection to a cluster from outside.
pub(crate) struct Cluster(ClusterClient);

async fn client(
    node: &NodeAddress,
    token: Option<String>,
    data: Option<PathBuf>,
    timeouts: TimeoutArgs,
) -> Result<ClusterClient, CliError> {
    let data = match data {
        Some(data) => data,
        None => machine::state_folder()?.join("client"),
    };
    let token = token.or_else(|| std::env::var("SANDBAR_TOKEN").ok());
    ClusterClient::connect(&data, node, token.as_deref(), timeouts.into()).await.map_err(failed)
}

/// Submits a program to a cluster.
pub(crate) async fn submit(submit: Submit, interruption: &Interruption) -> Result<ExitCode, CliError> {
    if submit.shares.is_of_programs() || submit.shares.workers.is_some() || submit.shares.memory.is_some() {
        let message = "--workers, --memory and program resources can't be set with --node: set them on the cluster's \
                       nodes (see `host serve --help`)";
        return Err(CliError::Usage(message.to_owned()));
    }
    let Some(node) = submit.node else { return Err(CliError::Usage("--node is missing".to_owned())) };
    let program = submit.job.display().to_string();
    let (path, task) = program.rsplit_once('#').unwrap_or((&program, MAIN));
    let component = component(Path::new(path), submit.quiet).await?;
    let new = NewClusterJob::new(&component, &program, task, submit.args);
    let mut client = client(&node, submit.member.token, submit.member.data, submit.timeouts).await?;
    interruption.set_outcome(format!("the job may have been submitted: check with `host jobs list --node {node}`"));
    let job = client.submit(new, &component).await.map_err(failed)?;
    let id = job.id.short().to_owned();
    interruption.set_outcome(format!("job {id} continues; stop it with `host jobs stop {id} --node {node}`"));
    if submit.no_wait {
        client.close().await;
        if submit.json {
            output::json(&job)?
        } else {
            output::line(&id)?
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !submit.quiet {
        output::message(&format!(
            "job {id} runs on node {}; Ctrl-C detaches, `host jobs stop {id} --node {node}` stops the job",
            job.node
        ));
    }
    let mut output = FollowOutput { is_quiet: submit.quiet, task: None, to_stdout: false, progress: BTreeSet::new() };
    let job = client.follow(job.id.as_str(), |event| output.print(event)).await.map_err(failed)?;
    client.close().await;
    ended(&job, OutputForm::new(submit.json, submit.quiet))
}

async fn component(path: &Path, is_quiet: bool) -> Result<Vec<u8>, CliError> {
    let report = |text: String| output::message(&text);
    let cache = machine::cache_folder()?;
    let file = if path.is_dir() {
        build_crate(path, &cache, (!is_quiet).then_some(&report)).await.map_err(failed)?
    } else {
        path.to_owned()
    };
    std::fs::read(&file).map_err(|e| CliError::Failed(format!("{}: {e}", file.display())))
}

/// Prints the outcome of a job.
fn ended(job: &ClusterJob, form: OutputForm) -> Result<ExitCode, CliError> {
    if form == OutputForm::Json {
        output::json(job)?;
    } else if !job.result.is_null() {
        output::line(&job.result.as_str().map_or_else(|| job.result.to_string(), str::to_owned))?;
    }
    if let Some(error) = &job.error {
        let chain = if error.chain.is_empty() { String::new() } else { format!("{}: ", error.chain.join(" > ")) };
        let code = error.code.as_ref().map_or_else(String::new, |code| format!(" [{code}]"));
        output::message(&format!("error: {chain}{}{code}", error.message));
    }
    Ok(match job.state {
        RunState::Succeeded if form == OutputForm::Failures => ExitCode::SUCCESS,
        RunState::Succeeded => {
            let counts = &job.counts;
            let resumed = match counts.resumed {
                0 => String::new(),
                resumed => format!(", {resumed} of them run before it was taken over"),
            };
            let troubles = counts.failure_summary().map_or_else(String::new, |troubles| format!("; {troubles}"));
            output::message(&format!("succeeded: {}{resumed}{troubles}", output::all_tasks(counts.tasks)));
            ExitCode::SUCCESS
        }
        RunState::Stopped => ExitCode::from(signals::exit_code(signals::INTERRUPT)),
        _ => ExitCode::FAILURE,
    })
}

/// Reported state of a followed job.
struct FollowOutput {
    is_quiet: bool,
    /// Filter: only lines of the task with this name or id.
    task: Option<String>,
    /// Whether log lines are the command's output.
    to_stdout: bool,
    progress: BTreeSet<String>,
}

impl FollowOutput {
    fn print(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Line(line) => self.line(&line),
            FollowEvent::LogUnreachable(address) if self.to_stdout || !self.is_quiet => {
                output::message(&format!("warning: can't reach the node at {address}, which has the job's log"));
            }
            FollowEvent::LogUnreachable(_) => {}
            _ if self.is_quiet => {}
            FollowEvent::Progress(rows) => self.rows(&rows),
            FollowEvent::TakenOver(node) => {
                output::message(&format!(
                    "the job's node is lost: node {node} has taken the job over and restarts it with its surviving results"
                ));
            }
            FollowEvent::Disconnected(why, time) => {
                output::message(&format!("warning: {why}; trying the cluster's nodes for {} s", time.as_secs()));
            }
        }
    }

    fn line(&self, line: &LoggedLine) {
        let is_it = |task: &String| line.name == *task || line.task.as_deref() == Some(task);
        if !self.task.as_ref().is_none_or(is_it) {
            return;
        }
        let text = format!("{} {}", line.source(), line.message().replace('\n', "\n  "));
        if self.to_stdout {
            // The reader may have closed the pipe.
            let _ = output::line(&text);
        } else if !self.is_quiet {
            output::message(&text);
        }
    }

    fn rows(&mut self, rows: &[ProgressRow]) {
        for row in rows.iter().map(ToString::to_string) {
            if self.progress.insert(row.clone()) {
                output::message(&row);
            }
        }
    }
}

impl Cluster {
    /// Connects to the cluster of `--node`, if the option is set.
    pub(crate) async fn connect(remote: Remote) -> Result<Option<Cluster>, CliError> {
        let Some(node) = remote.node else { return Ok(None) };
        Ok(Some(Cluster(client(&node, remote.token, remote.data, remote.timeouts).await?)))
    }

    pub(crate) async fn list(mut self, state: Option<RunState>, limit: usize, as_json: bool) -> Result<(), CliError> {
        #[derive(Serialize)]
        struct JobList {
            jobs: Vec<ClusterJob>,
        }
        let scanned = if state.is_some() { SCANNED_JOBS_MAX } else { limit };
        let mut jobs = self.0.list(u32::try_from(scanned).unwrap_or(u32::MAX)).await.map_err(failed)?;
        self.0.close().await;
        jobs.retain(|job| state.is_none_or(|state| state == job.state));
        jobs.truncate(limit);
        if as_json {
            return output::json(&JobList { jobs });
        }
        let mut table = Columns::new(&["JOB", "STATE", "PROGRAM", "NODE", "TAKEN", "TASKS", "FAILED", "ERROR"]);
        for job in &jobs {
            let has_counts = job.state.is_finished();
            table.row([
                job.id.short().to_owned(),
                job.state.as_str().to_owned(),
                ending(&job.program),
                job.node.clone(),
                job.runs.to_string(),
                cell(has_counts.then_some(job.counts.tasks)),
                cell(has_counts.then_some(job.counts.failed)),
                job.error.as_ref().map_or_else(String::new, |error| error.message.clone()),
            ]);
        }
        output::print(&table.text())
    }

    /// Returns the response to a query of a job, or `None` if the job has no record of it.
    pub(crate) async fn query(&mut self, job: &str, query: &JobQuery) -> Result<Option<JobResponse>, CliError> {
        self.0.query(job, query).await.map_err(failed)
    }

    /// Returns the named job, or the last one.
    pub(crate) async fn find(&mut self, id: Option<&str>) -> Result<ClusterJob, CliError> {
        match id {
            Some(id) => self.0.status(id).await.map_err(failed),
            None => {
                let last = self.0.list(1).await.map_err(failed)?.into_iter().next();
                let last = last.ok_or_else(|| failed("the cluster has no job of this tenant"))?;
                self.0.status(last.id.as_str()).await.map_err(failed)
            }
        }
    }

    pub(crate) async fn status(mut self, id: Option<&str>, as_json: bool) -> Result<(), CliError> {
        let job = self.find(id).await?;
        self.0.close().await;
        if as_json {
            return output::json(&job);
        }
        let arguments: Vec<String> = job.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut lines = vec![
            ("job", format!("{} ({})", job.id.short(), job.id)),
            ("state", job.state.as_str().to_owned()),
            ("program", job.program.clone()),
            ("arguments", arguments.join(" ")),
            ("node", job.node.clone()),
        ];
        if job.runs > 1 {
            lines.push(("takeovers", format!("{}: its earlier nodes are lost", job.runs - 1)));
        }
        if job.state.is_finished() {
            let JobCounts { succeeded, failed, stopped, .. } = job.counts;
            let troubles = JobCounts { failed: 0, takeovers: 0, ..job.counts }.failure_summary();
            let troubles = troubles.map_or_else(String::new, |troubles| format!("; {troubles}"));
            lines.push(("tasks", format!("{succeeded} succeeded, {failed} failed, {stopped} stopped{troubles}")));
        }
        if !job.result.is_null() {
            lines.push(("result", job.result.as_str().map_or_else(|| job.result.to_string(), str::to_owned)));
        }
        lines.extend(job.error.as_ref().map(|error| ("error", error.message.clone())));
        let lines = lines.into_iter().filter(|(_, text)| !text.is_empty());
        output::print(
            &lines
                .map(|(name, text)| format!("{name:<10} {}\n", text.replace('\n', "\n           ")))
                .collect::<String>(),
        )
    }

    pub(crate) async fn logs(mut self, id: Option<&str>, follow: bool, task: Option<&str>) -> Result<(), CliError> {
        let job = self.find(id).await?;
        let task = task.map(str::to_owned);
        let mut output = FollowOutput { is_quiet: true, task, to_stdout: true, progress: BTreeSet::new() };
        let followed = self.0.follow(job.id.as_str(), |event| output.print(event));
        if follow || job.state.is_finished() {
            followed.await.map_err(failed)?;
        } else {
            // The log lines so far.
            let _ = tokio::time::timeout(POLL_INTERVAL * 10, followed).await;
        }
        Ok(())
    }

    pub(crate) async fn stop(mut self, id: &str) -> Result<(), CliError> {
        let job = self.0.stop(id).await.map_err(failed)?;
        let (name, since) = (job.id.short().to_owned(), Instant::now());
        let mut state = job.state;
        while !state.is_finished() {
            if since.elapsed() > END_TIME_MAX {
                return Err(failed(format!("job {name} did not end within {} s", END_TIME_MAX.as_secs())));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            state = self.0.status(job.id.as_str()).await.map_err(failed)?.state;
        }
        self.0.close().await;
        output::message(&format!("job {name}: {}", state.as_str()));
        Ok(())
    }
}
