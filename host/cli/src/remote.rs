//! Clusters from outside: connections, `host submit --node`, and the output of a followed job.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandbar_node::{
    ClusterClient, ClusterJob, FollowEvent, LoggedLine, NewClusterJob, NodeAddress, ProgressRow, RunState, build_crate,
    machine,
};

use crate::args::Submit;
use crate::cluster_args::{Remote, TimeoutArgs};
use crate::error::CliError;
use crate::output::OutputForm;
use crate::signals::Interruption;
use crate::{output, signals};

/// Default first task of a program.
const MAIN: &str = "main";

/// Connects to the cluster of `--node`, if the option is set.
pub(crate) async fn connect(remote: Remote) -> Result<Option<ClusterClient>, CliError> {
    let Some(node) = remote.node else { return Ok(None) };
    client(&node, remote.token, remote.data, remote.timeouts).await.map(Some)
}

pub(crate) async fn client(
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
    ClusterClient::connect(&data, node, token.as_deref(), timeouts.into()).await.map_err(CliError::failed)
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
    let new = NewClusterJob::new(&component, &program, task, submit.args, submit.key);
    let mut client = client(&node, submit.member.token, submit.member.data, submit.timeouts).await?;
    interruption.set_outcome(format!("the job may have been submitted: check with `host jobs list --node {node}`"));
    let job = client.submit(new, &component).await.map_err(CliError::failed)?;
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
    let job = client.follow(job.id.as_str(), |event| output.print(event)).await.map_err(CliError::failed)?;
    client.close().await;
    ended(&job, OutputForm::new(submit.json, submit.quiet))
}

async fn component(path: &Path, is_quiet: bool) -> Result<Vec<u8>, CliError> {
    let report = |text: String| output::message(&text);
    let cache = machine::cache_folder()?;
    let file = if path.is_dir() {
        build_crate(path, &cache, (!is_quiet).then_some(&report)).await.map_err(CliError::failed)?
    } else {
        path.to_owned()
    };
    std::fs::read(&file).map_err(|e| CliError::Failed(format!("{}: {e}", file.display())))
}

/// Prints the outcome of a job.
fn ended(job: &ClusterJob, form: OutputForm) -> Result<ExitCode, CliError> {
    if form == OutputForm::Json {
        output::json(job)?;
    } else if let Some(result) = output::result_text(&job.result) {
        output::line(&result)?;
    }
    if let Some(error) = &job.error {
        output::message(&format!("error: {error}"));
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
pub(crate) struct FollowOutput {
    is_quiet: bool,
    /// Filter: only lines of the task with this name or id.
    task: Option<String>,
    /// Whether log lines are the command's output.
    to_stdout: bool,
    progress: BTreeSet<String>,
}

impl FollowOutput {
    /// Prints only log lines, on standard output.
    pub(crate) fn of_logs(task: Option<String>) -> FollowOutput {
        FollowOutput { is_quiet: true, task, to_stdout: true, progress: BTreeSet::new() }
    }

    pub(crate) fn print(&mut self, event: FollowEvent) {
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
        if !output::is_line_of(line, self.task.as_deref()) {
            return;
        }
        let text = output::log_text(line);
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
