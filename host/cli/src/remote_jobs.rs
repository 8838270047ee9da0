//! Job files and predictions in a cluster: `host submit job.toml --node`, `host predict --node`, and their outputs.

use std::path::Path;
use std::process::ExitCode;

use sandbar_node::{
    BuildReporter, ClusterJob, Job, JobComponent, JobFileWork, JobWork, ModelComponent, NamedJobFiles,
    NamedPredictionFiles, NamedStoredFile, NewClusterJob, NodeError, PredictSpec, PredictionWork, RunState,
    UploadContents, keep_component, machine,
};
use serde_json::Value;

use crate::args::{Predict, Submit};
use crate::cluster_args::Remote;
use crate::components;
use crate::error::CliError;
use crate::output::{self, OutputForm};
use crate::remote::{Submission, submit_and_follow};
use crate::remote_client::client;
use crate::signals::{self, Interruption};
use crate::table::size;

/// Maximum failures that are shown.
const SHOWN: usize = 10;

/// Submits a job file to a cluster, and writes its output to the job's path.
pub(crate) async fn submit(submit: Submit, job: Job, interruption: &Interruption) -> Result<ExitCode, CliError> {
    let output = job.output.path.clone();
    let (work, contents) = work(job, &submit).await?;
    let job_file = submit.job.display().to_string();
    let new = NewClusterJob::new(&job_file, JobWork::JobFile { job_file: Box::new(work) }, submit.key.clone());
    let Some((job, mut client)) = submit_and_follow(&Submission::of(&submit)?, new, &contents, interruption).await?
    else {
        return Ok(ExitCode::SUCCESS);
    };
    if job.output.is_some() {
        client.download_output(job.id.as_str(), Path::new(&output)).await.map_err(CliError::failed)?;
    }
    client.close().await;
    ended(&job, &output, OutputForm::new(submit.json, submit.quiet))
}

