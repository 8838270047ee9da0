//! Programs: how many tasks that do nothing a node runs, and what waiting costs. Ray runs the same by its own means.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;

use serde::Deserialize;

use crate::Failure;
use crate::peers::Peers;
use crate::places;
use crate::report::Report;
use crate::timing::{Effort, median};

const PROGRAM: &str = "xtask/bench/program";

/// What `host submit --json` says of a program.
#[derive(Debug, Deserialize)]
struct Summary {
    result: u64,
    tasks: u64,
    failed: u64,
    /// From the job's start to its end, its driver's process included.
    seconds: f64,
    peak_memory_bytes: u64,
}

/// Tasks in flight, one at a time, and nested.
pub fn tasks(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let guest = places::guest(PROGRAM)?;
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
    let (parents, children) = (2, effort.children);
    let times = tasks.div_ceil(parents * children);
    let nested = (parents * children * times) as f64
        / run("nested", &[("parents", parents), ("children", children), ("times", times)])?;
    report.value("tasks/in flight", in_flight, "/s");
    report.value("tasks/one at a time", one, "µs");
    report.value("tasks/two parents", nested, "/s");
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

/// Many tasks that wait at once.
pub fn queue(report: Report, effort: Effort) -> Result<(), Failure> {
    let guest = places::guest(PROGRAM)?;
    let tasks = effort.queued;
    let few = submit(&guest, "flat", &[("tasks", 1), ("at_once", 1)], effort)?;
    let mut runs = Vec::new();
    for _ in 0..effort.runs {
        runs.push(submit(&guest, "flat", &[("tasks", tasks), ("at_once", tasks)], effort)?);
    }
    let peak = runs.iter().map(|run| run.peak_memory_bytes).max().unwrap_or(0);
    report.value("queue/submitted and drained", median(runs.iter().map(|run| run.seconds).collect()), "s");
    report.value("queue/tasks", tasks as f64, "");
    report.value(
        "queue/memory of the node a task",
        peak.saturating_sub(few.peak_memory_bytes) as f64 / tasks as f64,
        "B",
    );
    Ok(())
}

fn submit(guest: &Path, task: &str, arguments: &[(&str, u64)], effort: Effort) -> Result<Summary, Failure> {
    let mut submit = Command::new(places::program("host")?);
    submit.arg("submit").arg(format!("{}#{task}", guest.display())).args(["--json", "--quiet"]);
    submit.args(arguments.iter().flat_map(|(name, value)| ["--arg".to_owned(), format!("{name}={value}")]));
    sleep(effort.pause);
    let output = submit.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{task}: host submit ended with {}", output.status).into());
    }
    let summary: Summary = serde_json::from_slice(&output.stdout)?;
    if summary.failed > 0 || summary.tasks < summary.result {
        return Err(format!("{task}: {summary:?}").into());
    }
    Ok(summary)
}
