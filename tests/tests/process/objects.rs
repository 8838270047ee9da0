//! Objects beyond the memory limit: they are spilled and read back; a full or damaged disk is reported.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbar_tests::{CommandOutput, Lab, Running, component};
use serde_json::{Value, json};

use crate::lifecycle::until;
use crate::programs::{check_result, kill, start_with, workers};

const PROGRAM: &str = "tests/programs/objects";

fn start(lab: &Lab, task: &str, arguments: &[(&str, u64)], settings: &[&str]) -> Running {
    start_with(lab, &component(PROGRAM), task, arguments, settings)
}

/// Runs a program and checks its result. Returns the bytes spilled.
#[track_caller]
fn check(task: &str, arguments: &[(&str, u64)], settings: &[&str], expected: impl Into<Value>) -> u64 {
    let summary = check_result(PROGRAM, task, arguments, settings, expected);
    summary["spilled_bytes"].as_u64().expect("a number")
}

#[track_caller]
fn check_failure(task: &str, arguments: &[(&str, u64)], settings: &[&str], expected_texts: &[&str]) -> CommandOutput {
    start(&Lab::new(), task, arguments, settings).wait().expect_code(1).expect_stderr(expected_texts)
}

/// 800 MB of objects of 0.2 to 1.4 MB.
#[test]
fn spilled_objects_are_unchanged() {
    let arguments = [("objects", 1000), ("rows", 100_000), ("gets", 1000)];
    let spilled = check("holds", &arguments, &["--object-memory", "75MiB"], 1000);
    assert!(spilled > 700_000_000, "{spilled}");
    assert_eq!(check("holds", &[("objects", 10), ("rows", 100_000), ("gets", 20)], &[], 20), 0);
}

#[test]
fn results_and_arguments_come_back_from_disk() {
    let spilled = check("passes", &[("objects", 300), ("rows", 100_000)], &["--object-memory", "75MiB"], 300);
    assert!(spilled > 150_000_000, "{spilled}");
}

#[test]
fn values_in_messages_go_to_disk_as_well() {
    let spilled = check("holds_small", &[("objects", 500), ("bytes", 50_000)], &["--object-memory", "10MiB"], 500);
    assert!(spilled > 10_000_000, "{spilled}");
}

/// A disk reserve larger than the disk has the effect of a full disk.
#[test]
fn a_full_disk_fails_only_values_without_room() {
    let (full, arguments) =
        (["--object-memory", "20MiB", "--disk-reserve", "1000TiB"], [("objects", 100), ("rows", 100_000)]);
    check("fills", &arguments, &full, "true true true");
    let expected_texts = ["overfills: no room for ", " bytes of objects on the disk of ", "[store-full]"];
    check_failure("overfills", &arguments, &full, &expected_texts);
}

#[test]
fn a_value_may_not_be_larger_than_memory_for_all() {
    let expected_texts =
        ["too_large: a value of 80000192 bytes, the node's objects have 20971520 bytes", "[store-full]"];
    check_failure("too_large", &[("rows", 10_000_000)], &["--object-memory", "20MiB"], &expected_texts);
}

/// Returns the unlinked files of a process in a folder.
fn nameless(process: u32, folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let is_there = |path: &PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        target.starts_with(folder) && target.to_string_lossy().ends_with("(deleted)")
    };
    all.map(|entry| entry.path()).filter(is_there).collect()
}

/// Overwrites all spilled bytes while the program waits: stored values are reported as lost, and tasks run again to recompute
/// results.
#[test]
fn damaged_values_on_disk_are_never_read() {
    let lab = Lab::new();
    let arguments = [("puts", 40), ("tasks", 40), ("rows", 100_000)];
    let mut host = start(&lab, "is_damaged", &arguments, &["--object-memory", "20MiB"]);
    damage(&lab, &mut host);
    let summary = host.wait().expect_code(0).json();
    let result = summary["result"].as_str().expect("a text");
    let numbers: Vec<u64> = result.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [right, lost, wrong, recomputed_right, recomputed_lost, recomputed_wrong] = numbers[..] else {
        panic!("{result}")
    };
    assert!(lost > 0 && wrong == 0 && right + lost == 40, "{result}");
    assert_eq!((recomputed_right, recomputed_lost, recomputed_wrong), (40, 0, 0), "{result}");
    let attempts = attempts(&lab, "makes");
    assert!(attempts.len() == 40 && attempts.contains(&2) && attempts.iter().all(|times| *times <= 2), "{attempts:?}");
}

