//! Placement: groups that reserve resources, and total and free resources of nodes.

use sandbar_tests::{CommandOutput, Lab, Running, component};
use serde_json::{Value, json};

use crate::lifecycle::until;

/// Starts a task of the test program on a node of two CPUs, with additional options of the host.
fn start(lab: &Lab, task: &str, arguments: &[&str], settings: &[&str]) -> Running {
    let program = format!("{}#{task}", component("tests/programs/placement").display());
    let mut line = vec!["submit", &program, "--json", "--workers", "2"];
    line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
    line.extend(settings);
    lab.start(&line)
}

/// Runs a program and checks its result.
#[track_caller]
fn check(task: &str, arguments: &[&str], settings: &[&str], expected: impl Into<Value>) -> CommandOutput {
    let ended = start(&Lab::new(), task, arguments, settings).wait().expect_code(0);
    assert_eq!(ended.json()["result"], expected.into(), "{task}: {}", ended.stderr);
    ended
}

/// Two tasks run in parallel in bundles of their own, and one after the other in a bundle of one CPU.
#[test]
fn tasks_of_two_bundles_run_beside_each_other() {
    for (bundles, beside) in [("bundles=2", true), ("bundles=1", false)] {
        let lab = Lab::new();
        start(&lab, "beside", &[bundles, "steps=300000000"], &[]).wait().expect_code(0);
        let tasks = lab.host(&["list", "tasks", "--name", "spins", "--json"]).expect_code(0).json();
        let times = |row: &Value| (row["begun_ns"].as_u64().unwrap(), row["ended_ns"].as_u64().unwrap());
        let [(a, a_end), (b, b_end)] = [0, 1].map(|at| times(&tasks["tasks"][at]));
        assert_eq!(a < b_end && b < a_end, beside, "{bundles}: {tasks}");
    }
}

#[test]
fn a_waiting_group_is_reported_once() {
    let ended = check("takes_turns", &["cpus=2", "wait_ms=3500"], &[], "0 before, then group-removed");
    let warning = "waits: STRICT_PACK, 2 cpus, 0 of 2 on the node are free";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{}", ended.stderr);
}

#[test]
fn tasks_of_a_removed_group_end_and_free_its_resources() {
    let lab = Lab::new();
    let ended = start(&lab, "removes", &["cpus=2"], &[]).wait().expect_code(0);
    let expected_text = ended.json()["result"].as_str().unwrap().to_owned();
    let (task, actor) = expected_text.split_once("; ").unwrap();
    assert!(task.starts_with("removes > stays: placement group ") && task.ends_with(" was removed [group-removed]"));
    assert!(actor.contains("placement group ") && actor.ends_with("[actor-died]"), "{expected_text}");
}

#[test]
fn an_infeasible_group_names_the_missing_resources() {
    for (arguments, expected_text) in [
        (
            ["cpus=1", "strategy=spread"],
            "placement group `wish` can't be placed: it needs 2 nodes, the cluster has 1 node",
        ),
        (
            ["cpus=1.5", "strategy=pack"],
            "its bundles together, on one node, ask for 3 cpus, no node has more than 2 [infeasible]",
        ),
        (["cpus=2.5", "strategy=pack"], "bundle 0 asks for 2.5 cpus, no node has more than 2 [infeasible]"),
    ] {
        start(&Lab::new(), "is_infeasible", &arguments, &[]).wait().expect_code(1).expect_stderr(&[expected_text]);
    }
    check("is_infeasible", &["cpus=1.5", "strategy=pack"], &["--cpus", "3"], Value::Null);
}

#[test]
fn invalid_requests_are_rejected() {
    check("requests_wrongly", &[], &[], "refused");
    let expected_text = ["a placement group of 0 bundles: it has from 1 to 100 [bad-request]"];
    start(&Lab::new(), "requests_nothing", &[], &[]).wait().expect_code(1).expect_stderr(&expected_text);
}

