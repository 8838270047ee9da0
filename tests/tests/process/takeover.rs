//! Jobs that tenants submit to a cluster, and their takeover when their node is lost.

use std::time::{Duration, Instant};

use sandbar_etcd::{Member, START_TIME_MAX, plan};
use sandbar_tests::{CommandOutput, Running, component, print_line};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::Nodes;
use crate::lifecycle::until;
use crate::soak::files_of_objects;

const OBJECTS: &str = "tests/programs/objects";

/// An etcd cluster of three members.
pub struct Etcd {
    members: Vec<Member>,
    _folder: TempDir,
}

impl Etcd {
    pub fn start() -> Etcd {
        let folder = TempDir::new().expect("a folder");
        let mut members = plan(3, &[], false, folder.path());
        members.iter_mut().for_each(Member::start);
        let since = Instant::now();
        while !members.iter().any(|member| member.leads().unwrap_or(false)) {
            assert!(since.elapsed() < START_TIME_MAX, "there is no leader: {}", members[0].log());
            std::thread::sleep(Duration::from_millis(50));
        }
        Etcd { members, _folder: folder }
    }

    pub fn address(&self) -> String {
        let members: Vec<String> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("etcd://{}", members.join(","))
    }
}

/// A tenant of a cluster.
pub struct Tenant<'a> {
    nodes: &'a Nodes,
    name: &'a str,
    pub token: String,
}

impl<'a> Tenant<'a> {
    pub fn new(nodes: &'a Nodes, name: &'a str) -> Tenant<'a> {
        Tenant { nodes, name, token: nodes.lab.tenant_token("1", name, &[]) }
    }

    /// Returns a tenant that has a token already.
    pub fn known(nodes: &'a Nodes, name: &'a str, token: &str) -> Tenant<'a> {
        Tenant { nodes, name, token: token.to_owned() }
    }

    /// Returns the name of the tenant's folder.
    pub fn folder(&self) -> &str {
        self.name
    }

    /// Starts a command through the node at this address.
    pub fn begin(&self, address: &str, line: &[&str]) -> Running {
        let own = ["--node", address, "--data", self.name, "--token", &self.token];
        self.nodes.lab.start(&[line, &own].concat())
    }

    pub fn host(&self, address: &str, line: &[&str]) -> CommandOutput {
        self.begin(address, line).wait()
    }

    pub fn status(&self, address: &str, job: &str) -> Value {
        self.host(address, &["jobs", "status", job, "--json"]).expect_code(0).json()
    }
}

#[test]
fn a_tenant_has_jobs_run_from_outside() {
    let nodes = Nodes::start(2);
    let ada = Tenant::new(&nodes, "ada");
    let [first, second] = ["node-1", "node-2"].map(|name| nodes.address(name));
    let tasks = component("tests/programs/tasks").display().to_string();
    let tree = format!("{tasks}#tree");
    // The client waits, and prints the result.
    let tree_line = ["submit", &tree, "--arg", "depth=2", "--arg", "width=10", "--arg", "steps=1000", "--json"];
    let ended = ada.host(&first, &tree_line).expect_code(0);
    assert_eq!(ended.json()["result"], json!(100), "{}", ended.stderr);
    // The client does not wait, and asks another node later.
    let line = ["submit", &tree, "--arg", "depth=2", "--arg", "width=10", "--arg", "steps=1000", "--no-wait"];
    let id = ada.host(&second, &line).expect_code(0).stdout.trim().to_owned();
    until("it has ended", || ada.status(&first, &id)["state"] == "succeeded");
    assert_eq!(ada.status(&second, &id)["result"], json!(100));
    let listed = ada.host(&first, &["jobs", "list", "--json"]).expect_code(0).json();
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(2));
    // The log, of a failed job too.
    let failing = format!("{tasks}#panics");
    let ended = ada.host(&first, &["submit", &failing]).expect_code(1);
    assert!(ended.stderr.contains("on purpose"), "{}", ended.stderr);
    // Stops a running job.
    let spins = format!("{tasks}#spins");
    let id = ada.host(&first, &["submit", &spins, "--no-wait"]).expect_code(0).stdout.trim().to_owned();
    ada.host(&second, &["jobs", "stop", &id]).expect_code(0).expect_stderr(&["stopped"]);
    // Other tenants see none of it.
    let bob = Tenant::new(&nodes, "bob");
    let listed = bob.host(&first, &["jobs", "list", "--json"]).expect_code(0).json();
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(0));
    for command in ["status", "stop", "logs"] {
        bob.host(&first, &["jobs", command, &id]).expect_code(1).expect_stderr(&["there is no job"]);
    }
    // Usage errors.
    for (line, expected_text) in [
        (&["submit", &format!("{tasks}#nothing")][..], "it has no task `nothing`"),
        (&["submit", &tree, "--arg", "depht=2"], "no argument `depht`"),
        (&["submit", &tree, "--arg", "depth=@/etc/passwd"], "`@PATH` needs type `File`"),
    ] {
        let ended = ada.host(&first, line).expect_code(1);
        assert!(ended.stderr.contains(expected_text), "`{expected_text}` is not in {}", ended.stderr);
    }
    nodes
        .lab
        .host(&["jobs", "list", "--node", &first, "--data", "z"])
        .expect_code(1)
        .expect_stderr(&["host tenant token"]);
}

