//! `host list`, `summary`, `timeline`, `objects`, `memory`: views of a program's state and history.

use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use sandbar_node::{
    ActorRow, GroupRow, JobFolderLimits, JobQuery, JobResponse, JobSummary, Listing, MemoryView, NodeRow, ObjectRow,
    ResourceRow, RunState, TaskRow, WorkerRow,
};
use serde::Serialize;

use crate::cluster_args::Remote;
use crate::error::CliError;
use crate::job_source::SourcedJob;
use crate::output;
use crate::table::{Columns, cell, size, time};
use crate::view_args::{JobSelector, List, Summary, Timeline};

/// Default number of listed objects.
const OBJECTS_SHOWN: u32 = 100;

/// Queries of the views.
impl SourcedJob {
    /// Returns the response to a query of the job's tasks, which are always recorded.
    async fn query_recorded<T>(
        &mut self,
        query: JobQuery,
        select: impl FnOnce(JobResponse) -> Option<T>,
    ) -> Result<T, CliError> {
        let response = self.query(query).await?;
        response.and_then(select).ok_or_else(|| self.unexpected_response())
    }

    /// Returns the job's objects; an ended job has none.
    async fn query_objects<T: Default>(
        &mut self,
        query: JobQuery,
        select: impl FnOnce(JobResponse) -> Option<T>,
    ) -> Result<T, CliError> {
        match self.query(query).await? {
            Some(response) => select(response).ok_or_else(|| self.unexpected_response()),
            None => {
                output::message(&format!("job {} has ended and holds no objects", self.fields().id.short()));
                Ok(T::default())
            }
        }
    }

    fn unexpected_response(&self) -> CliError {
        CliError::Failed(format!("job {}: its node sent an unexpected response", self.fields().id.short()))
    }
}

/// Returns the response, if it is of the expected kind.
macro_rules! rows_of {
    ($kind:ident) => {
        |response| if let JobResponse::$kind(all) = response { Some(all) } else { None }
    };
}

