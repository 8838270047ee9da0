//! Output of commands: data on standard output, messages on standard error.

use std::io::{self, Write};

use sandbar_node::{
    Inspected, InspectedParameter, Job, LoggedLine, PredictSummary, ProgramSummary, RowsSummary, TextTable,
    TrainSummary,
};

use crate::error::CliError;
use crate::plain::{plain, plain_json};
use crate::table::size;

/// Maximum number of groups in the table, and of listed failures.
const SHOWN: usize = 10;
/// Build time, in seconds, below which functions were only checked, not built.
const BUILD_SECONDS_SHOWN: f64 = 0.1;

/// The form of a command's result on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputForm {
    Text,
    /// One JSON object.
    Json,
    /// No output on standard output; failures go to standard error.
    Failures,
}

impl OutputForm {
    pub(crate) fn new(as_json: bool, is_quiet: bool) -> OutputForm {
        match (as_json, is_quiet) {
            (true, _) => OutputForm::Json,
            (false, true) => OutputForm::Failures,
            (false, false) => OutputForm::Text,
        }
    }
}

/// Prints a message on standard error and ignores write errors. Further lines are indented, so that they can't imitate
/// messages of the host.
pub(crate) fn message(text: &str) {
    let _ = writeln!(io::stderr(), "{}", plain(text.trim_end()).replace('\n', "\n  "));
}

pub(crate) fn print(text: &str) -> Result<(), CliError> {
    bytes(plain(text).as_bytes())
}

/// Prints the host's own bytes unchanged.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), CliError> {
    match io::stdout().lock().write_all(bytes) {
        // The reader closed the pipe, as `head` does.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| CliError::Failed(format!("standard output: {e}"))),
    }
}

/// Prints a part of a continuous output. Returns false if the reader has closed it.
pub(crate) fn stream(text: &str) -> Result<bool, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(plain(text).as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(CliError::Failed(format!("standard output: {e}"))),
    }
}

pub(crate) fn line(text: &str) -> Result<(), CliError> {
    print(&format!("{text}\n"))
}

pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|e| CliError::Failed(e.to_string()))?;
    bytes(format!("{}\n", plain_json(&text)).as_bytes())
}

pub(crate) fn summary(summary: &TrainSummary, job: &Job, form: OutputForm) -> Result<(), CliError> {
    for failure in summary.failures.iter().take(SHOWN) {
        let model = failure.model.as_ref().map_or(String::new(), |m| format!(", model {m}"));
        message(&format!("failed: {}{model}: {} [{}]", failure.group, failure.message, failure.code));
    }
    if summary.failed as usize > SHOWN {
        message(&format!(
            "failed: and {} more (all of the first {} with --json)",
            summary.failed as usize - SHOWN,
            summary.failures.len()
        ));
    }
    match form {
        OutputForm::Text => {}
        OutputForm::Json => return json(summary),
        OutputForm::Failures => return Ok(()),
    }
    if let Some((table, shown)) = summary.table(SHOWN) {
        print(&render(&table))?;
        let groups = summary.groups_written;
        if groups > shown as u64 {
            line(&format!("({shown} of {groups} groups shown)"))?;
        }
    }
    line(&format!(
        "{}: {} models of {} groups from {}; {}; {} failed, {} skipped (fewer than {} rows); peak memory {} MiB\nmodels: {} ({})",
        name(job),
        summary.models,
        summary.groups,
        rows_of(job, summary.rows, summary.rows_transformed),
        times(summary.build_seconds, summary.seconds),
        summary.failed,
        summary.skipped,
        job.train.as_ref().map_or(0, |train| train.min_rows),
        summary.peak_memory_bytes >> 20,
        summary.output,
        size(summary.bytes)
    ))
}

/// Describes the duration of a job, without the time to build its functions.
fn times(build_seconds: f64, seconds: f64) -> String {
    if build_seconds < BUILD_SECONDS_SHOWN {
        return format!("ran in {seconds:.2} s");
    }
    format!("built functions in {build_seconds:.1} s, ran in {seconds:.2} s")
}

fn name(job: &Job) -> &str {
    if job.name.is_empty() { "job" } else { &job.name }
}

/// Describes the number of rows that were read, and that the transforms kept.
fn rows_of(job: &Job, read: u64, transformed: u64) -> String {
    let filtered = if job.input.filter.is_some() { " that passed the filter" } else { "" };
    match (job.transform.is_empty(), read.checked_sub(transformed)) {
        (true, _) => format!("{read} rows{filtered}"),
        (false, Some(0)) => format!("{read} rows{filtered}, all kept by the transforms"),
        (false, Some(dropped)) => {
            format!("{read} rows{filtered}, {transformed} after the transforms ({dropped} dropped)")
        }
        (false, None) => format!("{read} rows{filtered}, {transformed} after the transforms"),
    }
}

