//! Partitions a node that runs tasks for others, then heals the partition. `SANDBAR_CUT_S` lengthens the partition, in
//! seconds.

use std::collections::BTreeSet;
use std::time::Duration;

use sandbar_testnet::{LinkFaults, Net, component, print_line};
use serde_json::Value;

use crate::alone;
use crate::nodes::{Nodes, until};

/// Longer than the silence after which a node counts as dead.
const SILENCE: Duration = Duration::from_millis(5_500);
/// Tasks of the job, 0.1 to 0.2 s each.
const TASKS: usize = 80;
/// The partitioned node.
const CUT: usize = 1;

/// Partitions a node while a job runs, until `until_healed` returns. Checks the job, its tasks and the cluster.
#[track_caller]
fn check(name: &str, cut: impl Fn(&Net, bool), until_healed: impl Fn(&Nodes)) {
    let _alone = alone();
    let net = Net::relayed(4, 23);
    if let Some(relay) = net.relay() {
        relay.set_all(LinkFaults::of_delay(Duration::from_millis(1)));
    }
    let nodes = Nodes::start(net, 3);
    nodes.meet();
    nodes.works(CUT);
    let width = format!("width={TASKS}");
    let job = nodes.begin(&component("tests/programs/tasks"), "tree", &["depth=1", &width, "steps=100000000"]);
    until("some of its tasks have run", || {
        tasks(&nodes).iter().filter(|task| task["state"] == "succeeded").count() > TASKS / 8
    });
    cut(&nodes.net, true);
    until_healed(&nodes);
    cut(&nodes.net, false);
    // Each task succeeded once.
    let ended = job.wait().expect_code(0);
    assert_eq!(ended.json()["result"], TASKS, "{}", ended.stderr);
    let all = tasks(&nodes);
    let ids: BTreeSet<&str> = all.iter().filter_map(|task| task["id"].as_str()).collect();
    assert_eq!((all.len(), ids.len()), (TASKS + 1, TASKS + 1));
    assert!(all.iter().all(|task| task["state"] == "succeeded"), "{all:?}");
    // Tasks of the partitioned node were retried on others.
    let again = all.iter().filter(|task| task["attempts"].as_u64() > Some(1)).count();
    assert!(again > 0 || !nodes.net.is_real(), "{all:?}");
    // The node is a member again.
    let duration = nodes.meet();
    nodes.works(CUT);
    print_line(format_args!(
        "{name}: {again} tasks were retried, the job took {:?}, all met after {duration:?}",
        ended.duration
    ));
}

/// Returns the tasks of the job that was submitted last.
fn tasks(nodes: &Nodes) -> Vec<Value> {
    let listed = nodes.lab.host(&["list", "tasks", "--name", "tree", "--limit", "1000", "--json"]);
    match listed.status.code() {
        Some(0) => listed.json()["tasks"].as_array().expect("a list").clone(),
        _ => Vec::new(),
    }
}

fn silence(_: &Nodes) {
    std::thread::sleep(SILENCE + longer());
}

/// Additional length of the partition, from `SANDBAR_CUT_S`.
fn longer() -> Duration {
    let text = std::env::var("SANDBAR_CUT_S").unwrap_or_default();
    text.parse().map_or(Duration::ZERO, Duration::from_secs)
}

#[test]
fn a_node_that_was_removed_while_disconnected_rejoins() {
    let cut = |net: &Net, is_cut: bool| net.join(CUT, !is_cut).unwrap();
    check("disconnected", cut, |nodes| {
        let is_disconnected = || !nodes.net.is_real() || nodes.known(0).len() == 2;
        until("the node is no member any more", is_disconnected);
        std::thread::sleep(longer());
    });
}

#[test]
fn a_node_that_can_not_send_rejoins() {
    let cut = |net: &Net, is_cut: bool| {
        if let Some(relay) = net.relay() {
            relay.change_from(CUT, |link| link.cut = is_cut);
        }
    };
    check("can't send", cut, silence);
}

#[test]
fn a_node_that_can_not_receive_rejoins() {
    let cut = |net: &Net, is_cut: bool| {
        if let Some(relay) = net.relay() {
            relay.change_to(CUT, |link| link.cut = is_cut);
        }
    };
    check("can't receive", cut, silence);
}
