//! A cluster of real nodes, each on its own node of a test network.

use std::path::Path;
use std::time::{Duration, Instant};

use sandbar_testnet::{CommandOutput, Lab, Net, Running, component, print_line};

use serde_json::Value;

/// Maximum wait for a condition.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true. Returns how long that took.
#[track_caller]
pub fn until(condition: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < TIME_MAX, "{condition}");
        std::thread::sleep(Duration::from_millis(10));
    }
    since.elapsed()
}

/// Nodes of a cluster, numbered as in the network; the network's last node is for the submitter. Node 0 is the founder.
pub struct Nodes {
    pub net: Net,
    pub lab: Lab,
    port: u16,
    token: String,
    running: Vec<Running>,
}

impl Nodes {
    /// Starts nodes one after another, the founder first.
    pub fn start(net: Net, count: usize) -> Nodes {
        let mut nodes = Nodes::none(net);
        nodes.add();
        until("the founder is there", || nodes.known(0).len() == 1);
        (1..count).for_each(|_| nodes.add());
        nodes
    }

    /// Starts all nodes at the same time.
    pub fn start_at_once(net: Net, count: usize) -> Nodes {
        let mut nodes = Nodes::none(net);
        (0..count).for_each(|_| nodes.add());
        nodes
    }

    /// Creates a cluster with a token and without nodes.
    fn none(net: Net) -> Nodes {
        let lab = Lab::new();
        lab.host(&["cluster", "init", "--data", "0"]).expect_code(0);
        let token = lab.host(&["cluster", "token", "--data", "0"]).expect_code(0).stdout.trim().to_owned();
        // On loopback, other processes use ports: derive one from the process id.
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

    /// Returns the address on which a node listens.
    pub fn at(&self, node: usize) -> String {
        format!("{}:{}", self.net.address(node), self.port)
    }

    /// Starts the host at a node of the network, with its own data folder.
    pub fn run(&self, place: usize, folder: &str, joins: bool, line: &[&str]) -> Running {
        let mut command = self.lab.command(line);
        command.args(["--data", folder]);
        if joins {
            command.args(["--join", &self.at(0), "--token", &self.token]);
        }
        self.net.attach(place, &mut command);
        Running::new(command)
    }

    /// Submits a program from a node of its own that provides no CPUs.
    pub fn begin(&self, program: &Path, task: &str, arguments: &[&str]) -> Running {
        let (program, place) = (format!("{}#{task}", program.display()), self.running.len());
        let mut line = vec!["submit", &program, "--json", "--cpus", "0", "--workers", "1"];
        line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
        self.run(place, "submitter", true, &line)
    }

    /// Runs a program and checks its result.
    #[track_caller]
    pub fn gives(&self, program: &str, task: &str, arguments: &[&str], expected: u64) -> CommandOutput {
        let ended = self.begin(&component(program), task, arguments).wait().expect_code(0);
        assert_eq!(ended.json()["result"], expected, "{}", ended.stderr);
        ended
    }

    /// Runs a job from a node of its own that runs work, too.
    pub fn submit(&self, line: &[String]) -> CommandOutput {
        let line: Vec<&str> = line.iter().map(String::as_str).chain(["--workers", "1"]).collect();
        self.run(self.running.len(), "submitter", true, &line).wait().expect_code(0)
    }

    /// Waits until tasks that only this node can run have succeeded.
    #[track_caller]
    pub fn works(&self, node: usize) {
        let (program, needs) = (component("tests/programs/placement"), format!("name=node-{node}"));
        until("its tasks are done", || {
            let ended = self.begin(&program, "needs", &[&needs, "tasks=4", "steps=1000"]).wait();
            // The submitter may not know the node yet, and fails with `infeasible`.
            let is_unknown = ended.status.code() == Some(1) && ended.stderr.contains("[infeasible]");
            if !is_unknown {
                assert_eq!(ended.expect_code(0).json()["result"], 4);
            }
            !is_unknown
        });
    }

    /// Returns the nodes that a node knows, or none if it does not answer.
    pub fn known(&self, node: usize) -> Vec<Value> {
        let listed = self.lab.host(&["nodes", "list", "--json", "--data", &node.to_string()]);
        match listed.status.code() {
            Some(0) => listed.json()["nodes"].as_array().expect("a list").clone(),
            _ => Vec::new(),
        }
    }

    /// Waits until each node knows all nodes.
    #[track_caller]
    pub fn meet(&self) -> Duration {
        let count = self.running.len();
        until("all know each other", || (0..count).all(|node| self.known(node).len() == count))
    }

    /// Returns the process id of a node.
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
                print_line(format_args!("{}: {}\n{}", ended.line, ended.status, ended.stderr));
            }
            print_line(format_args!("{:?}", self.net.relay().map(sandbar_testnet::Relay::counts)));
        }
    }
}
