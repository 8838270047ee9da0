//! Programs: nested tasks, waiting, shared values, failures, cancellation, and lost workers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbar_tests::{Lab, Running, children, component, is_alive, processor_time};
use serde_json::{Value, json};

use crate::lifecycle::until;

/// Starts a task of a program.
pub fn start_of(lab: &Lab, program: &Path, task: &str, arguments: &[(&str, u64)]) -> Running {
    start_with(lab, program, task, arguments, &[])
}

/// Starts a task of a program with further options of `host submit`.
pub fn start_with(lab: &Lab, program: &Path, task: &str, arguments: &[(&str, u64)], options: &[&str]) -> Running {
    let program = format!("{}#{task}", program.display());
    let arguments: Vec<String> = arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut line = vec!["submit", &program, "--json"];
    line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
    line.extend(options);
    lab.start(&line)
}

/// Runs a task of a program, and checks its result and that it leaves no file. Returns the job's summary.
#[track_caller]
pub fn check_result(
    program: &str,
    task: &str,
    arguments: &[(&str, u64)],
    options: &[&str],
    expected: impl Into<Value>,
) -> Value {
    let lab = Lab::new();
    let summary = start_with(&lab, &component(program), task, arguments, options).wait().expect_code(0).json();
    assert_eq!(summary["result"], expected.into(), "{task}: {summary}");
    assert_eq!(lab.names(), Vec::<String>::new());
    summary
}

const PROGRAM: &str = "tests/programs/tasks";

fn start(lab: &Lab, task: &str, arguments: &[(&str, u64)]) -> Running {
    start_of(lab, &component(PROGRAM), task, arguments)
}

#[track_caller]
fn check(task: &str, arguments: &[(&str, u64)], expected: impl Into<Value>) -> Value {
    check_result(PROGRAM, task, arguments, &[], expected)
}

/// Checks the error of a program that fails.
#[track_caller]
fn check_failure(task: &str, arguments: &[(&str, u64)], expected_texts: &[&str]) {
    start(&Lab::new(), task, arguments).wait().expect_code(1).expect_stderr(expected_texts);
}

#[test]
fn tasks_submit_tasks_to_any_depth() {
    assert_eq!(check("tree", &[("depth", 3), ("width", 10), ("steps", 10)], 1000)["tasks"], json!(1110));
    check("tree", &[("depth", 100), ("width", 1), ("steps", 1)], 1);
    check("tree", &[("depth", 1), ("width", 5000), ("steps", 1)], 5000);
}

#[test]
fn a_task_takes_results_of_other_tasks() {
    check("chains", &[("length", 300)], 300 * 299 / 2);
}

#[test]
fn pools_run_a_task_for_each_of_many_arguments() {
    for chunksize in [1, 7, 1000] {
        let expected = r#"2450 2450 50 Err("panic")"#;
        check("pools", &[("count", 100), ("chunksize", chunksize)], expected);
    }
    check("pools", &[("count", 2000), ("chunksize", 100)], r#"999000 999000 1000 Err("panic")"#);
}

#[test]
fn an_ordered_imap_yields_errors_at_the_failing_items_and_goes_on() {
    let failed = |number: u32| format!("half: {number} is odd [refused]");
    let expected: Vec<_> = (0..7).map(|n| if n % 2 == 0 { (n / 2).to_string() } else { failed(n) }).collect();
    for chunksize in [1, 3, 100] {
        check("imaps", &[("count", 7), ("chunksize", chunksize)], expected.join("\n"));
    }
}

#[test]
fn values_are_shared_stored_and_passed_within_others() {
    check("shares", &[("count", 10)], "[45, 90, 135, 180] 49 10");
    // Large enough for values in files.
    check("shares", &[("count", 200_000)], "[19999900000, 39999800000, 59999700000, 79999600000] 19999900004 200000");
    check("leaks", &[("values", 10_000), ("bytes", 10)], 10_000);
    check("leaks", &[("values", 300), ("bytes", 200_000)], 300);
}

#[test]
fn an_error_names_the_tasks_that_led_to_it() {
    let expected = "failures > fails: refused\nfailures > panics: panic\nfailures > fails: refused\n\
                    failures > spins: time-out\n: get-time-out";
    check("failures", &[], expected);
    check_failure("passes_on", &[], &["passes_on > fails: ", "on purpose [refused]"]);
}

/// Each task succeeds at its third attempt, if its options allow as many for the error.
#[test]
fn a_task_is_retried_after_the_errors_in_its_options() {
    let expected = "1 refused, 3 ok, 2 refused, 3 ok, 1 refused, 3 ok, 3 ok, 1 time-out";
    check("retried", &[], expected);
}

#[test]
fn wait_keeps_order_and_honours_its_timeout() {
    check("waits", &[], "0,1,2 - 0 1 1");
}

/// Tasks 1 to 4 each take the result of the one before; task 3 is cancelled.
#[test]
fn cancelling_spares_earlier_tasks() {
    check("cancels_one", &[], "2 3 cancelled cancelled");
}

#[test]
fn cancelling_recursively_ends_a_whole_tree() {
    check("cancels_tree", &[("width", 31)], "cancelled");
}

#[test]
fn nesting_and_queue_length_are_bounded() {
    check_failure("deeper", &[("depth", 0)], &["would be nested 1001 deep, its job's limit is 1000", "[task-limit]"]);
    let expected_texts = ["would be one of 4000001 tasks at once, its job's limit is 4000000", "[task-limit]"];
    check_failure("queues", &[("count", 4_000_100)], &expected_texts);
}

#[test]
fn a_hundred_thousand_tasks_wait_in_line() {
    check("queues", &[("count", 100_000)], 2);
}

#[test]
fn arguments_are_checked_before_anything_runs() {
    for (task, arguments, code, expected_texts) in [
        ("none", &[][..], 1, "it has no task `none`; its tasks are: "),
        ("tree", &["depth=1", "widht=2"], 2, "task `tree` has no argument `widht`; it takes (depth: u32, width: u32, "),
        ("tree", &["depth=1"], 1, "argument `width` is missing"),
        ("tree", &["depth=x"], 1, "argument `depth` can't be read as u32"),
        ("tree", &["depth"], 2, "not NAME=VALUE"),
    ] {
        let program = format!("{}#{task}", component(PROGRAM).display());
        let mut line = vec!["submit", &program];
        line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
        Lab::new().host(&line).expect_code(code).expect_stderr(&[expected_texts]);
    }
    let lab = Lab::new();
    let taxi = component("udfs/taxi");
    lab.host(&["submit", &taxi.display().to_string()]).expect_code(1).expect_stderr(&["has no task `main`", "none"]);
}

/// Returns the host's workers of a kind: those that run any task, or the driver of a job.
pub fn workers(host: u32, role: &str) -> Vec<u32> {
    let is_one = |process: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split('\0').skip(1).take(2).eq(["program", role])
    };
    children(host).into_iter().filter(is_one).collect()
}

