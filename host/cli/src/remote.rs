//! `host submit --node`, and the output of a followed job.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandbar_node::{
    ClusterClient, ClusterJob, ComponentId, FileArgument, FollowEvent, JobWork, LoggedLine, NamedStoredFile,
    NewClusterJob, ProgramWork, ProgressRow, RunState, UploadContents, find_files,
};

use crate::args::Submit;
use crate::cluster_args::Remote;
use crate::error::CliError;
use crate::output::OutputForm;
use crate::remote_client::client;
use crate::signals::Interruption;
use crate::{components, output, signals};

/// Default first task of a program.
const MAIN: &str = "main";

/// Where the component of a program is.
enum ProgramSource {
    /// In a file of this machine.
    File(PathBuf),
    /// In the registry of the cluster, with this length.
    Registered(ComponentId, u64),
}

/// Submits a program to a cluster.
pub(crate) async fn submit_program(submit: Submit, interruption: &Interruption) -> Result<ExitCode, CliError> {
    let program = submit.job.display().to_string();
    let (path, task) = program.rsplit_once('#').unwrap_or((&program, MAIN));
    let source = match components::of_program(path, &submit).await? {
        Some(registered) => ProgramSource::Registered(registered.pushed.component, registered.pushed.bytes),
        None => ProgramSource::File(components::component_file(Path::new(path), submit.quiet).await?),
    };
    let (task, arguments) = (task.to_owned(), submit.args.clone());
    let work = tokio::task::spawn_blocking(move || {
        let mut contents = UploadContents::default();
        let (component, component_bytes) = match source {
            ProgramSource::File(file) => contents.add_component(&file).map_err(CliError::failed)?,
            ProgramSource::Registered(component, bytes) => (component, bytes),
        };
        let files = file_arguments(&arguments, &mut contents)?;
        Ok::<_, CliError>((ProgramWork { component, component_bytes, task, arguments, files }, contents))
    });
    let (work, contents) = work.await.map_err(CliError::failed)??;
    let new = NewClusterJob::new(&program, JobWork::Program(work), submit.key.clone());
    let Some((job, _)) = submit_and_follow(&Submission::of(&submit)?, new, &contents, interruption).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    ended(&job, OutputForm::new(submit.json, submit.quiet))
}

/// Finds the files that arguments name (`@PATH`), and adds them to the contents of the submission.
fn file_arguments(
    arguments: &[(String, String)],
    contents: &mut UploadContents,
) -> Result<Vec<FileArgument>, CliError> {
    let mut named: Vec<FileArgument> = Vec::new();
    for (argument, value) in arguments {
        // Of several values, the last one counts.
        named.retain(|other| other.argument != *argument);
        // A text that starts with `@` is written with `@@`.
        let Some(path) = value.strip_prefix('@').filter(|path| !path.starts_with('@')) else { continue };
        let found = find_files(path).map_err(|e| CliError::Failed(format!("{e} [{}]", e.code().as_str())))?;
        let file = |path: PathBuf| {
            let content = contents.add(&path).map_err(CliError::failed)?;
            let text = path.to_string_lossy();
            Ok::<_, CliError>(NamedStoredFile { name: text.strip_prefix("./").unwrap_or(&text).to_owned(), content })
        };
        let files = found.into_iter().map(file).collect::<Result<_, _>>()?;
        named.push(FileArgument { argument: argument.clone(), files });
    }
    Ok(named)
}

/// How a job is submitted.
pub(crate) struct Submission {
    pub(crate) remote: Remote,
    pub(crate) no_wait: bool,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

impl Submission {
    /// Returns how `host submit` does it.
    pub(crate) fn of(submit: &Submit) -> Result<Submission, CliError> {
        if submit.shares.is_of_programs() || submit.shares.workers.is_some() || submit.shares.memory.is_some() {
            let message = "--workers, --memory and program resources can't be set with --node: set them on the cluster's \
                           nodes (see `host serve --help`)";
            return Err(CliError::Usage(message.to_owned()));
        }
        let remote = Remote {
            node: submit.node.clone(),
            timeouts: submit.timeouts.clone(),
            token: submit.member.token.clone(),
            data: submit.member.data.clone(),
        };
        Ok(Submission { remote, no_wait: submit.no_wait, json: submit.json, quiet: submit.quiet })
    }
}

/// Submits a job, and follows it to its end. Returns the finished job and the client; `None` with `--no-wait`.
pub(crate) async fn submit_and_follow(
    submit: &Submission,
    new: NewClusterJob,
    contents: &UploadContents,
    interruption: &Interruption,
) -> Result<Option<(ClusterJob, ClusterClient)>, CliError> {
    let Some(node) = &submit.remote.node else { return Err(CliError::Usage("--node is missing".to_owned())) };
    let Remote { token, data, timeouts, .. } = submit.remote.clone();
    let mut client = client(node, token, data, timeouts).await?;
    interruption.set_outcome(format!("the job may have been submitted: check with `host jobs list --node {node}`"));
    let job = client.submit(new, contents).await.map_err(CliError::failed)?;
    let id = job.id.short().to_owned();
    interruption.set_outcome(format!("job {id} continues; stop it with `host jobs stop {id} --node {node}`"));
    if submit.no_wait {
        client.close().await;
        if submit.json {
            output::json(&job)?
        } else {
            output::line(&id)?
        }
        return Ok(None);
    }
    if !submit.quiet {
        output::message(&format!(
            "job {id} runs on node {}; Ctrl-C detaches, `host jobs stop {id} --node {node}` stops the job",
            job.node
        ));
    }
    let mut output = FollowOutput { is_quiet: submit.quiet, task: None, to_stdout: false, progress: BTreeSet::new() };
    let job = client.follow(job.id.as_str(), |event| output.print(event)).await.map_err(CliError::failed)?;
    Ok(Some((job, client)))
}

/// Prints the outcome of a program.
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
