//! Objects of programs: the cost of storing one, and of reading it in many tasks.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use crate::failure::Failure;
use crate::paths;
use crate::peers::Peers;
use crate::programs::{PROGRAM, command, submit, summary};
use crate::report::Report;
use crate::timing::{Effort, least, median};

/// Tasks in flight.
const AT_ONCE: u64 = 200;
/// Interval between samples of memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

pub fn run(report: Report, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
    let guest = paths::guest(PROGRAM)?;
    let (bytes, mib) = (effort.object_bytes, effort.object_bytes >> 20);
    // The difference of two runs excludes the start of the job.
    let per_time = |task: &str, times: u64, others: &[(&str, u64)]| {
        let mut seconds = Vec::new();
        for _ in 0..effort.runs {
            let run = |count| {
                let arguments = [&[(if task == "peeks" { "tasks" } else { "times" }, count)], others].concat();
                Ok::<f64, Failure>(submit(&guest, task, &arguments, effort)?.seconds)
            };
            let (few, many) = (run(1)?, run(1 + times)?);
            seconds.push((many - few).max(f64::EPSILON) / times as f64);
        }
        Ok::<f64, Failure>(median(seconds))
    };
    let put = per_time("puts", effort.puts, &[("bytes", bytes)])?;
    let copied = memcpy(bytes as usize, effort.time);
    let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
    report.compare(&format!("objects/put {mib} MiB"), speed(put), "GB/s", "memcpy", speed(copied));
    let peek = per_time("peeks", effort.readers, &[("at_once", AT_ONCE), ("bytes", bytes)])?;
    report.value(&format!("objects/tasks that read of {mib} MiB"), 1.0 / peek, "/s");
    let memory = |tasks| memory_of(&guest, &[("tasks", tasks), ("at_once", AT_ONCE), ("bytes", bytes)]);
    // First few tasks, then many.
    let (few, many) = (memory(AT_ONCE)?, memory(effort.readers)?);
    report.value("objects/memory that so many tasks take besides", many as f64 / 1e6 - few as f64 / 1e6, "MB");
    let small = per_time("small", effort.tasks, &[("at_once", 1000)])?;
    report.value("objects/small ones put and got", 1.0 / small, "/s");
    for peer in peers.map(|peers| peers.objects(bytes)).transpose()?.into_iter().flatten() {
        let per_time = peer.seconds / peer.tasks.unwrap_or(1.0);
        match peer.name.as_str() {
            "put" => report.compare(&format!("objects/put {mib} MiB"), speed(put), "GB/s", "Ray", speed(per_time)),
            "peeks" => {
                let name = format!("objects/tasks that read of {mib} MiB");
                report.compare(&name, 1.0 / peek, "/s", "Ray", 1.0 / per_time);
            }
            _ => report.compare("objects/small ones put and got", 1.0 / small, "/s", "Ray", 1.0 / per_time),
        }
    }
    Ok(())
}

/// Returns the seconds of a copy of `bytes` bytes between warm buffers.
fn memcpy(bytes: usize, time: Duration) -> f64 {
    let from = vec![1u8; bytes];
    let mut to = vec![2u8; bytes];
    least(time, || black_box(&mut to).copy_from_slice(black_box(&from)))
}

/// Returns the peak memory in bytes of a node and its workers while they run a task; shared memory counts once.
fn memory_of(guest: &Path, arguments: &[(&str, u64)]) -> Result<u64, Failure> {
    let mut child = command(guest, "peeks", arguments)?.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        let all = processes(child.id());
        peak = peak.max(all.into_iter().map(memory).sum());
        sleep(SAMPLE_INTERVAL);
    }
    summary("peeks", &child.wait_with_output()?.stdout)?;
    Ok(peak)
}

/// Returns a process and its children.
fn processes(first: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{first}/task")).into_iter().flatten().flatten();
    let of_threads = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let mut all: Vec<u32> = of_threads.chain([children]).flat_map(|text| numbers(&text)).chain([first]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Returns the proportional set size of a process, in bytes.
fn memory(process: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let kib =
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
