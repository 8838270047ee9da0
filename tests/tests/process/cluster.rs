//! Nodes of a cluster: how they join, and what they run for each other.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandbar_tests::{CommandOutput, Lab, Running, component, large_taxi_files, print_line};
use serde_json::{Value, json};

use crate::job::{same_models, taxi_of};
use crate::lifecycle::until;

/// Nodes on this machine, each with its own data folder. The first is the founder.
pub struct Nodes {
    pub lab: Lab,
    pub running: Vec<Running>,
    /// Additional arguments of all nodes.
    more: Vec<String>,
}

impl Nodes {
    /// Starts a cluster of `count` nodes, and waits until all know each other.
    pub fn start(count: usize) -> Nodes {
        Nodes::start_with(count, &[])
    }

    /// As [`Nodes::start`], with additional arguments for each node.
    pub fn start_with(count: usize, more: &[&str]) -> Nodes {
        let more = more.iter().map(|argument| (*argument).to_owned()).collect();
        let mut nodes = Nodes { lab: Lab::new(), running: Vec::new(), more };
        nodes.lab.host(&["cluster", "init", "--data", "1"]).expect_code(0).expect_stderr(&["host serve"]);
        (0..count).for_each(|_| nodes.add());
        nodes
    }

    pub fn add(&mut self) {
        self.add_with(&[]);
    }

    pub fn add_with(&mut self, more: &[&str]) {
        let before = self.there().len();
        let (name, count) = ((self.running.len() + 1).to_string(), self.running.len());
        let node = format!("node-{name}");
        let mut line: Vec<String> = ["serve", "--listen", "127.0.0.1:0"].map(str::to_owned).into();
        if !self.more.iter().any(|argument| argument == "--workers") {
            line.extend(["--workers", "1"].map(str::to_owned));
        }
        line.extend(["--data".to_owned(), name, "--name".to_owned(), node]);
        line.extend(self.more.iter().cloned().chain(more.iter().map(|argument| (*argument).to_owned())));
        if count > 0 {
            line.extend(self.joins());
        }
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        self.running.push(self.lab.start(&line));
        until("the node is there", || self.there().len() == before + 1);
    }

    /// Returns the arguments with which others join.
    pub fn joins(&self) -> Vec<String> {
        let token = self.lab.host(&["cluster", "token", "--data", "1", "--for", "5m"]).expect_code(0).stdout;
        let founder = self.there().iter().find(|node| node["name"] == "node-1").expect("the founder is there").clone();
        let address = founder["address"].as_str().expect("it has an address").to_owned();
        ["--join".to_owned(), address, "--token".to_owned(), token.trim().to_owned()].into()
    }

    /// Stops a node as a service manager does.
    pub fn stop(&mut self, at: usize) -> CommandOutput {
        let node = self.running.remove(at);
        kill_process(Pid::from_raw(node.process().cast_signed()).expect("an id"), Signal::TERM).expect("it is sent");
        node.wait()
    }

    /// Returns the nodes that the founder knows.
    pub fn there(&self) -> Vec<Value> {
        self.seen_by("1")
    }

    /// Returns the nodes that the node with this data folder knows.
    pub fn seen_by(&self, data: &str) -> Vec<Value> {
        let listed = self.lab.host(&["nodes", "list", "--json", "--data", data]);
        if listed.status.code() != Some(0) {
            return Vec::new();
        }
        listed.json()["nodes"].as_array().expect("a list").clone()
    }

    /// Returns the address of a node.
    pub fn address(&self, name: &str) -> String {
        let all = self.there();
        let node = all.iter().find(|node| node["name"] == name).expect("it is there");
        node["address"].as_str().expect("it has an address").to_owned()
    }

    /// Kills the node of this name.
    pub fn kill(&mut self, name: &str) {
        self.running[number(name) - 1].kill();
    }

    /// Restarts a killed node at its former address.
    pub fn come_back(&mut self, name: &str, address: &str, more: &[&str]) {
        let data = number(name).to_string();
        let mut line = vec!["serve", "--listen", address, "--workers", "1", "--data", &data, "--name", name];
        line.extend(more);
        self.running[number(name) - 1] = self.lab.start(&line);
        until("the node is a member again", || self.seen_by(&data).iter().any(|node| node["name"] == name));
    }

    /// Returns the process id of a node.
    pub fn process(&self, name: &str) -> u32 {
        self.running[number(name) - 1].process()
    }

