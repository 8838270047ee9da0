//! Nodes of a cluster, each in a place of its own in a network.

use std::path::Path;
use std::time::{Duration, Instant};

use sandbar_testnet::{Ended, Lab, Net, Running, component, say};

use serde_json::Value;

/// Whatever takes longer does not come any more.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Waits until `holds`, and gives how long that took.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < TIME_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    since.elapsed()
}

/// Nodes, numbered from 0 as those of the network; the last of these is for who submits. The first is the founder.
pub struct Nodes {
    pub net: Net,
    pub lab: Lab,
    port: u16,
    token: String,
    running: Vec<Running>,
}

impl Nodes {
    /// Starts nodes, the founder first.
    pub fn start(net: Net, count: usize) -> Nodes {
        let mut nodes = Nodes::none(net);
        nodes.add();
        until("the founder is there", || nodes.known(0).len() == 1);
        (1..count).for_each(|_| nodes.add());
        nodes
    }

    /// Starts nodes at the same time.
    pub fn start_at_once(net: Net, count: usize) -> Nodes {
        let mut nodes = Nodes::none(net);
        (0..count).for_each(|_| nodes.add());
        nodes
    }

    /// A cluster that has a token, and no nodes.
    fn none(net: Net) -> Nodes {
        let lab = Lab::new();
        lab.host(&["cluster", "init", "--data", "0"]).expect_code(0);
        let token = lab.host(&["cluster", "token", "--data", "0"]).expect_code(0).stdout.trim().to_owned();
        // On loopback there are others.
        let port = if net.is_real() { 7410 } else { 20_000 + (std::process::id() % 10_000) as u16 };
        Nodes { net, lab, port, token, running: Vec::new() }
    }

    fn add(&mut self) {
        let node = self.running.len();
        let (listen, name) = (self.at(node), format!("node-{node}"));
        let has = format!("{name}=8");
        let line = ["serve", "--listen", &listen, "--workers", "1", "--name", &name, "--resource", &has];
        let running = self.run(node, &node.to_string(), node > 0, &line);
        self.running.push(running);
    }

    /// Where a node listens.
    pub fn at(&self, node: usize) -> String {
        format!("{}:{}", self.net.address(node), self.port)
    }

    /// Runs the host in a place of the network, with a folder of its own.
    pub fn run(&self, place: usize, folder: &str, joins: bool, line: &[&str]) -> Running {
        let mut command = self.lab.command(line);
        command.args(["--data", folder]);
        if joins {
            command.args(["--join", &self.at(0), "--token", &self.token]);
        }
        self.net.place(place, &mut command);
        Running::new(command)
    }

    /// Begins a program, on a node of its own that has no processor.
    pub fn begin(&self, program: &Path, task: &str, arguments: &[&str]) -> Running {
        let (program, place) = (format!("{}#{task}", program.display()), self.running.len());
        let mut line = vec!["submit", &program, "--json", "--cpus", "0", "--workers", "1"];
        line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
        self.run(place, "submitter", true, &line)
    }

    /// Runs a program, and checks what it gives.
    #[track_caller]
    pub fn gives(&self, program: &str, task: &str, arguments: &[&str], expected: u64) -> Ended {
        let ended = self.begin(&component(program), task, arguments).wait().expect_code(0);
        assert_eq!(ended.json()["result"], expected, "{}", ended.stderr);
        ended
    }

    /// Runs a job, on a node of its own that may run as much as another.
    pub fn submit(&self, line: &[String]) -> Ended {
        let line: Vec<&str> = line.iter().map(String::as_str).chain(["--workers", "1"]).collect();
        self.run(self.running.len(), "submitter", true, &line).wait().expect_code(0)
    }

    /// Waits until tasks have run that only this node can.
    #[track_caller]
    pub fn works(&self, node: usize) {
        let (program, needs) = (component("tests/programs/placement"), format!("name=node-{node}"));
        until("its tasks are done", || {
            let ended = self.begin(&program, "needs", &[&needs, "tasks=4", "steps=1000"]).wait();
            // Who has just joined may not know it yet, and says that there is none.
            let is_unknown = ended.status.code() == Some(1) && ended.stderr.contains("[infeasible]");
            if !is_unknown {
                assert_eq!(ended.expect_code(0).json()["result"], 4);
            }
            !is_unknown
        });
    }

    /// The nodes that a node knows; none while it does not answer.
    pub fn known(&self, node: usize) -> Vec<Value> {
        let listed = self.lab.host(&["nodes", "list", "--json", "--data", &node.to_string()]);
        match listed.status.code() {
            Some(0) => listed.json()["nodes"].as_array().expect("a list").clone(),
            _ => Vec::new(),
        }
    }

    /// Waits until all nodes know as many as there are.
    #[track_caller]
    pub fn meet(&self) -> Duration {
        let count = self.running.len();
        until("all know each other", || (0..count).all(|node| self.known(node).len() == count))
    }

    /// The process of a node.
    pub fn process(&self, node: usize) -> u32 {
        self.running[node].process()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.running.drain(..) {
                node.interrupt();
                let ended = node.wait();
                say(format_args!("{}: {}\n{}", ended.line, ended.status, ended.stderr));
            }
            say(format_args!("{:?}", self.net.relay().map(sandbar_testnet::Relay::counts)));
        }
    }
}
