//! Nodes with a delay between them.

use std::time::{Duration, Instant};

use sandbar_testnet::{Lab, LinkFaults, Net, print_line};
use sandbar_tests::{large_taxi_files, models, taxi_line};

use crate::alone;
use crate::nodes::{Nodes, until};

/// One-way delay; the round trip takes 2 ms.
const APART: Duration = Duration::from_millis(1);
const SEED: u64 = 11;

fn relayed(link: LinkFaults) -> Net {
    let net = Net::relayed(4, SEED);
    if let Some(relay) = net.relay() {
        relay.set_all(link);
    }
    net
}

#[test]
fn three_nodes_2_ms_apart_form_and_work() {
    let _alone = alone();
    let net = relayed(LinkFaults::of_delay(APART));
    let nodes = Nodes::start_at_once(net, 3);
    let duration = nodes.meet();
    print_line(format_args!("three nodes 2 ms apart knew each other after {duration:?}"));
    (0..3).for_each(|node| nodes.works(node));
    nodes.gives("tests/programs/tasks", "tree", &["depth=3", "width=10", "steps=1000"], 1000);
    nodes.gives("tests/programs/objects", "passes", &["objects=20", "rows=200000"], 20);
}

/// Training gives the same models, bit for bit, on any number of nodes.
#[test]
fn models_of_three_nodes_2_ms_apart_are_those_of_one() {
    let _alone = alone();
    let line = taxi_line(&large_taxi_files());
    let own = Lab::new();
    let alone = own.host(&line.iter().map(String::as_str).collect::<Vec<_>>()).expect_code(0).json();
    let nodes = Nodes::start_at_once(relayed(LinkFaults::of_delay(APART)), 3);
    nodes.meet();
    let json = nodes.submit(&line).json();
    let (models, expected) = [&nodes.lab, &own].map(|lab| models(&lab.path("models.parquet"))).into();
    assert_eq!((&alone["groups"], &json["groups"]), (&522.into(), &522.into()), "{alone} {json}");
    assert!(models == expected && json["elsewhere"].as_u64() > Some(0), "{json}");
    print_line(format_args!("{} of 522 groups were trained remotely", json["elsewhere"]));
}

#[test]
fn packet_faults_do_not_change_results() {
    let _alone = alone();
    let (share, reorder_by) = (0.005, Duration::from_millis(5));
    let link = LinkFaults {
        loss: share,
        duplicate: share,
        corrupt: share,
        reorder: share,
        reorder_by,
        ..LinkFaults::of_delay(APART)
    };
    let nodes = Nodes::start(relayed(LinkFaults { jitter: APART, ..link }), 3);
    nodes.meet();
    nodes.gives("tests/programs/tasks", "tree", &["depth=2", "width=10", "steps=1000"], 100);
    nodes.gives("tests/programs/objects", "passes", &["objects=10", "rows=100000"], 10);
    if let Some(relay) = nodes.net.relay() {
        let counts = relay.counts();
        assert!(counts.lost > 0 && counts.doubled > 0 && counts.damaged > 0 && counts.late > 0, "{counts:?}");
    }
}

#[test]
fn a_node_that_changes_its_address_reconnects() {
    let _alone = alone();
    let nodes = Nodes::start(relayed(LinkFaults::of_delay(APART)), 3);
    nodes.meet();
    let before = nodes.net.relay().map(|relay| {
        relay.move_node(1);
        relay.counts()
    });
    // Packets no longer reach the node on the connections that it made. It reconnects once their silence is noticed.
    let since = Instant::now();
    nodes.works(1);
    until("it reaches the founder", || nodes.known(1).len() == 3);
    let counts = nodes.net.relay().map(sandbar_testnet::Relay::counts);
    if let (Some(before), Some(counts)) = (before, counts) {
        print_line(format_args!("a node with a new address reconnected after {:?}", since.elapsed()));
        assert!(counts.lost > before.lost, "{before:?}, {counts:?}");
    }
    nodes.gives("tests/programs/objects", "passes", &["objects=10", "rows=100000"], 10);
}