/// Predicts in a cluster, and writes the predictions to the output path.
pub(crate) async fn predict(predict: Predict, interruption: &Interruption) -> Result<ExitCode, CliError> {
    if predict.workers.is_some() {
        let message = "--workers can't be set with --node: set it on the cluster's nodes (see `host serve --help`)";
        return Err(CliError::Usage(message.to_owned()));
    }
    let submission = Submission {
        remote: predict.remote.clone(),
        no_wait: predict.no_wait,
        json: predict.json,
        quiet: predict.quiet,
    };
    let spec = PredictSpec::from(predict);
    let report = |text: String| output::message(&text);
    let reporter = (!submission.quiet).then_some(&report as BuildReporter<'_>);
    let named = NamedPredictionFiles::find(&spec, &machine::shipped(), &machine::cache_folder()?, reporter).await;
    let named = named.map_err(|error| CliError::from(NodeError::from(error)))?;
    let output = spec.output.clone();
    let models = spec.models.display().to_string();
    let work = tokio::task::spawn_blocking(move || prediction_work(spec, named));
    let (work, contents) = work.await.map_err(CliError::failed)??;
    let new = NewClusterJob::new(&models, JobWork::Prediction { prediction: Box::new(work) }, None);
    let Some((job, mut client)) = submit_and_follow(&submission, new, &contents, interruption).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    if job.output.is_some() {
        client.download_output(job.id.as_str(), &output).await.map_err(CliError::failed)?;
    }
    client.close().await;
    ended(&job, &output.display().to_string(), OutputForm::new(submission.json, submission.quiet))
}

/// Reads the files of a prediction.
fn prediction_work(
    spec: PredictSpec,
    named: NamedPredictionFiles,
) -> Result<(PredictionWork, UploadContents), CliError> {
    let mut contents = UploadContents::default();
    let mut stored = |name: String, path: &Path| {
        let content = contents.add(path).map_err(CliError::failed)?;
        Ok::<_, CliError>(NamedStoredFile { name, content })
    };
    let models = stored(spec.models.display().to_string(), &spec.models)?;
    let inputs = named.inputs.into_iter().map(|input| stored(input.name, &input.path));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let mut components = Vec::with_capacity(named.components.len());
    for ModelComponent { component, shown, file } in named.components {
        let (id, bytes) = contents.add_component(&file).map_err(CliError::failed)?;
        if id != component {
            let message = format!("{}: it has changed meanwhile; try again", file.display());
            return Err(CliError::Failed(message));
        }
        let (name, found) = (component.to_string(), shown.display().to_string());
        components.push(JobComponent { name, found, component, bytes });
    }
    let output = spec.output.display().to_string();
    let work = PredictionWork { models, inputs, output, model: spec.model, file: spec.file, components };
    Ok((work, contents))
}

/// Finds what a job names on this machine.
async fn work(job: Job, submit: &Submit) -> Result<(JobFileWork, UploadContents), CliError> {
    let report = |text: String| output::message(&text);
    let reporter = (!submit.quiet).then_some(&report as BuildReporter<'_>);
    let cache = machine::cache_folder()?;
    let registered = components::of_job(&job, submit, &cache).await?;
    let named = NamedJobFiles::find(&job, &registered, &machine::shipped(), &cache, reporter).await;
    let named = named.map_err(|error| CliError::from(NodeError::from(error)))?;
    let work = tokio::task::spawn_blocking(move || {
        let mut contents = UploadContents::default();
        let mut inputs = Vec::with_capacity(named.inputs.len());
        for input in named.inputs {
            let content = contents.add(&input.path).map_err(CliError::failed)?;
            inputs.push(NamedStoredFile { name: input.name, content });
        }
        let mut components = Vec::with_capacity(named.components.len());
        for component in named.components {
            let (id, bytes) = contents.add_component(&component.file).map_err(CliError::failed)?;
            // For predictions on this machine.
            keep_component(&cache, id, &component.file).map_err(|error| CliError::from(NodeError::from(error)))?;
            let found = component.found.display().to_string();
            components.push(JobComponent { name: component.name, found, component: id, bytes });
        }
        Ok::<_, CliError>((JobFileWork { job, inputs, components }, contents))
    });
    work.await.map_err(CliError::failed)?
}

/// Prints the outcome of a job file.
fn ended(job: &ClusterJob, output: &str, form: OutputForm) -> Result<ExitCode, CliError> {
    let number = |field: &str| job.result[field].as_u64().unwrap_or_default();
    let failures = job.result["failures"].as_array();
    for failure in failures.into_iter().flatten().take(SHOWN) {
        let text = |field: &str| failure[field].as_str().unwrap_or_default();
        let model = failure["model"].as_str().map_or_else(String::new, |model| format!(", model {model}"));
        output::message(&format!("failed: {}{model}: {} [{}]", text("group"), text("message"), text("code")));
    }
    if let Some(failure) = job.result["failure"].as_str() {
        output::message(&format!("failed: {failure}"));
    }
    if let Some(error) = &job.error {
        output::message(&format!("error: {error}"));
    }
    match form {
        OutputForm::Json => output::json(job)?,
        OutputForm::Text if job.state == RunState::Succeeded => output::line(&summary(&job.result, output))?,
        OutputForm::Text | OutputForm::Failures => {}
    }
    Ok(match job.state {
        RunState::Succeeded if number("failed") == 0 => ExitCode::SUCCESS,
        RunState::Stopped => ExitCode::from(signals::exit_code(signals::INTERRUPT)),
        _ => ExitCode::FAILURE,
    })
}

/// Describes a run by its summary.
fn summary(result: &Value, output: &str) -> String {
    let number = |field: &str| result[field].as_u64().unwrap_or_default();
    let (rows, bytes) = (number("rows"), size(number("bytes")));
    if result.get("without_model").is_some() {
        return format!(
            "predicted {rows} rows; {} dropped by the transforms, {} without a model, {} failed\npredictions: {output} ({} \
             rows, {bytes})",
            number("rows_dropped"),
            number("without_model"),
            number("failed"),
            number("rows_written")
        );
    }
    match result.get("models") {
        Some(_) => format!(
            "{} models of {} groups from {rows} rows; {} failed, {} skipped\nmodels: {output} ({bytes})",
            number("models"),
            number("groups"),
            number("failed"),
            number("skipped")
        ),
        None => format!("{rows} rows\nrows: {output} ({} rows, {bytes})", number("rows_written")),
    }
}

/// Downloads the output of a finished job file.
pub(crate) async fn download(id: &str, path: &Path, remote: Remote) -> Result<(), CliError> {
    let Some(node) = remote.node else {
        return Err(CliError::Usage("--node is missing: only clusters keep the outputs of jobs".to_owned()));
    };
    let mut client = client(&node, remote.token, remote.data, remote.timeouts).await?;
    let output = client.download_output(id, path).await.map_err(CliError::failed)?;
    client.close().await;
    output::message(&format!("output: {} ({})", path.display(), size(output.bytes)));
    Ok(())
}
