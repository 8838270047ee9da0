//! Tenants that take all they can get, beside a tenant with a small job.

use std::time::{Duration, Instant};

use sandbar_tests::{CommandOutput, component, print_line};
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::door::status_kib;
use crate::lifecycle::until;

/// A node with two tenants.
struct Neighbours {
    nodes: Nodes,
    address: String,
    tokens: [String; 2],
}

/// Tenants of the node.
const HOSTILE: usize = 0;
const VICTIM: usize = 1;
const NAMES: [&str; 2] = ["mallory", "ada"];
/// Time for a job of half a second: beside others it gets half of the machine, and the machine may be busy.
const VICTIM_TIME_MAX: Duration = Duration::from_secs(30);

impl Neighbours {
    fn start() -> Neighbours {
        Neighbours::start_with(&[])
    }

    fn start_with(more: &[&str]) -> Neighbours {
        let nodes = Nodes::start_with(1, more);
        let token = |name: &&str| nodes.lab.tenant_token("1", name, &[]);
        let (address, tokens) = (nodes.address("node-1"), NAMES.each_ref().map(token));
        Neighbours { nodes, address, tokens }
    }

    /// Runs a command of a tenant for the node.
    fn run(&self, tenant: usize, line: &[&str]) -> CommandOutput {
        let node = ["--node", &self.address, "--data", NAMES[tenant], "--token", &self.tokens[tenant]];
        self.nodes.lab.host(&[line, &node].concat())
    }

    /// Submits a program, and returns the id of its job.
    fn begin(&self, tenant: usize, program: &str, arguments: &[&str]) -> String {
        let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
        let line: Vec<&str> = ["submit", program, "--json", "--no-wait"].into_iter().chain(arguments).collect();
        self.run(tenant, &line).expect_code(0).json()["id"].as_str().expect("an id").to_owned()
    }

    fn stop(&self, tenant: usize, job: &str) {
        let node = ["--node", &self.address, "--data", NAMES[tenant]];
        self.nodes.lab.host(&[&["jobs", "stop", job][..], &node].concat()).expect_code(0);
    }

    fn submit(&self, tenant: usize, program: &str, arguments: &[&str]) -> Value {
        let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
        let line: Vec<&str> = ["submit", program, "--json"].into_iter().chain(arguments).collect();
        self.run(tenant, &line).expect_code(0).json()["result"].clone()
    }

    /// Runs the victim's job, and checks its result. Returns the time that it took.
    fn victim(&self) -> Duration {
        let (program, since) = (format!("{}#tree", component("tests/programs/tasks").display()), Instant::now());
        let result = self.submit(VICTIM, &program, &["depth=3", "width=4", "steps=2000000"]);
        assert_eq!(result, json!(64));
        since.elapsed()
    }
}

#[test]
fn a_tenant_gets_its_share_beside_any_other() {
    let neighbours = Neighbours::start();
    let tasks = component("tests/programs/tasks");
    let alone = neighbours.victim();
    for (task, arguments) in [
        ("hogs", &["count=4"][..]),
        ("urgent", &["count=100000", "steps=1000000"]),
        ("tree", &["depth=1", "width=100000", "steps=1000000"]),
        ("digs", &["depth=90"]),
        ("forks", &["depth=6", "width=4"]),
        ("endless", &["depth=4", "width=4"]),
        ("deeper", &["depth=0"]),
    ] {
        let job = neighbours.begin(HOSTILE, &format!("{}#{task}", tasks.display()), arguments);
        std::thread::sleep(Duration::from_millis(500));
        let beside = neighbours.victim();
        print_line(format_args!("{task}: {beside:?} beside it, {alone:?} alone"));
        assert!(beside < VICTIM_TIME_MAX, "{task}");
        neighbours.stop(HOSTILE, &job);
    }
}

