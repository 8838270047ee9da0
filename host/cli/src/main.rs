//! `host`: runs sandboxed functions next to data.

// No input of a guest, a peer, a file or a user may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod actors;
mod args;
mod audit;
mod audit_args;
mod cluster;
mod cluster_args;
mod completion;
mod component_args;
mod components;
mod control_socket;
mod doctor;
mod dry_run;
mod error;
mod gpus;
mod job_limits;
mod job_source;
mod jobs;
mod local_node;
mod logging;
mod new;
mod output;
mod plain;
mod progress;
mod remedy;
mod remote;
mod remote_client;
mod remote_jobs;
mod shares;
mod signals;
mod table;
mod tenant_args;
mod tenants;
mod usage;
mod usage_args;
mod version;
mod view_args;
mod views;
mod walls;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sandbar_node::{Cluster, Heap, Job, JobOutcome, JobRecorder, ListenOn, NodeError, ProgramSpec, TenantId, machine};

use args::{Arguments, Command, Submit};
use error::CliError;
use local_node::start_node;
use output::OutputForm;
use progress::ProgressDisplay;
use shares::Shares;
use signals::Interruption;

#[global_allocator]
static HEAP: Heap = Heap;

/// Listen address of a node that runs one job.
const ANY_PORT: ListenOn = ListenOn::Any(0);

/// Outcome of an interrupted command that writes its file at the end.
const NOTHING_WRITTEN: &str = "nothing was written";

/// Maximum time to end interrupted work.
const END_TIME_MAX: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match sandbar_node::has_little_memory() {
        true => HEAP.set_up_small(),
        false => HEAP.set_up(),
    }
    machine::raise_file_limit();
    let arguments = Arguments::parse();
    logging::start(arguments.command.log_format());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => {
            output::message(&format!("error: can't start the threads of this process: {e}"));
            return ExitCode::FAILURE;
        }
    };
    if let Command::Serve(serve) = arguments.command {
        let failed = |failure: CliError| {
            log::error!("{failure}");
            failure.code()
        };
        let code = runtime.block_on(async { cluster::serve(serve).await.unwrap_or_else(failed) });
        std::mem::forget(runtime);
        return code;
    }
    match runtime.block_on(until_interrupted(arguments)) {
        Ok(code) => {
            // Skips the drop: the kernel frees memory faster, and workers end with their node.
            std::mem::forget(runtime);
            code
        }
        Err(signal) => {
            runtime.shutdown_timeout(END_TIME_MAX);
            ExitCode::from(signals::exit_code(signal))
        }
    }
}

