//! Transfers between processes of this machine: one large object, many small ones, one object to many processes; and tasks
//! between nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::failure::Failure;
use crate::paths;
use crate::peers::Peers;
use crate::programs::{PROGRAM, submit, summary};
use crate::report::Report;
use crate::served_node::ServedNode;
use crate::timing::{Effort, median};

/// Figure that the example of `host/wire` prints.
#[derive(Debug, Deserialize)]
struct Figure {
    name: String,
    value: f64,
}

/// Runs the example `transfer` of `host/wire`, which is built beside this program.
fn figures(mode: &str, settings: &[(&str, u64)]) -> Result<BTreeMap<String, f64>, Failure> {
    let program = std::env::current_exe()?.with_file_name("examples").join("transfer");
    let mut command = Command::new(&program);
    command.arg(mode).env("SANDBAR_JSON", "1").stderr(Stdio::inherit());
    settings.iter().for_each(|(name, value)| _ = command.env(name, value.to_string()));
    let output = command.output().map_err(|e| format!("{}: {e}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} {mode} failed: {}", program.display(), output.status).into());
    }
    let lines = String::from_utf8(output.stdout)?;
    let figures = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Figure>, _>>()?;
    Ok(figures.into_iter().map(|figure| (figure.name, figure.value)).collect())
}

fn figure(figures: &BTreeMap<String, f64>, name: &str) -> Result<f64, Failure> {
    figures.get(name).copied().ok_or_else(|| format!("the figure `{name}` is missing in {figures:?}").into())
}

/// Measures one large object, compared with a bare QUIC stream, a bare TCP stream and a copy in memory; then many small
/// objects.
pub fn transfer(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let mib = effort.moved_bytes >> 20;
    let large = figures("object", &[("SANDBAR_MB", mib), ("SANDBAR_ROUNDS", effort.runs as u64)])?;
    let ours = figure(&large, "ours, into warm memory")?;
    let name = format!("transfer/{mib} MiB");
    for (baseline, of_it) in [
        ("bare QUIC stream", "bare QUIC stream, bytes dropped"),
        ("bare QUIC stream, kept", "bare QUIC stream, copied to warm memory"),
        ("TCP stream", "TCP, bytes dropped"),
        ("memcpy", "copy in memory, warm"),
    ] {
        report.compare(&name, ours, "MB/s", baseline, figure(&large, of_it)?);
    }
    let (cold, bare) = (figure(&large, "ours, into cold memory")?, figure(&large, "bare QUIC stream, bytes dropped")?);
    report.compare(&format!("{name}, new memory"), cold, "MB/s", "bare QUIC stream", bare);
    let small = figures("small", &[("SANDBAR_ROUNDS", effort.runs as u64)])?;
    report.value("transfer/objects of 10 KiB", figure(&small, "objects of 10 KiB")?, "/s");
    for peer in peers.map(|peers| peers.transfer(effort.moved_bytes)).transpose()?.into_iter().flatten() {
        match peer.name.as_str() {
            "large" => report.compare(&name, ours, "MB/s", "Ray", effort.moved_bytes as f64 / peer.seconds / 1e6),
            _ => {
                let rate = peer.tasks.unwrap_or(1.0) / peer.seconds;
                report.compare("transfer/objects of 10 KiB", figure(&small, "objects of 10 KiB")?, "/s", "Ray", rate);
            }
        }
    }
    Ok(())
}

/// Measures how many times the source sends an object that eight processes receive.
pub fn broadcast(report: Report, effort: Effort) -> Result<(), Failure> {
    let mib = effort.broadcast_bytes >> 20;
    let found = figures("broadcast", &[("SANDBAR_BROADCAST_MB", mib)])?;
    let all = figure(&found, "all from the source, sent by the source")?;
    for way in ["as a tree", "in a row"] {
        let times = figure(&found, &format!("{way}, sent by the source"))?;
        report.compare(&format!("broadcast/{mib} MiB to 8, {way}"), times, "x", "all from the source", all);
    }
    Ok(())
}

/// Measures tasks on another node, compared with the submitting node: empty tasks, and tasks that each read an object,
/// which is transferred.
pub fn cluster(report: Report, effort: Effort) -> Result<(), Failure> {
    let guest = paths::guest(PROGRAM)?;
    let node = ServedNode::start()?;
    let both = |task: &str, arguments: &[(&str, u64)]| {
        let here = submit(&guest, task, arguments, effort)?.seconds;
        Ok::<_, Failure>([here, submit_to(&node, &guest, task, arguments)?])
    };
    let medians = |runs: Vec<[f64; 2]>| [0, 1].map(|i| median(runs.iter().map(|run| run[i]).collect()));
    let tasks = effort.tasks / 5;
    let runs = (0..effort.runs).map(|_| both("flat", &[("tasks", tasks), ("at_once", 1000)]));
    let [here, there] = medians(runs.collect::<Result<_, _>>()?).map(|seconds| tasks as f64 / seconds);
    report.compare("cluster/tasks on another node", there, "/s", "on one's own", here);
    let (times, bytes) = (effort.puts, effort.object_bytes);
    // The difference of two runs excludes the start of the job.
    let runs = (0..effort.runs).map(|_| {
        let [few, many] = [1, 1 + times].map(|times| both("sent", &[("times", times), ("bytes", bytes)]));
        let (few, many) = (few?, many?);
        Ok::<_, Failure>([0, 1].map(|i| (many[i] - few[i]).max(f64::EPSILON) / times as f64))
    });
    let [here, there] = medians(runs.collect::<Result<_, _>>()?).map(|seconds| bytes as f64 / seconds / 1e6);
    let name = format!("cluster/objects of {} MiB for a task on another node", bytes >> 20);
    report.compare(&name, there, "MB/s", "on one's own", here);
    Ok(())
}

/// Runs a program on a node that joins without processors, so that all tasks run on the other node. Returns the seconds.
fn submit_to(node: &ServedNode, guest: &Path, task: &str, arguments: &[(&str, u64)]) -> Result<f64, Failure> {
    let token = node.run(&["cluster", "token", "--data", "1"])?;
    let program = format!("{}#{task}", guest.display());
    let mut line = vec!["submit", &program, "--json", "--quiet", "--cpus", "0", "--workers", "1", "--data", "2"];
    line.extend(["--join", &node.address, "--token", token.trim()]);
    let arguments: Vec<String> = arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
    Ok(summary(task, node.run(&line)?.as_bytes())?.seconds)
}
