//! Actors: ordered calls, restarts, checkpoints, names, kills, and the end of an actor when its last handle is dropped.

use std::time::{Duration, Instant};

use sandbar_tests::{Lab, children, component, is_alive};
use serde_json::{Value, json};

use crate::lifecycle::until;
use crate::programs::{check_result, kill, start_of, workers};

const PROGRAM: &str = "tests/programs/actors";

#[track_caller]
fn check(task: &str, arguments: &[(&str, u64)], expected: impl Into<Value>) {
    check_result(PROGRAM, task, arguments, &[], expected);
}

#[test]
fn calls_of_one_caller_are_run_in_order() {
    check("counts", &[("calls", 3000)], 3000);
    check("shared", &[("callers", 20), ("calls", 100)], 2000);
    check("in_order", &[], "true true");
    check("alone", &[("calls", 300)], 300);
}

#[test]
fn an_actor_holds_references_between_calls() {
    check("keeps", &[("objects", 50)], 2450);
}

#[test]
fn an_actor_that_waits_for_tasks_lets_others_be_called() {
    check("asking", &[("actors", 100)], 100 * 99 / 2 + 200 + 100);
}

#[test]
fn methods_that_wait_run_beside_each_other() {
    check("beside", &[("waiting", 50)], "50 0 true 50");
}

#[test]
fn errors_of_an_actor_describe_its_end() {
    let expected = [
        "failures > Counter.new: actor `Counter.new` has died: 13 is no start [actor-died]",
        "failures > Counter.add: actor `Counter.new` has died: 13 is no start [actor-died]",
        "failures > Counter.refuses: on purpose [refused]",
        "1005",
        "failures > Counter.spins: it ran longer than 30 ms (timeout) [time-out]",
        "failures > Counter.add: actor `Counter.new` has died: it ended with one of its calls: it ran longer than 30 ms (timeout) [actor-died]",
        "failures > Counter.spins: actor `Counter.new` was killed, or its last handle was dropped [actor-died]",
        "failures > find: there is no actor `nobody` [no-actor]",
    ];
    check("failures", &[], expected.join("\n"));
}

/// A cancelled call that computes ends with its actor, which restarts from its last checkpoint.
#[test]
fn a_call_that_is_cancelled_ends_wherever_it_is() {
    let expected = [
        "5",
        "cancels > Saved.spins: it was cancelled [cancelled]",
        "6",
        "cancels > Saved.waits: it was cancelled [cancelled]",
        "7",
        "cancels > Signal.waits: it was cancelled [cancelled]",
        "1",
        "cancels > Counter.spins: it was cancelled [cancelled]",
        "cancels > Counter.add: it was cancelled [cancelled]",
        "cancels > Counter.add: actor `Counter.new` has died: it ended with one of its calls: it was cancelled [actor-died]",
    ];
    check("cancels", &[], expected.join("\n"));
    check("spares", &[], "0 spares > calls_slowly: it was cancelled [cancelled] 1");
}

#[test]
fn a_call_has_its_time_from_when_it_begins() {
    let expected = [
        "1",
        "timed > Signal.waits: it ran longer than 100 ms (timeout) [time-out]",
        "1",
        "1",
        "timed > Counter.waits: it ran longer than 100 ms (timeout) [time-out]",
    ];
    check("timed", &[], expected.join("\n"));
}

#[test]
fn a_dead_actor_restarts_up_to_max_restarts() {
    let lab = Lab::new();
    let summary = start_of(&lab, &component(PROGRAM), "begins_anew", &[]).wait().expect_code(0).json();
    let lines: Vec<&str> = summary["result"].as_str().expect("a text").lines().collect();
    let values: Vec<&str> = lines.iter().copied().filter(|line| line.parse::<u64>().is_ok()).collect();
    assert_eq!(values, ["6", "7", "8"], "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.ends_with("[panic]")).count(), 3, "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.ends_with("[actor-died]")), "{lines:?}");
}

#[test]
fn a_checkpointed_actor_restarts_from_its_checkpoint() {
    let lab = Lab::new();
    let summary = start_of(&lab, &component(PROGRAM), "restored", &[]).wait().expect_code(0).json();
    assert!(summary["result"].as_str().is_some_and(|text| text.starts_with("5 6 7\n")), "{summary}");
}

#[test]
fn actors_are_found_by_name() {
    check("named", &[], "2 3 4\nnamed > Counter.new: there is an actor `one` already [name-taken]");
}

#[test]
fn a_name_is_free_again_once_its_actor_has_ended() {
    let expected = [
        "2 11",
        "named_again > Counter.add: actor `Counter.new` was killed, or its last handle was dropped [actor-died]",
        "named_again > find: there is no actor `one` [no-actor]",
    ];
    check("named_again", &[], expected.join("\n"));
}

/// Alone in its worker, or beside other actors.
#[test]
fn a_job_stops_though_an_actor_never_returns() {
    for cpus in ["cpus=0", "cpus=1"] {
        let lab = Lab::new();
        let program = format!("{}#never_returns", component(PROGRAM).display());
        let mut host = lab.start(&["submit", &program, "--arg", cpus]);
        until("the actor is called", || {
            assert!(!host.has_ended());
            let actors = lab.host(&["list", "actors", "--json"]);
            // Before the actor exists, the list is empty or the command fails.
            actors.status.success() && actors.json()["actors"][0]["state"] == "alive"
        });
        let all = children(host.process());
        let status = lab.host(&["jobs", "status", "--json"]).expect_code(0).json();
        lab.host(&["jobs", "stop", status["id"].as_str().expect("a name")]).expect_code(0);
        host.wait().expect_code(130).expect_stderr(&["stopped by `host jobs stop`"]);
        until("its workers end with it", || !all.iter().any(|worker| is_alive(*worker)));
        assert_eq!(lab.names(), Vec::<String>::new());
    }
}

#[test]
fn thousands_of_actors_live_at_once_and_go_with_their_handles() {
    check("many", &[("actors", 3000), ("calls", 2)], 3000);
    check("come_and_go", &[("actors", 300)], (0..300).sum::<u64>() + 300 + 100);
}

/// A hundred calls of an actor that is saved after each, while its process is killed repeatedly: each call counts once.
#[test]
fn a_hundred_calls_survive_a_killed_worker() {
    let lab = Lab::new();
    let mut host = start_of(&lab, &component(PROGRAM), "survives", &[("calls", 100), ("steps", 5_000_000)]);
    let (mut killed, mut next) = (0, Instant::now() + Duration::from_millis(150));
    while host.is_running() {
        if Instant::now() >= next {
            next += Duration::from_millis(150);
            let all = workers(host.process(), "actors");
            all.iter().copied().for_each(kill);
            killed += all.len();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let summary = host.wait().expect_code(0).json();
    assert_eq!(summary["result"], json!(100));
    assert!(killed >= 2, "{killed} {summary}");
}