/// The second time no attempt remains.
#[test]
fn a_lost_result_is_recomputed_up_to_max_retries() {
    let lab = Lab::new();
    let arguments = [("tasks", 40), ("rows", 100_000)];
    let mut host = start(&lab, "is_damaged_twice", &arguments, &["--object-memory", "20MiB"]);
    damage(&lab, &mut host);
    damage(&lab, &mut host);
    host.wait().expect_code(1).expect_stderr(&[
        "40 are right",
        "is_damaged_twice > makes: the value of object ",
        " is lost: its task used all of its 2 attempts (max_retries 1) [object-lost]",
    ]);
    let attempts = attempts(&lab, "makes");
    assert!(attempts.len() == 40 && attempts.iter().max() == Some(&2), "{attempts:?}");
}

/// Returns the attempts of each task of this name in the job that has just ended.
#[track_caller]
fn attempts(lab: &Lab, name: &str) -> Vec<u64> {
    let tasks = lab.host(&["list", "tasks", "--name", name, "--json"]).expect_code(0).json();
    let rows = tasks["tasks"].as_array().expect("a list");
    assert!(rows.iter().all(|task| task["state"] == "succeeded"), "{tasks}");
    rows.iter().map(|task| task["attempts"].as_u64().expect("a number")).collect()
}

/// Waits until a program waits for the test, damages its spilled values, and lets it continue.
fn damage(lab: &Lab, host: &mut Running) {
    let process = host.process();
    let mut busy = None;
    until("a task waits for the test", || {
        assert!(!host.has_ended(), "the host ended early");
        let before = std::mem::replace(&mut busy, spinning(process));
        busy.is_some() && busy == before
    });
    let files = nameless(process, &lab.path("tmp"));
    assert!(!files.is_empty(), "nothing was spilled");
    for file in files {
        let file = fs::File::options().read(true).write(true).open(file).expect("it is the tests' own");
        let mut bytes = vec![0; file.metadata().expect("it is there").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("it can be read");
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        file.write_all_at(&bytes, 0).expect("it can be written");
    }
    busy.into_iter().for_each(kill);
}

/// Returns the worker that computes, if all others and the driver are idle for a moment.
fn spinning(host: u32) -> Option<u32> {
    let ticks = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let time = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(11)?.parse::<u64>().ok());
        time.unwrap_or(0)
    };
    let tasks = workers(host, "tasks");
    let all: Vec<u32> = workers(host, "driver").into_iter().chain(tasks.iter().copied()).collect();
    let before: Vec<u64> = all.iter().map(|worker| ticks(*worker)).collect();
    std::thread::sleep(Duration::from_millis(300));
    let busy: Vec<u32> = all
        .iter()
        .zip(before)
        .filter(|(worker, before)| ticks(**worker) > *before)
        .map(|(worker, _)| *worker)
        .collect();
    match busy[..] {
        [one] if tasks.contains(&one) => Some(one),
        _ => None,
    }
}

#[test]
fn a_job_file_has_no_objects() {
    let lab = Lab::new();
    let job = lab.write("job.toml", "name = 'x'");
    for setting in [["--object-memory", "1GiB"], ["--disk-reserve", "1GiB"]] {
        let line = [&["submit", job.to_str().expect("a path")][..], &setting].concat();
        lab.host(&line).expect_code(2).expect_stderr(&["are for programs"]);
    }
    lab.host(&["submit", "x.wasm", "--object-memory", "much"]).expect_code(2);
    assert_eq!(json!(lab.names()), json!(["job.toml"]));
}
