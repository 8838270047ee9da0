//! Walls around the processes of a node: what is reported, what is required, and what a worker has of other tenants.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use sandbar_tests::{CommandOutput, Lab, Running, children, component};
use serde_json::Value;

use crate::cluster::Nodes;
use crate::lifecycle::until;

const KINDS: [&str; 4] = ["worker", "program-worker", "compiler", "gpu"];

/// Checks a report on all kinds of processes.
fn check_report(walls: &Value) {
    let walls = walls.as_array().expect("a list");
    let kinds: Vec<&str> = walls.iter().map(|walls| walls["process"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, KINDS);
    for walls in walls {
        let calls = walls["system_calls"].as_array().expect("a list");
        let has = |name: &str| calls.iter().any(|call| call == name);
        assert!(has("mmap") && has("prctl(argument 0)") && !has("execve") && !has("socket") && !has("fork"), "{walls}");
        let is_gpu = walls["process"] == "gpu";
        assert_eq!(walls["other_calls"], if is_gpu { "fail" } else { "kill" });
        assert_eq!(has("openat"), is_gpu);
    }
}

#[test]
fn a_node_reports_its_walls() {
    let nodes = Nodes::start(1);
    let status = nodes.lab.host(&["status", "--data", "1", "--json"]).expect_code(0).json();
    check_report(&status["walls"]);
    let text = nodes.lab.host(&["status", "--data", "1"]).expect_code(0).stdout;
    for kind in KINDS {
        let line = text.lines().find(|line| line.contains(&format!("walls      {kind}: "))).expect("a line");
        assert!(line.contains("system calls: ") && line.contains("; files: ") && line.contains("; namespaces: "));
    }
}

/// Wraps a command in a user namespace whose processes can make no further ones.
fn without_namespaces(lab: &Lab, line: &[&str]) -> CommandOutput {
    let command = lab.command(line);
    let mut wrapped = Command::new("unshare");
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    wrapped.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    Running::new(wrapped).wait()
}

#[test]
fn a_node_without_a_wall_says_so_and_refuses_if_walls_are_required() {
    let lab = Lab::new();
    let checks = without_namespaces(&lab, &["doctor", "--json"]).json();
    let walls = checks["checks"].as_array().expect("a list").iter().filter(|check| check["name"] == "walls");
    let walls: Vec<&Value> = walls.collect();
    assert_eq!(walls.len(), KINDS.len());
    for check in walls {
        let is_gpu = check["value"].as_str().expect("a text").starts_with("gpu: ");
        let remedy = check["remedy"].as_str().unwrap_or_default();
        assert!(is_gpu || check["verdict"] == "warn" && remedy.contains("max_user_namespaces"), "{check}");
    }
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let tree = ["submit", &program, "--json", "--arg", "depth=2", "--arg", "width=2", "--arg", "steps=10"];
    assert_eq!(without_namespaces(&lab, &tree).expect_code(0).json()["result"], 4);
    let missing = ["walls are missing (--require-walls)", "namespaces: unshare", "of worker, program-worker, compiler"];
    without_namespaces(&lab, &[&tree[..], &["--require-walls"]].concat()).expect_code(1).expect_stderr(&missing);
    lab.host(&["cluster", "init", "--data", "1"]).expect_code(0);
    let serve = ["serve", "--data", "1", "--listen", "127.0.0.1:0", "--require-walls"];
    without_namespaces(&lab, &serve).expect_code(1).expect_stderr(&missing);
}

/// Number and name of a file in memory.
type MemoryFile = (u64, String);

/// Returns the worker processes of a node.
fn workers(node: u32) -> BTreeSet<u32> {
    let name = |process: &u32| std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    children(node).into_iter().filter(|process| name(process).trim() == "host-worker").collect()
}

/// Returns the files in memory that a process has mapped or open; `None` if it has ended.
fn memory_files(process: u32) -> Option<BTreeSet<MemoryFile>> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    let mapped = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let number = fields.nth(4)?.parse().ok()?;
        Some((number, fields.collect::<Vec<_>>().join(" ")))
    });
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let open = links.filter_map(|link| {
        let link = link.ok()?.path();
        let name = std::fs::read_link(&link).ok()?.to_string_lossy().into_owned();
        Some((std::fs::metadata(&link).ok()?.ino(), name))
    });
    let is_in_memory = |(_, name): &MemoryFile| name.starts_with("/memfd:") || name.ends_with(" (deleted)");
    Some(mapped.chain(open).filter(is_in_memory).collect())
}

#[test]
fn workers_of_two_tenants_have_no_memory_in_common() {
    let nodes = Nodes::start(1);
    let (node, address) = (nodes.process("node-1"), nodes.address("node-1"));
    let program = format!("{}#hogs", component("tests/programs/tasks").display());
    let before = workers(node);
    let of_tenant = |name: &str| {
        let others = workers(node);
        let token = nodes.lab.tenant_token("1", name, &[]);
        let connection = ["--node", &address, "--data", name, "--token", &token];
        let line = ["submit", &program, "--json", "--no-wait", "--arg", "count=1"];
        nodes.lab.host(&[&line[..], &connection].concat()).expect_code(0);
        let new = || workers(node).difference(&others).copied().collect::<BTreeSet<u32>>();
        until("its task runs", || new().iter().filter(|worker| is_busy(**worker)).count() > 0 && new().len() > 1);
        new()
    };
    let (first, second) = (of_tenant("ada"), of_tenant("mallory"));
    assert!(before.is_disjoint(&first) && first.is_disjoint(&second), "{before:?}, {first:?}, {second:?}");
    let files = |workers: &BTreeSet<u32>| workers.iter().filter_map(|worker| memory_files(*worker)).collect::<Vec<_>>();
    let (first, second) = (files(&first), files(&second));
    // What the node shares with a worker is found.
    let of_node = memory_files(node).expect("a living node");
    for worker in first.iter().chain(&second) {
        assert!(!worker.is_disjoint(&of_node), "a worker and its node have nothing in common: {worker:?}, {of_node:?}");
    }
    for (one, other) in first.iter().flat_map(|one| second.iter().map(move |other| (one, other))) {
        let common: Vec<_> = one.intersection(other).collect();
        assert!(common.is_empty(), "workers of two tenants share {common:?}");
    }
}

/// Returns whether a process has used processor time for some time.
fn is_busy(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let user = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(11));
    user.and_then(|ticks| ticks.parse::<u64>().ok()).is_some_and(|ticks| ticks >= 10)
}