pub(crate) fn rows(summary: &RowsSummary, job: &Job, form: OutputForm) -> Result<(), CliError> {
    match form {
        OutputForm::Text => {}
        OutputForm::Json => return json(summary),
        OutputForm::Failures => return Ok(()),
    }
    line(&format!(
        "{}: {}; {}; peak memory {} MiB\n{}",
        name(job),
        rows_of(job, summary.rows, summary.rows_written),
        times(summary.build_seconds, summary.seconds),
        summary.peak_memory_bytes >> 20,
        written("rows", &summary.output, summary.files, summary.rows_written, summary.bytes)
    ))
}

/// Describes the written output.
fn written(output_kind: &str, output: &str, files: u64, rows: u64, bytes: u64) -> String {
    let files = if files == 1 { String::new() } else { format!("{files} files, ") };
    format!("{output_kind}: {output} ({files}{rows} rows, {})", size(bytes))
}

fn render(table: &TextTable) -> String {
    let mut widths: Vec<usize> = table.header.iter().map(String::len).collect();
    for row in &table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in std::iter::once(&table.header).chain(&table.rows) {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        out.push_str(&cells.join("  "));
        out.push('\n');
    }
    out
}

pub(crate) fn predicted(summary: &PredictSummary, form: OutputForm) -> Result<(), CliError> {
    if let Some(failure) = &summary.failure {
        message(&format!("failed: {failure}"));
    }
    match form {
        OutputForm::Text => {}
        OutputForm::Json => return json(summary),
        OutputForm::Failures => return Ok(()),
    }
    line(&format!(
        "predicted {} rows in {:.2} s; {} dropped by the transforms, {} without a model, {} failed; peak memory {} MiB\n{}",
        summary.rows,
        summary.seconds,
        summary.rows_dropped,
        summary.without_model,
        summary.failed,
        summary.peak_memory_bytes >> 20,
        written("predictions", &summary.output, summary.files, summary.rows_written, summary.bytes)
    ))
}

/// Prints the result of a program's first task, and a summary of its tasks.
pub(crate) fn program(summary: &ProgramSummary, form: OutputForm) -> Result<(), CliError> {
    if form == OutputForm::Json {
        return json(summary);
    }
    if let Some(result) = result_text(&summary.result) {
        line(&result)?;
    }
    if form == OutputForm::Failures {
        return Ok(());
    }
    let ProgramSummary { counts, build_seconds, seconds, .. } = summary;
    let troubles = counts.failure_summary().map_or_else(String::new, |troubles| format!("; {troubles}"));
    message(&format!("succeeded: {}; {}{troubles}", all_tasks(counts.tasks), times(*build_seconds, *seconds)));
    Ok(())
}

/// Returns the result of a job's first task: text as it is, other values as JSON. `None` if it is null.
pub(crate) fn result_text(result: &serde_json::Value) -> Option<String> {
    (!result.is_null()).then(|| result.as_str().map_or_else(|| result.to_string(), str::to_owned))
}

/// Formats a line of a job's log: `(add 3-17, worker 3) info: it starts`.
pub(crate) fn log_text(line: &LoggedLine) -> String {
    format!("{} {}", line.source(), line.message().replace('\n', "\n  "))
}

/// Returns whether a log line is of the task with this name or id.
pub(crate) fn is_line_of(line: &LoggedLine, task: Option<&str>) -> bool {
    task.is_none_or(|task| line.name == task || line.task.as_deref() == Some(task))
}

/// Describes the number of tasks of a job: its first task and the submitted ones.
pub(crate) fn all_tasks(submitted: u64) -> String {
    match submitted {
        0 => "1 task".to_owned(),
        submitted => format!("{} tasks", submitted + 1),
    }
}

pub(crate) fn inspection(inspection: &Inspected, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return json(inspection);
    }
    let mut out = format!(
        "component {}\ncontract  {}\nsize      {} bytes\n",
        inspection.id, inspection.contract, inspection.bytes
    );
    out.push_str("functions\n");
    for function in &inspection.functions {
        let arguments = function.arguments.join(", ");
        let returns =
            if function.returns.is_empty() { String::new() } else { format!(" -> {}", function.returns.join(", ")) };
        out.push_str(&format!("  {} {}({arguments}){returns}\n", function.kind.as_str(), function.name));
        if !function.about.is_empty() {
            out.push_str(&format!("      {}\n", function.about));
        }
        for parameter in &function.parameters {
            out.push_str(&format!("      params.{}\n", parameter_line(parameter)));
        }
    }
    out.push_str("imports\n");
    inspection.imports.iter().for_each(|import| out.push_str(&format!("  {import}\n")));
    print(&out)
}

/// Formats name, type and default of a parameter: `depth: u32 = 3`.
fn parameter_line(parameter: &InspectedParameter) -> String {
    let InspectedParameter { name, type_name, default, required } = parameter;
    match default {
        Some(default) => format!("{name}: {type_name} = {default}"),
        None if *required => format!("{name}: {type_name} (required)"),
        None => format!("{name}: {type_name}"),
    }
}
