//! Programs: rate and latency of empty tasks and actor calls, memory of queued tasks and live actors, cancellation, and
//! items of a stream, compared with Ray.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;

use crate::failure::Failure;
use crate::paths;
use crate::peers::Peers;
use crate::report::Report;
use crate::timing::{Effort, median};
use crate::{memory, records};

pub const PROGRAM: &str = "xtask/bench/program";
/// Interval between samples of memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Output of `host submit --json` for a program.
#[derive(Debug, Deserialize)]
pub struct Summary {
    job: Option<String>,
    result: u64,
    tasks: u64,
    failed: u64,
    /// From the job's start to its end, including the start of its driver's process.
    pub seconds: f64,
    peak_memory_bytes: u64,
}

/// Measures tasks in flight, one at a time and nested, cancellation, and items of a stream.
pub fn tasks(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let guest = paths::guest(PROGRAM)?;
    let tasks = effort.tasks;
    let run = |task: &str, arguments: &[(&str, u64)]| {
        let mut seconds = Vec::new();
        for _ in 0..effort.runs {
            seconds.push(submit(&guest, task, arguments, effort)?.seconds);
        }
        Ok::<f64, Failure>(median(seconds))
    };
    let in_flight = tasks as f64 / run("flat", &[("tasks", tasks), ("at_once", tasks.div_ceil(10))])?;
    let alone = tasks / 10;
    let one = 1e6 * run("one_by_one", &[("tasks", alone)])? / alone as f64;
    let usual = median_interval(&submit(&guest, "one_by_one", &[("tasks", alone)], effort)?, "nothing")?;
    let (parents, children) = (2, effort.children);
    let times = tasks.div_ceil(parents * children);
    let nested = (parents * children * times) as f64
        / run("nested", &[("parents", parents), ("children", children), ("times", times)])?;
    report.value("tasks/in flight", in_flight, "/s");
    report.value("tasks/one at a time", one, "µs");
    report.value("tasks/one at a time, p50", usual, "µs");
    report.value("tasks/two parents", nested, "/s");
    report.value("tasks/tree cancelled", cancelled(&guest, effort)?, "ms");
    report.value("tasks/items of a stream", tasks as f64 / run("stream", &[("items", tasks)])?, "/s");
    for peer in peers.map(Peers::tasks).transpose()?.into_iter().flatten() {
        let per_task = peer.seconds / peer.tasks.unwrap_or(1.0);
        match peer.name.as_str() {
            "in flight" => report.compare("tasks/in flight", in_flight, "/s", "Ray", 1.0 / per_task),
            "one at a time" => report.compare("tasks/one at a time", one, "µs", "Ray", 1e6 * per_task),
            _ => report.compare("tasks/two parents", nested, "/s", "Ray", 1.0 / per_task),
        }
    }
    Ok(())
}

/// Returns the median time between the starts of consecutive tasks, in microseconds.
fn median_interval(run: &Summary, name: &str) -> Result<f64, Failure> {
    let records = records::read(run.job.as_deref().ok_or("the job was not recorded")?)?;
    let intervals = records::start_intervals(&records, name);
    if intervals.is_empty() { Err("no task was recorded".into()) } else { Ok(median(intervals) / 1e3) }
}

/// Returns the milliseconds from the cancellation of a tree of endless tasks to the end of the last of them.
fn cancelled(guest: &Path, effort: Effort) -> Result<f64, Failure> {
    let (width, mut durations) = (effort.width, Vec::new());
    for _ in 0..effort.runs {
        let run = submit(guest, "cancelled", &[("width", width)], effort)?;
        let records = records::read(run.job.as_deref().ok_or("the job was not recorded")?)?;
        let of_tree = records.iter().filter(|record| record.name == "endless");
        let (count, stopped) = of_tree
            .fold((0, 0), |(count, stopped), record| (count + 1, stopped + u64::from(record.state == "stopped")));
        if (count, stopped) != (run.result, run.result) {
            return Err(format!("of {} tasks of a tree, {stopped} were stopped and {count} ended", run.result).into());
        }
        let last =
            |name: &str| records.iter().filter(|record| record.name == name).filter_map(|record| record.ended_ns).max();
        // The driver cancels the tree when `mark` has ended.
        let cancelled = last("mark").ok_or("the task before the cancellation was not recorded")?;
        let last = last("endless").ok_or("no task of the tree has started")?;
        durations.push(last.saturating_sub(cancelled) as f64 / 1e6);
    }
    Ok(median(durations))
}

