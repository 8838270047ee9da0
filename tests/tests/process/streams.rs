//! Streams: consumers take a generator's items in order, whatever happens to either side.

use std::time::Duration;

use sandbar_tests::{Lab, component};
use serde_json::{Value, json};

use crate::programs::{check_result, kill_workers, start_of};

const PROGRAM: &str = "tests/programs/streams";

#[track_caller]
fn check(task: &str, arguments: &[(&str, u64)], expected: impl Into<Value>) {
    check_result(PROGRAM, task, arguments, &[], expected);
}

#[test]
fn items_are_taken_in_order() {
    for (items, buffer) in [(0, 1), (1, 1), (1000, 1), (1000, 2), (20_000, 64), (20_000, 100_000)] {
        check("in_order", &[("items", items), ("buffer", buffer)], items);
    }
}

#[test]
fn items_may_be_large_and_are_passed_on() {
    // Values that travel in messages, in the store, and in files.
    for numbers in [10, 10_000, 100_000] {
        check("large", &[("items", 100), ("numbers", numbers)], 100 * numbers + 99 * 50);
    }
}

#[test]
fn items_contain_objects_and_outlive_their_stream() {
    check("nested", &[("items", 100)], 49 * 50 + 99 * 100);
}

#[test]
fn a_generator_is_no_more_than_its_buffer_ahead() {
    check("ahead", &[("items", 100), ("buffer", 7)], "7 7 100");
    check("ahead", &[("items", 20), ("buffer", 1)], "1 1 20");
}

#[test]
fn a_stream_that_is_dropped_ends_its_generator() {
    check("dropped", &[("buffer", 5)], true);
}

#[test]
fn an_error_stands_where_it_happened() {
    let expected = [
        "0, 1, failures > fails_at: on purpose [refused]",
        "998, 999, failures > panics_at: panicked at tests/programs/streams/src/lib.rs:",
        "0, 1, failures > passes_on > fails_at: on purpose [refused]",
        "failures > spins: it ran longer than 30 ms (timeout) [time-out]",
        "failures > fails: on purpose [refused]",
    ];
    let summary = start_of(&Lab::new(), &component(PROGRAM), "failures", &[]).wait().expect_code(0).json();
    let report = summary["result"].as_str().expect("it is a text");
    for (line, expected) in report.lines().filter(|line| line.contains("failures > ")).zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert_eq!(report.matches("failures > ").count(), expected.len(), "{report}");
}

#[test]
fn waiting_for_an_item_can_take_long() {
    check("late", &[], "true true 1");
}

#[test]
fn each_item_counts_once_however_often_its_generator_restarts() {
    check("again", &[("items", 300)], 300);
}

/// Runs the example, which reports its progress by a stream.
#[test]
fn pi_is_seen_to_become_exact() {
    let lab = Lab::new();
    let program = format!("{}#watch", component("examples/pi").display());
    let line = ["submit", &program, "--arg", "tasks=50", "--arg", "darts=20000"];
    let expected_texts =
        ["(watch 0-0, worker ", ") info: 10 %: pi is about 3.", ") info: 50 %: ", ") info: 100 %: pi is about 3.1"];
    let ended = lab.host(&line).expect_code(0).expect_stderr(&expected_texts);
    let pi: f64 = ended.stdout.trim().parse().expect("it is a number");
    assert!((pi - std::f64::consts::PI).abs() < 0.01, "{pi}");
    assert_eq!(lab.host(&line).expect_code(0).stdout, ended.stdout);
}

/// Kills workers with generators and with tasks that take their items.
#[test]
fn items_are_right_whatever_happens_to_workers() {
    let lab = Lab::new();
    let arguments = [("tasks", 6), ("items", 400), ("steps", 300_000)];
    let mut host = start_of(&lab, &component(PROGRAM), "taken_by_many", &arguments);
    // Consumers restart from the first item: the kills stop in the end.
    let killed = kill_workers(&mut host, "tasks", Duration::from_millis(200), 20);
    let summary = host.wait().expect_code(0).json();
    assert_eq!(summary["result"], json!(7 * 400));
    assert!(killed >= 3 && summary["lost_workers"].as_u64() >= Some(1), "{killed} {summary}");
}

#[test]
fn no_job_begins_with_a_generator() {
    let program = format!("{}#squares", component(PROGRAM).display());
    let expected_texts = "`squares` is a generator: a job can't start with one";
    Lab::new().host(&["submit", &program]).expect_code(1).expect_stderr(&[expected_texts]);
    let inspected = Lab::new().host(&["inspect", &component(PROGRAM).display().to_string()]).expect_code(0);
    assert!(inspected.stdout.contains("task squares(items: u64, steps: u64) -> stream of u64"), "{}", inspected.stdout);
}