#[test]
fn tasks_are_spread_and_kept_to_nodes() {
    check("is_on_node", &["node=1000000", "soft=true"], &[], 2);
    let expected_text = ["requires node 1000000, which is not in the cluster [infeasible]"];
    start(&Lab::new(), "is_on_node", &["node=1000000", "soft=false"], &[])
        .wait()
        .expect_code(1)
        .expect_stderr(&expected_text);
}

#[test]
fn a_node_has_its_configured_resources() {
    let few = ["amount=2", "tasks=10", "steps=1000"];
    let license = ["--resource", "license=3"];
    check("licensed", &few, &license, 10);
    for (settings, available) in [(&[][..], "0"), (&["--resource", "license=1.5", "--gpus", "1"], "1.5")] {
        let expected_text = format!("asks for 2 of license, no node has more than {available} [infeasible]");
        start(&Lab::new(), "licensed", &few, settings).wait().expect_code(1).expect_stderr(&[&expected_text]);
    }
    // Takes longer than two intervals of the check, on any machine.
    let ended = check("licensed", &["amount=2", "tasks=2", "steps=9000000000"], &license, 2);
    let warning = "(node) warn: a task waits for 2 license, 1 of 3 on the node are free";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{}", ended.stderr);
}

#[test]
fn resource_amounts_are_checked() {
    let lab = Lab::new();
    for (settings, expected_text) in [
        (["--cpus", "many"], "not a number from 0 to 1000000000"),
        (["--gpus", "-1"], "-1"),
        (["--resource", "license"], "not NAME=AMOUNT"),
        (["--resource", "license=x"], "`x` is not a number from 0 to 1000000000"),
        (["--resource", "gpus=1"], "`gpus` is set by --gpus"),
    ] {
        lab.host(&["submit", "program.wasm", settings[0], settings[1]]).expect_code(2).expect_stderr(&[expected_text]);
    }
    let job = lab.write("job.toml", "");
    let line = ["submit", job.to_str().unwrap(), "--resource", "license=1"];
    lab.host(&line).expect_code(2).expect_stderr(&["--gpus, --resource", "are for programs"]);
}

#[test]
fn groups_and_nodes_are_listed() {
    let lab = Lab::new();
    let host = start(&lab, "holds", &["cpus=2"], &["--resource", "license=4", "--memory", "1GiB"]);
    until("the program holds its groups", || lab.host(&["jobs", "logs"]).stdout.contains("it holds"));
    let listed = lab.host(&["list", "placement-groups", "--json"]).expect_code(0).json();
    let groups = &listed["placement_groups"];
    assert_eq!(listed["total"], 2);
    assert_eq!([&groups[0]["name"], &groups[0]["strategy"], &groups[0]["state"]], ["train", "PACK", "created"]);
    let bundle = &groups[0]["bundles"][0];
    assert_eq!(bundle["resources"], json!([{"name": "cpus", "total": 2.0, "free": 1.0}]));
    assert_eq!((&bundle["occupants"], bundle["node"].is_number()), (&json!(1), true));
    assert_eq!([&groups[1]["strategy"], &groups[1]["state"]], ["SPREAD", "pending"]);
    assert_eq!(groups[1]["bundles"][1]["resources"][0], json!({"name": "memory", "total": 1048576.0, "free": 0.0}));
    let table = lab.host(&["list", "groups"]).expect_code(0).stdout;
    assert!(table.contains("train") && table.contains("cpus 1 of 2"), "{table}");
    let nodes = lab.host(&["list", "nodes", "--json"]).expect_code(0).json();
    let resources = &nodes["nodes"][0]["resources"];
    assert_eq!(resources[0], json!({"name": "cpus", "total": 2.0, "free": 0.0}));
    assert_eq!(resources[1], json!({"name": "memory", "total": 1073741824.0, "free": 1073741824.0}));
    assert_eq!(resources[2], json!({"name": "license", "total": 4.0, "free": 4.0}));
    host.interrupt();
    host.wait().expect_code(130);
}