/// Measures many tasks that wait at once.
pub fn queue(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let guest = paths::guest(PROGRAM)?;
    let tasks = effort.queued;
    let few = submit(&guest, "flat", &[("tasks", 1), ("at_once", 1)], effort)?;
    let mut runs = Vec::new();
    for _ in 0..effort.runs {
        runs.push(submit(&guest, "flat", &[("tasks", tasks), ("at_once", tasks)], effort)?);
    }
    let peak = runs.iter().map(|run| run.peak_memory_bytes).max().unwrap_or(0);
    let seconds = median(runs.iter().map(|run| run.seconds).collect());
    report.value("queue/submitted and drained", seconds, "s");
    report.value("queue/tasks", tasks as f64, "");
    report.value(
        "queue/memory of the node a task",
        peak.saturating_sub(few.peak_memory_bytes) as f64 / tasks as f64,
        "B",
    );
    for peer in peers.map(Peers::queue).transpose()?.into_iter().flatten() {
        // Ray runs fewer tasks.
        let rate = peer.tasks.unwrap_or(1.0) / peer.seconds;
        report.compare("queue/submitted and drained", tasks as f64 / seconds, "/s", "Ray", rate);
    }
    Ok(())
}

/// Measures calls of an actor, and the memory of idle actors.
pub fn actors(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let guest = paths::guest(PROGRAM)?;
    let calls = effort.tasks;
    let run = |task: &str, arguments: &[(&str, u64)]| {
        let mut seconds = Vec::new();
        for _ in 0..effort.runs {
            seconds.push(submit(&guest, task, arguments, effort)?.seconds);
        }
        Ok::<f64, Failure>(median(seconds))
    };
    let in_flight = calls as f64 / run("calls", &[("calls", calls), ("at_once", calls.div_ceil(10))])?;
    let alone = calls / 10;
    let one = 1e6 * run("calls_one_by_one", &[("calls", alone)])? / alone as f64;
    let usual = median_interval(&submit(&guest, "calls_one_by_one", &[("calls", alone)], effort)?, "Echo.nothing")?;
    report.value("actors/calls in flight", in_flight, "/s");
    report.value("actors/one call at a time", one, "µs");
    report.value("actors/one call at a time, p50", usual, "µs");
    let actors = effort.actors;
    let few = peak_memory(&guest, "alive", &[("actors", 1), ("times", 1)])?;
    let many = peak_memory(&guest, "alive", &[("actors", actors), ("times", 10)])?;
    let bytes = many.saturating_sub(few) as f64 / actors.saturating_sub(1).max(1) as f64;
    report.value("actors/alive at once", actors as f64, "");
    report.value("actors/memory of all processes an actor", bytes, "B");
    for peer in peers.map(Peers::actors).transpose()?.into_iter().flatten() {
        let per_call = peer.seconds / peer.tasks.unwrap_or(1.0);
        match peer.name.as_str() {
            "in flight" => report.compare("actors/calls in flight", in_flight, "/s", "Ray", 1.0 / per_call),
            _ => report.compare("actors/one call at a time", one, "µs", "Ray", 1e6 * per_call),
        }
    }
    Ok(())
}

/// Returns the peak memory of the host and its workers together while they run a task.
fn peak_memory(guest: &Path, task: &str, arguments: &[(&str, u64)]) -> Result<u64, Failure> {
    let mut host = command(guest, task, arguments)?.stdout(Stdio::null()).spawn()?;
    let mut peak = 0;
    let status = loop {
        peak = peak.max(memory::of_family(host.id()));
        match host.try_wait()? {
            Some(status) => break status,
            None => sleep(SAMPLE_INTERVAL),
        }
    };
    if status.success() { Ok(peak) } else { Err(format!("{task}: host submit failed: {status}").into()) }
}

/// Runs a task of the benchmarks' program.
pub fn submit(guest: &Path, task: &str, arguments: &[(&str, u64)], effort: Effort) -> Result<Summary, Failure> {
    let mut submit = command(guest, task, arguments)?;
    sleep(effort.pause);
    let output = submit.output()?;
    if !output.status.success() {
        return Err(format!("{task}: host submit failed: {}", output.status).into());
    }
    summary(task, &output.stdout)
}

/// Parses the output of a run, and fails if tasks failed or are missing.
pub fn summary(task: &str, printed: &[u8]) -> Result<Summary, Failure> {
    let summary: Summary = serde_json::from_slice(printed)?;
    if summary.failed > 0 && task != "cancelled" || summary.tasks < summary.result {
        return Err(format!("{task}: {summary:?}").into());
    }
    Ok(summary)
}

/// Returns the command that runs a task.
pub fn command(guest: &Path, task: &str, arguments: &[(&str, u64)]) -> Result<Command, Failure> {
    let mut submit = Command::new(paths::program("host")?);
    submit.arg("submit").arg(format!("{}#{task}", guest.display())).args(["--json", "--quiet"]);
    submit.args(arguments.iter().flat_map(|(name, value)| ["--arg".to_owned(), format!("{name}={value}")]));
    Ok(submit)
}