#[test]
fn another_node_finishes_the_job_of_one_that_died() {
    let etcd = Etcd::start();
    let mut nodes = Nodes::start_with(3, &["--meta", &etcd.address()]);
    let program = format!("{}#outlives", component(OBJECTS).display());
    let second = nodes.address("node-2");
    let third = nodes.address("node-3");
    let line = ["submit", &program, "--arg", "objects=20", "--arg", "rows=20000", "--arg", "retries=3", "--json"];
    let (job, id, ada_token) = {
        let ada = Tenant::new(&nodes, "ada");
        // The founder admits the tenant.
        ada.host(&nodes.address("node-1"), &["jobs", "list"]).expect_code(0);
        let job = ada.begin(&second, &line);
        let listed = || ada.host(&third, &["jobs", "list", "--json"]).expect_code(0).json()["jobs"][0].clone();
        until("it runs", || listed()["state"] == "running");
        assert_eq!(listed()["node"], "node-2");
        (job, listed()["id"].as_str().expect("a name").to_owned(), ada.token)
    };
    std::thread::sleep(Duration::from_secs(1));
    nodes.kill("node-2");
    let since = Instant::now();
    let ada = Tenant::known(&nodes, "ada", &ada_token);
    until("another node takes the job over", || ada.status(&third, &id)["taken"] == 2);
    print_line(format_args!("taken over after {:?}", since.elapsed()));
    assert_ne!(ada.status(&third, &id)["node"], "node-2");
    nodes.add_with(&["--resource", "finish=1"]);
    let ended = job.wait().expect_code(0).expect_stderr(&["has taken the job over", "run before it was taken over"]);
    let json = ended.json();
    assert_eq!((&json["result"], &json["taken"]), (&json!(20), &json!(2)), "{}", ended.stderr);
    // Results that other nodes hold were not computed again.
    print_line(format_args!("{}", json["counts"]));
    assert!(json["counts"]["resumed"].as_u64() > Some(0), "{json}");
    assert_eq!(json["counts"]["takeovers"], 1, "{json}");
    assert!(ended.stderr.contains("1 takeover by another node"), "{}", ended.stderr);
    let ada = Tenant::known(&nodes, "ada", &ada_token);
    let status = ada.host(&third, &["jobs", "status", &id]).expect_code(0).stdout;
    assert!(status.contains("takeovers  1: its earlier nodes are lost"), "{status}");
    // No objects remain: each node has the component and the code of the program only.
    let left = || ["node-1", "node-3", "node-4"].map(|name| files_of_objects(nodes.process(name)));
    let since = Instant::now();
    while left().iter().any(|files| *files > 2) {
        assert!(since.elapsed() < Duration::from_secs(20), "files of objects that are left: {:?}", left());
        std::thread::sleep(Duration::from_millis(100));
    }
    // The new owner's log names the job's former node.
    drop(nodes.running.remove(1));
    let log = |node: Running| {
        node.interrupt();
        node.wait().stderr
    };
    let logs: Vec<String> = nodes.running.drain(..).map(log).collect();
    let expected_text = format!("WARN  job {} is taken over from node `node-2`, which is lost", &id[id.len() - 6..]);
    assert_eq!(logs.iter().filter(|log| log.contains(&expected_text)).count(), 1, "{expected_text}: {logs:#?}");
}