pub fn kill(process: u32) {
    // The process may have ended.
    let _ = kill_process(Pid::from_raw(process.cast_signed()).expect("a process has an id"), Signal::KILL);
}

/// Kills workers of a kind while their host runs, at most `max`: each after it has computed for `computed`, so that
/// work completes between two kills on a machine of any speed. Returns the number of kills.
pub fn kill_workers(host: &mut Running, kind: &str, computed: Duration, max: usize) -> usize {
    let mut killed = BTreeSet::new();
    while host.is_running() {
        let is_due = |worker: &u32| !killed.contains(worker) && processor_time(*worker) >= computed;
        let due = workers(host.process(), kind).into_iter().find(is_due);
        if let Some(worker) = due.filter(|_| killed.len() < max) {
            kill(worker);
            killed.insert(worker);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    killed.len()
}

/// Kills each worker during more than 20,000 nested tasks.
#[test]
fn results_are_right_whatever_happens_to_workers() {
    let lab = Lab::new();
    let mut host = start(&lab, "tree_retried", &[("depth", 4), ("width", 12), ("steps", 60_000)]);
    let killed = kill_workers(&mut host, "tasks", Duration::from_millis(200), usize::MAX);
    let summary = host.wait().expect_code(0).json();
    assert_eq!(summary["result"], json!(12u64.pow(4)));
    assert!(killed >= 3 && summary["lost_workers"].as_u64() >= Some(1), "{killed} {summary}");
}

/// Runs the example, whose result follows from the seeds of its tasks.
#[test]
fn pi_is_about_pi() {
    let lab = Lab::new();
    let program = component("examples/pi");
    let line = ["submit", &program.display().to_string(), "--arg", "tasks=50", "--arg", "darts=20000"];
    let ended = lab.host(&line).expect_code(0).expect_stderr(&[
        "(main 0-0, worker ",
        ") info: pi is about 3.1",
        "succeeded: 51 tasks",
    ]);
    let pi: f64 = ended.stdout.trim().parse().unwrap();
    assert!((pi - std::f64::consts::PI).abs() < 0.01, "{pi}");
    assert_eq!(lab.host(&line).expect_code(0).stdout, ended.stdout);
}

#[test]
fn a_job_ends_with_its_driver() {
    let lab = Lab::new();
    let mut host = start(&lab, "spins", &[]);
    // A worker that dies before it starts the driver is replaced.
    until("the job ends", || {
        workers(host.process(), "driver").into_iter().for_each(kill);
        std::thread::sleep(Duration::from_millis(100));
        host.has_ended()
    });
    host.wait().expect_code(1).expect_stderr(&["worker"]);
}

#[test]
fn an_interrupt_ends_a_program_and_its_workers() {
    let lab = Lab::new();
    for task in ["spins", "cancels_tree"] {
        let arguments = if task == "spins" { &[][..] } else { &[("width", 300)] };
        let mut host = start(&lab, task, arguments);
        let process = host.process();
        until("there are workers", || !host.has_ended() && workers(process, "driver").len() == 1);
        let all = children(process);
        host.interrupt();
        let ended = host.wait().expect_code(130).expect_stderr(&["interrupted"]);
        assert!(ended.duration < Duration::from_secs(20), "{:?}", ended.duration);
        until("its workers end with it", || !all.iter().any(|worker| is_alive(*worker)));
        assert_eq!(lab.names(), Vec::<String>::new());
    }
}