pub(crate) async fn list(list: List) -> Result<ExitCode, CliError> {
    match list {
        List::Tasks { state, name, rows } => {
            let mut job = SourcedJob::find(rows.job.as_deref(), rows.remote.clone()).await?;
            let query = JobQuery::Tasks { limit: rows.limit, state: state.map(RunState::from), name };
            let listing = job.query_recorded(query, rows_of!(Tasks)).await?;
            show(&job, "tasks", &listing, rows.limit, rows.json, tasks_table)?;
        }
        List::Actors(rows) => {
            let mut job = SourcedJob::find(rows.job.as_deref(), rows.remote.clone()).await?;
            let listing = job.query_objects(JobQuery::Actors { limit: rows.limit }, rows_of!(Actors)).await?;
            show(&job, "actors", &listing, rows.limit, rows.json, actors_table)?;
        }
        List::Objects(rows) => objects(rows.job.as_deref(), rows.remote.clone(), rows.limit, rows.json).await?,
        List::Workers(rows) => {
            let mut job = SourcedJob::find(rows.job.as_deref(), rows.remote.clone()).await?;
            let listing = job.query_objects(JobQuery::Workers { limit: rows.limit }, rows_of!(Workers)).await?;
            show(&job, "workers", &listing, rows.limit, rows.json, workers_table)?;
        }
        List::PlacementGroups(rows) => {
            let mut job = SourcedJob::find(rows.job.as_deref(), rows.remote.clone()).await?;
            let listing = job.query_objects(JobQuery::Groups { limit: rows.limit }, rows_of!(Groups)).await?;
            show(&job, "placement_groups", &listing, rows.limit, rows.json, groups_table)?;
        }
        List::Nodes(rows) => {
            let mut job = SourcedJob::find(rows.job.as_deref(), rows.remote.clone()).await?;
            let listing = job.query_objects(JobQuery::Nodes { limit: rows.limit }, rows_of!(Nodes)).await?;
            show(&job, "nodes", &listing, rows.limit, rows.json, nodes_table)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn summary(summary: Summary) -> Result<ExitCode, CliError> {
    #[derive(Serialize)]
    struct SummaryOutput<'a> {
        job: &'a str,
        state: RunState,
        #[serde(flatten)]
        summary: &'a JobSummary,
    }
    let Summary::Tasks { job, json, remote } = summary;
    let mut job = SourcedJob::find(job.as_deref(), remote).await?;
    let summary = job.query_recorded(JobQuery::Summary, rows_of!(Summary)).await?;
    if json {
        let state = job.state().await?;
        output::json(&SummaryOutput { job: job.fields().id.as_str(), state, summary: &summary })?;
    } else {
        output::print(&summary_table(&summary))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn timeline(timeline: Timeline) -> Result<ExitCode, CliError> {
    let mut job = SourcedJob::find(timeline.id.as_deref(), timeline.remote.clone()).await?;
    if timeline.output.is_none() && std::io::stdout().is_terminal() {
        return Err(CliError::Usage(
            "the timeline is not printed on a terminal: name a file with -o, or redirect standard output".to_owned(),
        ));
    }
    let all = JobQuery::Tasks { limit: u32::MAX, state: None, name: None };
    let tasks = job.query_recorded(all, rows_of!(Tasks)).await?.rows;
    let trace = sandbar_node::trace(job.fields().id, job.fields().program, &tasks);
    let Some(path) = timeline.output else {
        output::json(&trace)?;
        return Ok(ExitCode::SUCCESS);
    };
    let failed = |e: std::io::Error| CliError::Failed(format!("{}: {e}", path.display()));
    let mut file = BufWriter::new(std::fs::File::create(&path).map_err(failed)?);
    serde_json::to_writer(&mut file, &trace).map_err(|e| failed(e.into()))?;
    file.flush().map_err(failed)?;
    output::message(&format!("timeline of job {}: {}", job.fields().id.short(), path.display()));
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn all_objects(selector: JobSelector) -> Result<ExitCode, CliError> {
    objects(selector.id.as_deref(), selector.remote.clone(), OBJECTS_SHOWN, selector.json).await?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn memory(selector: JobSelector) -> Result<ExitCode, CliError> {
    #[derive(Serialize)]
    struct MemoryOutput<'a> {
        job: &'a str,
        #[serde(flatten)]
        view: &'a MemoryView,
    }
    let mut job = SourcedJob::find(selector.id.as_deref(), selector.remote.clone()).await?;
    let view = job.query_objects(JobQuery::Memory, rows_of!(Memory)).await?;
    if selector.json {
        output::json(&MemoryOutput { job: job.fields().id.as_str(), view: &view })?;
    } else {
        output::print(&memory_text(&view))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn objects(id: Option<&str>, remote: Remote, limit: u32, as_json: bool) -> Result<(), CliError> {
    let mut job = SourcedJob::find(id, remote).await?;
    let listing = job.query_objects(JobQuery::Objects { limit }, rows_of!(Objects)).await?;
    show(&job, "objects", &listing, limit, as_json, objects_table)
}

/// Prints rows as a table, or as one JSON object: `{"job": …, "total": …, "tasks": […]}`, with `looked_at` if fewer
/// rows than the total were searched.
fn show<T: Serialize>(
    job: &SourcedJob,
    rows_name: &str,
    listing: &Listing<T>,
    limit: u32,
    as_json: bool,
    table: impl FnOnce(&[T]) -> Columns,
) -> Result<(), CliError> {
    if as_json {
        let mut all = serde_json::Map::new();
        all.insert("job".to_owned(), job.fields().id.as_str().into());
        all.insert("total".to_owned(), listing.total.into());
        if let Some(looked_at) = listing.looked_at {
            all.insert("looked_at".to_owned(), looked_at.into());
        }
        let rows = serde_json::to_value(&listing.rows).map_err(|e| CliError::Failed(e.to_string()))?;
        all.insert(rows_name.to_owned(), rows);
        return output::json(&all);
    }
    if listing.rows.is_empty() && listing.total == 0 {
        // A message, because an empty table looks as if rows were missing.
        output::message(&format!("job {} has no {} to show", job.fields().id.short(), rows_name.replace('_', " ")));
        return Ok(());
    }
    output::print(&table(&listing.rows).text())?;
    if let Some(note) = omitted_rows(&rows_name.replace('_', "-"), listing, limit) {
        output::message(&note);
    }
    Ok(())
}

/// Describes the number of rows if not all are shown, and how to show more.
fn omitted_rows<T>(rows_name: &str, listing: &Listing<T>, limit: u32) -> Option<String> {
    let (shown, total) = (listing.rows.len() as u64, listing.total);
    if shown >= total {
        return None;
    }
    let chosen = listing.looked_at.map_or_else(String::new, |last| format!(", selected from the newest {last}"));
    let limit_max = JobFolderLimits::DEFAULT.rows_max;
    let more = if shown < limit.min(limit_max).into() {
        "the others are not recorded".to_owned()
    } else if limit < limit_max {
        format!("`host list {rows_name} --limit N` shows more, up to {limit_max}")
    } else {
        "this is the maximum of a list".to_owned()
    };
    Some(format!("{shown} of {total} {rows_name} shown{chosen}; {more}"))
}

fn tasks_table(rows: &[TaskRow]) -> Columns {
    let header = ["TASK", "NAME", "STATE", "ATTEMPTS", "WORKER", "PARENT", "TOOK", "IN", "OUT", "MEMORY", "ERROR"];
    let mut table = Columns::new(&header);
    for row in rows {
        let duration = row.ended_ns.zip(row.begun_ns).map(|(ended, start)| time(ended.saturating_sub(start)));
        let state = match &row.waits_for {
            Some(rows_name) => format!("{} (waits for {rows_name})", row.state.as_str()),
            None => row.state.as_str().to_owned(),
        };
        table.row([
            row.id.clone(),
            row.name.clone(),
            state,
            row.attempts.to_string(),
            cell(row.worker),
            cell(row.parent.clone()),
            cell(duration),
            cell(row.bytes_in.map(size)),
            cell(row.bytes_out.map(size)),
            cell(row.memory_bytes.map(size)),
            row.error.as_ref().map_or_else(String::new, |error| format!("{} [{}]", error.message, error.code)),
        ]);
    }
    table
}

fn actors_table(rows: &[ActorRow]) -> Columns {
    let mut table = Columns::new(&["ACTOR", "NAME", "STATE", "WORKER", "RESTARTS", "CALLS"]);
    for row in rows {
        table.row([
            row.id.clone(),
            row.name.clone(),
            row.state.clone(),
            cell(row.worker),
            row.restarts.to_string(),
            row.calls.to_string(),
        ]);
    }
    table
}

fn objects_table(rows: &[ObjectRow]) -> Columns {
    let mut table = Columns::new(&["OBJECT", "TASK", "STATE", "PLACE", "SIZE", "PINS", "CONTAINS", "HELD BY WORKERS"]);
    for row in rows {
        let workers: Vec<String> = row.workers.iter().map(u32::to_string).collect();
        table.row([
            row.id.clone(),
            cell(row.task.clone()),
            row.state.clone(),
            cell(row.place.clone()),
            size(row.bytes),
            row.pins.to_string(),
            row.contains.to_string(),
            workers.join(", "),
        ]);
    }
    table
}

/// Adds a row for each bundle.
fn groups_table(rows: &[GroupRow]) -> Columns {
    let mut table = Columns::new(&["GROUP", "NAME", "STRATEGY", "STATE", "BUNDLE", "NODE", "FREE", "OCCUPANTS"]);
    for row in rows {
        for (index, bundle) in row.bundles.iter().enumerate() {
            table.row([
                row.id.clone(),
                cell(row.name.clone()),
                row.strategy.clone(),
                row.state.clone(),
                index.to_string(),
                cell(bundle.node),
                amounts(&bundle.resources),
                bundle.occupants.to_string(),
            ]);
        }
    }
    table
}

fn nodes_table(rows: &[NodeRow]) -> Columns {
    let mut table = Columns::new(&["NODE", "FREE"]);
    for row in rows {
        table.row([row.id.to_string(), amounts(&row.resources)]);
    }
    table
}

/// Formats the free and total amount of each resource: `cpus 1 of 2, memory 1.0 GiB of 2.0 GiB`.
fn amounts(resources: &[ResourceRow]) -> String {
    let note = |row: &ResourceRow| match row.name.as_str() {
        "memory" => format!("memory {} of {}", size(row.free as u64), size(row.total as u64)),
        name => format!("{name} {} of {}", row.free, row.total),
    };
    resources.iter().map(note).collect::<Vec<_>>().join(", ")
}

fn workers_table(rows: &[WorkerRow]) -> Columns {
    let mut table = Columns::new(&["WORKER", "ROLE", "PROCESS", "RUNS", "GIVEN", "WAITING", "MEMORY"]);
    for row in rows {
        table.row([
            row.id.to_string(),
            row.role.clone(),
            row.process.to_string(),
            cell(row.task.as_ref().map(|(id, name)| format!("{name} {id}"))),
            row.given.to_string(),
            row.waiting.to_string(),
            size(row.memory_bytes),
        ]);
    }
    table
}

fn summary_table(summary: &JobSummary) -> String {
    let header = [
        "NAME",
        "PENDING",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "STOPPED",
        "MEAN",
        "P50",
        "P95",
        "MAX",
        "COMPUTED",
        "GPU",
        "IN",
        "OUT",
        "MEMORY",
    ];
    let mut table = Columns::new(&header);
    for name in &summary.names {
        let duration = |field: fn(&sandbar_node::DurationStats) -> u64| {
            cell(name.took_ns.as_ref().map(|stats| time(field(stats))))
        };
        table.row([
            name.name.clone(),
            name.pending.to_string(),
            name.running.to_string(),
            name.succeeded.to_string(),
            name.failed.to_string(),
            name.stopped.to_string(),
            duration(|stats| stats.mean),
            duration(|stats| stats.p50),
            duration(|stats| stats.p95),
            duration(|stats| stats.max),
            time(name.computed_ns),
            time(name.gpu_ns),
            size(name.bytes_in),
            size(name.bytes_out),
            size(name.memory_bytes_max),
        ]);
    }
    table.text()
}

fn memory_text(view: &MemoryView) -> String {
    let mut processes = Columns::new(&["PROCESS", "NUMBER", "MEMORY"]);
    for process in &view.processes {
        processes.row([process.name.clone(), process.process.to_string(), size(process.memory_bytes)]);
    }
    let mut holders = Columns::new(&["HELD BY", "OBJECTS", "SIZE"]);
    for holder in &view.holders {
        holders.row([holder.name.clone(), holder.objects.to_string(), size(holder.bytes)]);
    }
    let partial = if view.is_partial { " (the rest covers the newest ones)" } else { "" };
    format!(
        "{}\nobjects: {}{partial}; {} beside their records, {} in memory, {} on disk\n\n{}",
        processes.text(),
        view.objects,
        size(view.node_bytes),
        size(view.memory_bytes),
        size(view.disk_bytes),
        holders.text()
    )
}
