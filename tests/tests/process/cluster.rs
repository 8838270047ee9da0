//! Nodes of a cluster: how they come together, and what they run for each other.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandbar_tests::{Ended, Lab, Running, component};
use serde_json::{Value, json};

use crate::lifecycle::until;

/// Nodes on this machine, each with a folder of its own. The first is the founder.
struct Nodes {
    lab: Lab,
    running: Vec<Running>,
}

impl Nodes {
    /// A cluster of so many, which all know each other.
    fn start(count: usize) -> Nodes {
        let mut nodes = Nodes { lab: Lab::new(), running: Vec::new() };
        nodes.lab.host(&["cluster", "init", "--data", "1"]).expect_code(0).expect_talk(&["host serve"]);
        (0..count).for_each(|_| nodes.add());
        nodes
    }

    fn add(&mut self) {
        let (name, count) = ((self.running.len() + 1).to_string(), self.running.len());
        let node = format!("node-{name}");
        let mut line: Vec<String> = ["serve", "--listen", "127.0.0.1:0", "--workers", "1"].map(str::to_owned).into();
        line.extend(["--data".to_owned(), name, "--name".to_owned(), node]);
        if count > 0 {
            line.extend(self.joins());
        }
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        self.running.push(self.lab.start(&line));
        until("the node is there", || self.there().len() == count + 1);
    }

    /// What lets others in.
    fn joins(&self) -> Vec<String> {
        let token = self.lab.host(&["cluster", "token", "--data", "1", "--for", "5m"]).expect_code(0).stdout;
        let founder = self.there().iter().find(|node| node["name"] == "node-1").expect("the founder is there").clone();
        let address = founder["address"].as_str().expect("it has an address").to_owned();
        ["--join".to_owned(), address, "--token".to_owned(), token.trim().to_owned()].into()
    }

    /// The nodes that the founder knows.
    fn there(&self) -> Vec<Value> {
        let listed = self.lab.host(&["nodes", "list", "--json", "--data", "1"]);
        if listed.status.code() != Some(0) {
            return Vec::new();
        }
        listed.json()["nodes"].as_array().expect("a list").clone()
    }

    /// Runs a program on a node that joins for it, with these processors of its own.
    fn submit(&self, program: &Path, task: &str, cpus: &str, arguments: &[&str]) -> Ended {
        let program = format!("{}#{task}", program.display());
        let mut line: Vec<String> =
            ["submit", &program, "--json", "--data", "submitter", "--cpus", cpus, "--workers", "1"]
                .map(str::to_owned)
                .into();
        line.extend(arguments.iter().flat_map(|argument| ["--arg".to_owned(), (*argument).to_owned()]));
        line.extend(self.joins());
        self.lab.host(&line.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

#[test]
fn three_nodes_form_and_run_what_a_fourth_submits() {
    let mut nodes = Nodes::start(3);
    let program = component("tests/programs/tasks");
    // It has no processor of its own: all of it runs on the others.
    let ended = nodes.submit(&program, "tree", "0", &["depth=3", "width=10", "steps=1000"]).expect_code(0);
    assert_eq!(ended.json()["result"], json!(1000), "{}", ended.stderr);
    // And with one.
    let ended = nodes.submit(&program, "tree", "1", &["depth=3", "width=10", "steps=1000"]).expect_code(0);
    assert_eq!(ended.json()["result"], json!(1000), "{}", ended.stderr);
    // Large values go from node to node.
    let objects = component("tests/programs/objects");
    let ended = nodes.submit(&objects, "passes", "0", &["objects=20", "rows=200000"]).expect_code(0);
    assert_eq!(ended.json()["result"], json!(20), "{}", ended.stderr);
    // Who submitted is gone at once, and so is who is told to go.
    until("only the three are there", || nodes.there().len() == 3);
    let last = nodes.running.pop().expect("there are three");
    kill_process(Pid::from_raw(last.process().cast_signed()).expect("an id"), Signal::TERM).expect("it is sent");
    last.wait().expect_code(0).expect_talk(&["it leaves its cluster"]);
    assert_eq!(nodes.there().len(), 2);
    // One that dies is missed.
    let since = Instant::now();
    drop(nodes.running.pop());
    until("it is missed", || nodes.there().len() == 1);
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

#[test]
fn a_node_comes_back_as_who_it_was() {
    let mut nodes = Nodes::start(2);
    let before = nodes.there();
    drop(nodes.running.pop());
    // It needs no token.
    let founder = before[0]["address"].as_str().expect("an address").to_owned();
    let line = ["serve", "--listen", "127.0.0.1:0", "--workers", "1", "--data", "2", "--join", &founder];
    nodes.running.push(nodes.lab.start(&line));
    let number = |all: &[Value]| all.iter().find(|node| node["name"] == "node-2").map(|node| node["number"].clone());
    until("it is there again", || {
        let now = nodes.there();
        now.len() == 2 && number(&now) != number(&before)
    });
}

#[test]
fn mistakes_are_said() {
    let nodes = Nodes::start(1);
    let founder = nodes.there()[0]["address"].as_str().expect("an address").to_owned();
    let other = Lab::new();
    other.host(&["cluster", "init", "--data", "1"]).expect_code(0);
    let foreign = other.host(&["cluster", "token", "--data", "1"]).expect_code(0).stdout;
    let joins = |token: &str| {
        let line = ["serve", "--listen", "127.0.0.1:0", "--data", "x", "--join", &founder, "--token", token];
        nodes.lab.host(&line).expect_code(1).stderr
    };
    for (token, words) in
        [("sbt1-abc", "token"), (&foreign.trim()[..foreign.trim().len() - 5], "cut"), (foreign.trim(), "cluster")]
    {
        let said = joins(token);
        assert!(said.contains(words), "`{words}` is not in {said}");
    }
    for (line, code, words) in [
        (&["serve", "--listen", "127.0.0.1:0", "--data", "y"][..], 1, "host cluster init"),
        (&["cluster", "init", "--data", "1"], 1, "already"),
        (&["cluster", "token", "--data", "y"], 1, "y/authority"),
        (&["cluster", "token", "--data", "1", "--for", "2d"], 2, "not a time"),
        (&["nodes", "list", "--data", "y"], 1, "host serve"),
        (&["serve", "--listen", "127.0.0.1:0", "--data", "1"], 1, "in use by process"),
    ] {
        let ended = nodes.lab.host(line).expect_code(code);
        assert!(ended.stderr.contains(words), "{}: `{words}` is not in {}", ended.line, ended.stderr);
    }
}
