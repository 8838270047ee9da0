//! `host submit --dry-run`: prints the plan of a job or a program.

use std::fmt::Write as _;
use std::process::ExitCode;

use sandbar_node::{
    ColumnPlan, FunctionPlan, Job, JobPlan, Limits, Node, NodeOptions, ProgramPlan, ProgramSpec, TenantId, TrainPlan,
};
use serde::Serialize;

use crate::error::CliError;
use crate::local_node::node_options;
use crate::output;
use crate::shares::Shares;
use crate::table::size;

/// Maximum number of files and of columns in the text.
const FILES_SHOWN: usize = 10;
const COLUMNS_SHOWN: usize = 40;

/// Prints the plan of a job.
pub(crate) async fn job(job: &Job, shares: &Shares, as_json: bool) -> Result<ExitCode, CliError> {
    let plan = node(shares, job.limits)?.plan(job, TenantId::DEFAULT).await?;
    match as_json {
        true => output::json(&plan)?,
        false => output::print(&text(&plan))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the plan of a program.
pub(crate) async fn program(spec: &ProgramSpec, shares: &Shares, as_json: bool) -> Result<ExitCode, CliError> {
    let plan = node(shares, spec.limits)?.programs().plan(spec).await?;
    match as_json {
        true => output::json(&plan)?,
        false => output::print(&program_text(&plan))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a node whose workers start on demand.
fn node(shares: &Shares, limits: Limits) -> Result<Node, CliError> {
    Ok(Node::start(NodeOptions { on_demand: true, ..node_options(shares, limits, None)? }))
}

/// Lines of a name and a text each.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, text: &str) {
        // Keeps each text on one line, so that it can't imitate another line.
        let _ = writeln!(self.0, "{name:<11} {}", text.replace('\n', " "));
    }
}

fn text(plan: &JobPlan) -> String {
    let mut lines = Lines::default();
    let name = if plan.name.is_empty() { "job" } else { &plan.name };
    lines.line("dry run", &format!("{name}: no rows are transformed or trained on, nothing is written"));
    let input = &plan.input;
    let files = if input.files == 1 { "1 file".to_owned() } else { format!("{} files", input.files) };
    let rows = input.rows.map_or_else(String::new, |rows| format!(", {rows} rows"));
    lines.line("input", &format!("{files}, {}{rows}", size(input.bytes)));
    input.paths.iter().take(FILES_SHOWN).for_each(|path| lines.line("", path));
    if input.files > FILES_SHOWN as u64 {
        lines.line("", &format!("and {} more", input.files - FILES_SHOWN as u64));
    }
    if let Some(filter) = &input.filter {
        lines.line("filter", filter);
    }
    lines.line("reads", &columns(&input.columns));
    plan.transforms.iter().for_each(|transform| lines.line("transform", &function(transform)));
    if let Some(behind) = plan.columns.as_ref().filter(|_| !plan.transforms.is_empty()) {
        lines.line("makes", &columns(behind));
    }
    if let Some(train) = &plan.train {
        train_lines(&mut lines, train);
    }
    let output = &plan.output;
    let form = if output.partition_by.is_empty() {
        word(&output.format)
    } else {
        format!("{}, in folders by {}", word(&output.format), output.partition_by.join(", "))
    };
    let replaced = if output.replaces { ", replaces the existing file" } else { "" };
    lines.line("output", &format!("{} ({form}{replaced})", output.path));
    let device = plan.device.map_or_else(String::new, |device| format!("; device {}", word(&device)));
    let workers = if plan.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", plan.workers) };
    lines.line("runs on", &format!("{workers}; {} for grouped rows{device}", size(plan.memory_bytes_max)));
    plan.unchecked.iter().for_each(|item| lines.line("not checked", item));
    lines.0
}

fn train_lines(lines: &mut Lines, train: &TrainPlan) {
    let file = train.per_file.then_some("file");
    let keys: Vec<&str> = file.into_iter().chain(train.group_by.iter().map(String::as_str)).collect();
    let groups = if keys.is_empty() { "one, of all rows".to_owned() } else { format!("by {}", keys.join(", ")) };
    lines.line("groups", &format!("{groups}; those of fewer than {} rows are skipped", train.min_rows));
    lines.line("target", &format!("{}, from {}", train.target, train.features.join(", ")));
    lines.line("test", &format!("{} of each group's rows, ranked by {}", train.test, word(&train.metric)));
    for model in &train.models {
        lines.line("model", &format!("{}: {}", model.name, function(&model.function)));
    }
}

/// Describes a function: its parameters, and whether its crate is stale.
fn function(plan: &FunctionPlan) -> String {
    let kind = plan.kind.map_or_else(String::new, |kind| format!(" ({})", kind.as_str()));
    let params = if plan.params.is_empty() { String::new() } else { format!(" {}", word(&plan.params)) };
    let built = if plan.to_build.is_some() { "; its crate is built first" } else { "" };
    format!("{}{kind}{params}{built}", plan.udf)
}

fn columns(all: &[ColumnPlan]) -> String {
    let shown = all.iter().take(COLUMNS_SHOWN).map(|column| format!("{}: {}", column.name, column.type_name));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if all.len() > COLUMNS_SHOWN {
        let _ = write!(text, " and {} more", all.len() - COLUMNS_SHOWN);
    }
    text
}

/// Formats a value as JSON, and a word without its quotes.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(value) => value.to_string(),
        Err(e) => e.to_string(),
    }
}

fn program_text(plan: &ProgramPlan) -> String {
    let mut lines = Lines::default();
    lines.line("dry run", &format!("{}: no task is run", plan.program));
    let built = if plan.is_to_build { "; its crate is built first" } else { "" };
    lines.line("task", &format!("{}{built}", plan.task));
    for argument in plan.arguments.iter().flatten() {
        let files = argument.files.map_or_else(String::new, |files| match files {
            1 => " (1 file)".to_owned(),
            files => format!(" ({files} files)"),
        });
        let value = argument.value.as_ref().map_or_else(|| "not given".to_owned(), |value| format!("{value}{files}"));
        lines.line("argument", &format!("{}: {} = {value}", argument.name, argument.type_name));
    }
    if plan.is_to_build {
        lines.line("not checked", "the task and its arguments: the crate has to be built first");
    }
    lines.0
}
