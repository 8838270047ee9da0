//! Tenants that can't reach every node.

use std::time::Duration;

use sandbar_testnet::{Net, component};

use crate::alone;
use crate::nodes::{Nodes, until};

/// Makes the task run for longer than the follower tries to reach its node.
const STEPS: &str = "steps=4000000000";

#[test]
fn a_tenant_that_can_not_reach_a_jobs_node_gets_its_state_from_another() {
    let _alone = alone();
    let (node, client) = (1, 2);
    let nodes = Nodes::start(Net::relayed(3, 29), 2);
    nodes.meet();
    let ada = nodes.lab.tenant_token("0", "ada", &[]);
    let line = |at: usize, line: &[&str]| {
        let address = nodes.at(at);
        let own = ["--node", &address, "--token", &ada];
        nodes.run(client, "ada", false, &[line, &own].concat())
    };
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let job = ["submit", &program, "--no-wait", "--arg", "depth=1", "--arg", "width=1", "--arg", STEPS];
    line(0, &["jobs", "list"]).wait().expect_code(0);
    let id = line(node, &job).wait().expect_code(0).stdout.trim().to_owned();
    if let Some(relay) = nodes.net.relay() {
        relay.set(client, node, sandbar_testnet::LinkFaults { cut: true, ..Default::default() });
    }
    let mut follows = line(0, &["jobs", "logs", "-f", &id]);
    // Without a partition the follower would keep waiting as well.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!follows.has_ended());
    let status = || line(0, &["jobs", "status", &id, "--json"]).wait().expect_code(0).json();
    until("the job has ended", || status()["state"] != "running");
    assert_eq!((&status()["result"], &status()["taken"], &status()["node"]), (&1.into(), &1.into(), &"node-1".into()));
    let ended = follows.wait().expect_code(0);
    if nodes.net.is_real() {
        ended.expect_stderr(&["can't reach the node at"]);
    }
}