/// Runs the command. Returns the number of a signal that interrupts it; the drop of the command's future then removes
/// temporary files and ends workers and cargo.
async fn until_interrupted(arguments: Arguments) -> Result<ExitCode, u8> {
    let interruption = Interruption::default();
    let signal = match signals::handle(interruption.clone()) {
        Ok(signal) => signal,
        Err(e) => {
            output::message(&format!("error: can't install signal handlers: {e}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    tokio::select! {
        biased;
        Ok(signal) = signal => {
            output::message(&interruption.message());
            Err(signal)
        }
        code = run(arguments, &interruption) => Ok(code),
    }
}

async fn run(arguments: Arguments, interruption: &Interruption) -> ExitCode {
    let result = match arguments.command {
        Command::Submit(submit) => run_submit(submit, interruption).await,
        Command::Predict(predict) => run_predict(predict, interruption).await,
        Command::New(new) => new::create(&new.name, new.template(), new.sdk.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Build { paths, quiet } => run_build(&paths, quiet).await,
        Command::Inspect { component, json } => run_inspect(&component, json).await,
        Command::Audit(command) => audit::run(command),
        Command::Jobs(jobs) => jobs::run(jobs).await,
        Command::Actors(actors) => actors::run(actors).await,
        Command::Component(command) => components::run(command).await,
        Command::List(list) => views::list(list).await,
        Command::Summary(summary) => views::summary(summary).await,
        Command::Timeline(timeline) => views::timeline(timeline).await,
        Command::Objects(selector) => views::all_objects(selector).await,
        Command::Memory(selector) => views::memory(selector).await,
        Command::Serve(serve) => cluster::serve(serve).await,
        Command::Cluster(command) => cluster::cluster(command).await,
        Command::Nodes(nodes) => cluster::nodes(nodes).await,
        Command::Tenant(command) => tenants::run(command).await,
        Command::Usage(arguments) => usage::run(arguments).await,
        Command::Status(selector) => cluster::status(selector).await,
        Command::Gpu(gpu) => gpus::run(gpu).await,
        Command::Doctor { json, software_gpu } => doctor::run(json, software_gpu).await,
        Command::Version { json } => version::print(json),
        Command::Completion { shell } => completion::print(shell),
    };
    result.unwrap_or_else(report_failure)
}

/// Prints why a command failed, with a remedy, and returns the exit code.
fn report_failure(failure: CliError) -> ExitCode {
    match &failure {
        CliError::Stopped(failure_text) => output::message(failure_text),
        _ => {
            let failure_text = failure.to_string();
            let remedy = remedy::find(&failure_text).map_or_else(String::new, |remedy| format!("; {remedy}"));
            output::message(&format!("error: {failure_text}{remedy}"));
        }
    }
    failure.code()
}

async fn run_submit(submit: Submit, interruption: &Interruption) -> Result<ExitCode, CliError> {
    if submit.node.is_some() && submit.walls.require_walls {
        let message = "--require-walls is for a node of this machine: the nodes of a cluster decide for themselves";
        return Err(CliError::Usage(message.to_owned()));
    }
    let is_job_file = submit.job.extension().is_some_and(|extension| extension == "toml");
    if !is_job_file {
        return run_program(submit, interruption).await;
    }
    interruption.set_outcome(NOTHING_WRITTEN);
    if !submit.args.is_empty() {
        return Err(CliError::Usage("--arg is for programs; change a job file's settings with --set".to_owned()));
    }
    if submit.shares.is_of_programs() {
        let message = "--cpus, --gpus, --resource, --object-memory and --disk-reserve are for programs; bound a job file's \
                       processes with --workers and its rows with --memory";
        return Err(CliError::Usage(message.to_owned()));
    }
    let file = submit.job.display();
    let text = std::fs::read_to_string(&submit.job).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => CliError::Usage(machine::missing("job file", &submit.job)),
        _ => CliError::Usage(format!("{file}: {e}")),
    })?;
    let job = Job::parse(&text, &submit.overrides()).map_err(|e| CliError::Usage(e.describe(file)))?;
    if submit.node.is_some() {
        return remote_jobs::submit(submit, job, interruption).await;
    }
    if submit.dry_run {
        return dry_run::job(&job, &submit.shares, submit.json).await;
    }
    submit.walls.check_if_required().await?;
    let cluster = join(submit.member).await?;
    let node = start_node(&submit.shares, job.limits, cluster.clone())?;
    if cluster.is_some() {
        // Other nodes reach this node through its program runtime.
        node.programs().start()?;
    }
    let form = OutputForm::new(submit.json, submit.quiet);
    let bar = progress::watch(node.progress().clone(), ProgressDisplay::unless(submit.quiet));
    let result = unless_fenced(cluster.as_ref(), node.submit(&job, TenantId::DEFAULT)).await;
    bar.finish();
    if let Some(cluster) = cluster {
        cluster.leave().await;
    }
    match result? {
        JobOutcome::Models(summary) => {
            output::summary(&summary, &job, form)?;
            Ok(if summary.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        JobOutcome::Rows(summary) => {
            output::rows(&summary, &job, form)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the result of the work, or an error if the cluster fences this node first.
async fn unless_fenced<T>(
    cluster: Option<&Cluster>,
    work: impl Future<Output = Result<T, NodeError>>,
) -> Result<T, CliError> {
    let fenced = async {
        match cluster {
            Some(cluster) => cluster.fenced().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        done = work => Ok(done?),
        why = fenced => Err(CliError::Failed(format!("the cluster removed this node: {why}"))),
    }
}

/// Joins a cluster for the duration of a job, if one is named.
async fn join(member: cluster_args::MemberArgs) -> Result<Option<Cluster>, CliError> {
    let is_named = member.join.is_some() || member.data.is_some() || member.meta.is_some();
    Ok(if is_named { Some(cluster::enter(member, ANY_PORT).await?.0) } else { None })
}

async fn run_program(mut submit: Submit, interruption: &Interruption) -> Result<ExitCode, CliError> {
    if !submit.set.is_empty() || !submit.input.is_empty() || submit.output.is_some() {
        let message = "--set, --input and --output are for job files; give a program arguments with --arg";
        return Err(CliError::Usage(message.to_owned()));
    }
    if submit.node.is_some() {
        return remote::submit_program(submit, interruption).await;
    }
    if submit.member.token.is_some() && submit.member.join.is_none() {
        return Err(CliError::Usage("--token is for a cluster: add --join or --node".to_owned()));
    }
    let limits = sandbar_node::Limits::default();
    let spec = ProgramSpec { program: submit.job.display().to_string(), arguments: submit.args, limits, seed: 0 };
    sandbar_node::find_program(&spec.program, &machine::shipped())?;
    if submit.dry_run {
        return dry_run::program(&spec, &submit.shares, submit.json).await;
    }
    submit.walls.check_if_required().await?;
    let cluster = join(submit.member).await?;
    submit.shares.count_gpus().await?;
    let node = start_node(&submit.shares, limits, cluster.clone())?;
    if let Some(cluster) = &cluster {
        node.programs().start()?;
        cluster.wait_for_peers().await;
    }
    let recorder = recorder_of(&spec);
    interruption.set_stop_mark(recorder.stop_mark());
    interruption.set_outcome(match recorder.name() {
        Some(name) => format!("job {} is stopped", name.short()),
        None => "the program is stopped".to_owned(),
    });
    if let Some(name) = recorder.name().filter(|_| !submit.quiet) {
        output::message(&format!("job {}", name.short()));
    }
    let bar = progress::watch(node.progress().clone(), ProgressDisplay::unless(submit.quiet));
    let result = unless_fenced(cluster.as_ref(), async { Ok(node.programs().run(&spec, recorder).await?) }).await;
    bar.finish();
    if let Some(cluster) = cluster {
        cluster.leave().await;
    }
    output::program(&result?, OutputForm::new(submit.json, submit.quiet))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the recorder of a program's job. If the job can't be recorded, it runs unrecorded, with a warning.
fn recorder_of(spec: &ProgramSpec) -> JobRecorder {
    let created = job_source::job_store()
        .and_then(|store| Ok(store.create(&spec.program, &spec.arguments, TenantId::DEFAULT)?));
    created.unwrap_or_else(|e| {
        output::message(&format!("warning: this job is not recorded: {e}"));
        JobRecorder::disabled(TenantId::DEFAULT)
    })
}

async fn run_predict(predict: args::Predict, interruption: &Interruption) -> Result<ExitCode, CliError> {
    if predict.remote.node.is_some() {
        return remote_jobs::predict(predict, interruption).await;
    }
    interruption.set_outcome(NOTHING_WRITTEN);
    let (quiet, form) = (predict.quiet, OutputForm::new(predict.json, predict.quiet));
    let shares = Shares { workers: predict.workers, ..Shares::default() };
    let spec = sandbar_node::PredictSpec::from(predict);
    let node = start_node(&shares, spec.limits().map_err(NodeError::from)?, None)?;
    let bar = progress::watch(node.progress().clone(), ProgressDisplay::unless(quiet));
    let result = node.predict(&spec, TenantId::DEFAULT).await;
    bar.finish();
    let predicted = result?;
    output::predicted(&predicted, form)?;
    Ok(if predicted.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn run_build(folders: &[std::path::PathBuf], is_quiet: bool) -> Result<ExitCode, CliError> {
    let cache = machine::cache_folder()?;
    let report = |text: String| output::message(&text);
    for folder in folders {
        let built = sandbar_node::build_crate(folder, &cache, (!is_quiet).then_some(&report)).await;
        let component = built.map_err(|e| CliError::Failed(e.to_string()))?;
        output::line(&component.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_inspect(component: &std::path::Path, json: bool) -> Result<ExitCode, CliError> {
    let shares = Shares { workers: Some(1), ..Shares::default() };
    let node = start_node(&shares, sandbar_node::Limits::default(), None)?;
    let bar = progress::watch(node.progress().clone(), ProgressDisplay::Log);
    let inspection = node.inspect(component).await;
    bar.finish();
    output::inspection(&inspection?, json)?;
    Ok(ExitCode::SUCCESS)
}