/// Counts and reports the tasks and objects that a job lost with a node that ran some of its tasks; the job's tasks are
/// visible from outside.
#[test]
fn the_death_of_a_node_is_in_the_summary_of_its_jobs() {
    let mut nodes = Nodes::start(2);
    let ada = Tenant::new(&nodes, "ada");
    let first = nodes.address("node-1");
    let program = format!("{}#tree_retried", component("tests/programs/tasks").display());
    let job = ["submit", &program, "--json", "--arg", "depth=1", "--arg", "width=64", "--arg", "steps=60000000"];
    let running = ada.begin(&first, &job);
    until("its tasks run", || {
        let tasks = ada.host(&first, &["list", "tasks", "--state", "running", "--json"]);
        tasks.status.success() && tasks.json()["total"].as_u64() >= Some(3)
    });
    let token = ada.token;
    std::thread::sleep(Duration::from_secs(1));
    nodes.kill("node-2");
    let ada = Tenant::known(&nodes, "ada", &token);
    let seen = |line: &[&str]| ada.host(&first, &[line, &["--json"]].concat());
    let ended = running.wait().expect_code(0).expect_stderr(&["1 node lost", "lost, 1 node"]);
    let json = ended.json();
    assert_eq!((&json["result"], &json["counts"]["lost_nodes"]), (&json!(64), &json!(1)), "{json}");
    assert!(json["counts"]["lost_attempts"].as_u64() >= Some(1), "{json}");
    // Asks the node that ran it, as for a local job.
    let summary = seen(&["summary", "tasks"]).expect_code(0).json();
    assert_eq!((&summary["names"][0]["succeeded"], &summary["state"]), (&json!(65), &json!("succeeded")), "{summary}");
    assert_eq!(seen(&["list", "tasks", "--limit", "5"]).expect_code(0).json()["total"], 65);
    let trace = ada.host(&first, &["timeline"]).expect_code(0).json();
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 65), "{trace}");
    ada.host(&first, &["list", "workers"]).expect_code(1).expect_stderr(&["shared with other tenants", "[query]"]);
    let bob = Tenant::new(&nodes, "bob");
    bob.host(&first, &["list", "tasks", "--job", json["id"].as_str().unwrap()]).expect_code(1);
}

#[test]
fn a_node_takes_up_its_own_jobs_when_it_comes_back() {
    let mut nodes = Nodes::start(1);
    let program = format!("{}#outlives", component(OBJECTS).display());
    let first = nodes.address("node-1");
    let line = ["submit", &program, "--arg", "objects=4", "--arg", "rows=1000", "--arg", "retries=3", "--no-wait"];
    let (id, token) = {
        let ada = Tenant::new(&nodes, "ada");
        (ada.host(&first, &line).expect_code(0).stdout.trim().to_owned(), ada.token)
    };
    std::thread::sleep(Duration::from_secs(1));
    nodes.kill("node-1");
    nodes.come_back("node-1", &first, &[]);
    nodes.add_with(&["--resource", "finish=1"]);
    let ada = Tenant::known(&nodes, "ada", &token);
    ada.host(&first, &["jobs", "logs", "-f", &id]).expect_code(0);
    let job = ada.status(&first, &id);
    assert_eq!((&job["state"], &job["result"], &job["taken"]), (&json!("succeeded"), &json!(4), &json!(2)), "{job}");
}