/// They hold all processors after their job has ended, under names that are free for others.
#[test]
fn detached_actors_of_a_tenant_are_not_those_of_another() {
    let neighbours = Neighbours::start();
    let actors = component("tests/programs/actors");
    let task = |name: &str| format!("{}#{name}", actors.display());
    assert_eq!(neighbours.submit(HOSTILE, &task("meets"), &["name=shared", "number=5"]), json!(5));
    assert_eq!(neighbours.submit(VICTIM, &task("meets"), &["name=shared", "number=7"]), json!(7));
    assert_eq!(neighbours.submit(HOSTILE, &task("meets"), &["name=shared", "number=5"]), json!(10));
    assert_eq!(neighbours.submit(HOSTILE, &task("occupies"), &["actors=1"]), json!(0));
    assert!(neighbours.victim() < VICTIM_TIME_MAX);
    // Their tenant lists and ends them, and no other.
    let names = |tenant: usize| -> Vec<String> {
        let list = neighbours.run(tenant, &["actors", "list", "--json"]).expect_code(0).json();
        let actors = list["actors"].as_array().expect("actors").iter();
        actors
            .filter(|actor| actor["state"] != "dead")
            .map(|actor| actor["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (names(HOSTILE), names(VICTIM)),
        (vec!["hog 0".to_owned(), "shared".to_owned()], vec!["shared".to_owned()])
    );
    neighbours.run(VICTIM, &["actors", "stop", "hog 0"]).expect_code(1).expect_stderr(&["no such actor", "[no-actor]"]);
    neighbours.run(VICTIM, &["actors", "stop", "shared"]).expect_code(0);
    neighbours.run(HOSTILE, &["actors", "stop", "hog 0"]).expect_code(0);
    let is_stopped = || names(VICTIM).is_empty() && names(HOSTILE) == ["shared"];
    until("the actors have stopped", is_stopped);
    // Those of a removed tenant end with it.
    neighbours.nodes.lab.host(&["tenant", "remove", NAMES[HOSTILE], "--data", "1"]).expect_code(0);
    let line = ["actors", "list", "--json", "--node", &neighbours.address, "--data", "again", "--token"];
    let token = neighbours.nodes.lab.tenant_token("1", NAMES[HOSTILE], &[]);
    until("the removed tenant has no actors", || {
        let list = neighbours.nodes.lab.host(&[&line[..], &[&token]].concat());
        list.status.success() && list.json()["actors"].as_array().is_some_and(Vec::is_empty)
    });
}

/// A task that must end while host code runs for it ends alone: the tenant's other jobs, which share its worker, lose no
/// attempt.
#[test]
fn a_job_keeps_its_worker_beside_tasks_that_must_end() {
    for hostile in ["naps", "dozes", "sleeps_on", "multiplies_on"] {
        let mut neighbours = Neighbours::start_with(&["--cpus", "4"]);
        let task = |name: &str| format!("{}#{name}", component("tests/programs/tasks").display());
        neighbours.begin(VICTIM, &task(hostile), &[]);
        // Each computation takes longer than a worker may take to end a task.
        let result = neighbours.submit(VICTIM, &task("needs_its_worker"), &["times=1", "steps=5000000000"]);
        assert_eq!(result, json!(1), "{hostile}");
        let node = neighbours.nodes.running.remove(0);
        node.interrupt();
        let log = node.wait().stderr;
        assert!(!log.contains("is lost"), "{hostile}: {log}");
    }
}

/// A tenant with little memory can't fill that of the node, nor its disk.
#[test]
fn a_tenant_fills_no_more_memory_than_it_may() {
    const LIMIT_MIB: u64 = 32;
    let neighbours = Neighbours::start_with(&["--object-memory", "64MiB"]);
    let (mib, name) = (format!("{LIMIT_MIB}MiB"), NAMES[HOSTILE]);
    let limits = ["--memory-bytes-max", &mib, "--object-bytes-max", &mib];
    neighbours.nodes.lab.host(&[&["tenant", "set", name, "--data", "1"][..], &limits].concat()).expect_code(0);
    let process = neighbours.nodes.running[0].process();
    let task = |name: &str| format!("{}#{name}", component("tests/programs/tasks").display());
    neighbours.victim();
    let before_kib = status_kib(process, "VmRSS");
    for (bytes, name) in [("4000", "memory-bytes-max"), ("100000", "object-bytes-max")] {
        let error = neighbours.submit(HOSTILE, &task("fills"), &[&format!("bytes={bytes}")]);
        let text = error.as_str().expect("an error");
        assert!(text.contains(&format!("the limit is {} ({name})", LIMIT_MIB << 20)), "{text}");
        assert!(text.ends_with("[tenant-limit]"), "{text}");
    }
    for bytes in ["3000", "99000", "255000"] {
        let job = neighbours.begin(HOSTILE, &task("piles"), &[&format!("bytes={bytes}")]);
        std::thread::sleep(Duration::from_secs(2));
        neighbours.victim();
        neighbours.stop(HOSTILE, &job);
    }
    // Memory that was freed may not be returned at once, and the victim's job takes some.
    let added_kib = status_kib(process, "VmHWM").saturating_sub(before_kib);
    assert!(added_kib < (4 * LIMIT_MIB) << 10, "{added_kib} KiB");
}