    /// Runs a program on a node that joins for it and provides `cpus` CPUs.
    fn submit(&self, program: &Path, task: &str, cpus: &str, arguments: &[&str]) -> CommandOutput {
        self.begin(program, task, cpus, arguments).wait()
    }

    /// As [`Nodes::submit`], without waiting for the end.
    fn begin(&self, program: &Path, task: &str, cpus: &str, arguments: &[&str]) -> Running {
        let program = format!("{}#{task}", program.display());
        let mut line: Vec<String> =
            ["submit", &program, "--json", "--data", "submitter", "--cpus", cpus, "--workers", "1"]
                .map(str::to_owned)
                .into();
        line.extend(arguments.iter().flat_map(|argument| ["--arg".to_owned(), (*argument).to_owned()]));
        line.extend(self.joins());
        self.lab.start(&line.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Returns the number in a node's name, which is also the name of its folder.
fn number(name: &str) -> usize {
    name.trim_start_matches("node-").parse().expect("a number")
}

/// Each node, the founder included, is stopped as a service and restarted during a job none of whose tasks may be
/// retried.
#[test]
fn all_nodes_are_restarted_during_a_job() {
    let mut nodes = Nodes::start(3);
    let job =
        nodes.begin(&component("tests/programs/objects"), "outlives", "0", &["objects=40", "rows=100000", "retries=0"]);
    until("the submitter joins", || nodes.there().len() == 4);
    // Time for the job to create its objects.
    std::thread::sleep(Duration::from_secs(2));
    for number in [3, 2, 1] {
        let before = nodes.there();
        let named = |all: &[Value], name: &str| all.iter().find(|node| node["name"] == name).cloned();
        let name = format!("node-{number}");
        let [founder, own] = ["node-1", &name].map(|name| named(&before, name).expect("it is there"));
        nodes.stop(number - 1).expect_code(0).expect_stderr(&["draining (SIGTERM", "this node leaves its cluster"]);
        let data = number.to_string();
        let [founder, address] = [&founder, &own].map(|node| node["address"].as_str().expect("an address"));
        let mut line = vec!["serve", "--listen", address, "--workers", "1", "--data", &data, "--name", &name];
        if number > 1 {
            line.extend(["--join", founder]);
        }
        let node = nodes.lab.start(&line);
        nodes.running.insert(number - 1, node);
        until("the node is a member again", || {
            let now = nodes.there();
            now.len() == 4 && named(&now, &name).is_some_and(|node| node["number"] != own["number"])
        });
    }
    nodes.add_with(&["--resource", "finish=1"]);
    let ended = job.wait().expect_code(0);
    assert_eq!(ended.json()["result"], json!(40), "{}", ended.stderr);
}

/// A job's models depend neither on the node that trains them nor on a node's death meanwhile.
#[test]
fn other_nodes_train_models_too() {
    let mut nodes = Nodes::start(3);
    let files = large_taxi_files();
    let (alone, expected) = taxi_of(&files, &Lab::new(), &[]);
    assert_eq!((&alone["groups"], &alone["elsewhere"]), (&json!(522), &json!(0)), "{alone}");
    let joins = nodes.joins();
    let mut line = vec!["--workers", "1", "--data", "submitter"];
    line.extend(joins.iter().map(String::as_str));
    let (json, models) = taxi_of(&files, &nodes.lab, &line);
    print_line(format_args!("{json}"));
    same_models(&models, &expected);
    assert!(json["elsewhere"].as_u64() > Some(0), "{json}");
    let victim = nodes.running.remove(2);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(victim);
    });
    let (json, models) = taxi_of(&files, &nodes.lab, &line);
    print_line(format_args!("{json}"));
    same_models(&models, &expected);
    killer.join().expect("it is killed");
}

#[test]
fn a_node_is_drained_and_removed() {
    let mut nodes = Nodes::start(2);
    nodes.lab.host(&["nodes", "drain", "node-3", "--data", "1"]).expect_code(1).expect_stderr(&["node-1, node-2"]);
    nodes.lab.host(&["nodes", "drain", "node-2", "--data", "1"]).expect_code(0);
    nodes.running.remove(1).wait().expect_code(0).expect_stderr(&["this node leaves its cluster"]);
    nodes.lab.host(&["nodes", "remove", "node-2", "--data", "1"]).expect_code(0);
    nodes.lab.host(&["nodes", "remove", "node-1", "--data", "1"]).expect_code(1).expect_stderr(&["is this node"]);
    let status = nodes.lab.host(&["status", "--data", "1"]).expect_code(0);
    assert!(status.stdout.contains("nodes      1 (0 draining)"), "{}", status.stdout);
    let founder = nodes.there()[0]["address"].as_str().expect("an address").to_owned();
    let line = ["serve", "--listen", "127.0.0.1:0", "--data", "2", "--join", &founder];
    nodes.lab.host(&line).expect_code(1).expect_stderr(&["revoked"]);
}

#[test]
fn three_nodes_run_the_jobs_of_a_fourth() {
    let mut nodes = Nodes::start(3);
    let program = component("tests/programs/tasks");
    // The submitter provides no CPU: all tasks run on the others.
    let ended = nodes.submit(&program, "tree", "0", &["depth=3", "width=10", "steps=1000"]).expect_code(0);
    assert_eq!(ended.json()["result"], json!(1000), "{}", ended.stderr);
    // The submitter provides one CPU.
    let ended = nodes.submit(&program, "tree", "1", &["depth=3", "width=10", "steps=1000"]).expect_code(0);
    assert_eq!(ended.json()["result"], json!(1000), "{}", ended.stderr);
    // Large values travel between nodes.
    let objects = component("tests/programs/objects");
    let ended = nodes.submit(&objects, "passes", "0", &["objects=20", "rows=200000"]).expect_code(0);
    assert_eq!(ended.json()["result"], json!(20), "{}", ended.stderr);
    // A submitter that has ended, and a node that leaves, disappear at once.
    until("only the three nodes are members", || nodes.there().len() == 3);
    nodes.stop(2).expect_code(0).expect_stderr(&["this node leaves its cluster"]);
    assert_eq!(nodes.there().len(), 2);
    // A node that dies is detected.
    let since = Instant::now();
    drop(nodes.running.pop());
    until("the node is no member any more", || nodes.there().len() == 1);
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

#[test]
fn a_restarted_node_rejoins_without_a_token() {
    let mut nodes = Nodes::start(2);
    let before = nodes.there();
    drop(nodes.running.pop());
    // A node that comes back needs no token.
    let founder = before[0]["address"].as_str().expect("an address").to_owned();
    let line = ["serve", "--listen", "127.0.0.1:0", "--workers", "1", "--data", "2", "--join", &founder];
    nodes.running.push(nodes.lab.start(&line));
    let number = |all: &[Value]| all.iter().find(|node| node["name"] == "node-2").map(|node| node["number"].clone());
    until("the node is a member again", || {
        let now = nodes.there();
        now.len() == 2 && number(&now) != number(&before)
    });
}

#[test]
fn mistakes_are_reported() {
    let nodes = Nodes::start(1);
    let founder = nodes.there()[0]["address"].as_str().expect("an address").to_owned();
    let other = Lab::new();
    other.host(&["cluster", "init", "--data", "1"]).expect_code(0);
    let foreign = other.host(&["cluster", "token", "--data", "1"]).expect_code(0).stdout;
    let joins = |token: &str| {
        let line = ["serve", "--listen", "127.0.0.1:0", "--data", "x", "--join", &founder, "--token", token];
        nodes.lab.host(&line).expect_code(1).stderr
    };
    for (token, expected_text) in
        [("sbt2-abc", "token"), (&foreign.trim()[..foreign.trim().len() - 5], "cut"), (foreign.trim(), "cluster")]
    {
        let message = joins(token);
        assert!(message.contains(expected_text), "`{expected_text}` is not in {message}");
    }
    for (line, code, expected_text) in [
        (&["serve", "--listen", "127.0.0.1:0", "--data", "y"][..], 1, "host cluster init"),
        (&["cluster", "init", "--data", "1"], 1, "already"),
        (&["cluster", "token", "--data", "y"], 1, "y/authority"),
        (&["cluster", "token", "--data", "1", "--for", "2d"], 2, "not a time"),
        (&["nodes", "list", "--data", "y"], 1, "host serve"),
        (&["serve", "--listen", "127.0.0.1:0", "--data", "1"], 1, "in use by process"),
    ] {
        let ended = nodes.lab.host(line).expect_code(code);
        assert!(ended.stderr.contains(expected_text), "{}: `{expected_text}` is not in {}", ended.line, ended.stderr);
    }
}
