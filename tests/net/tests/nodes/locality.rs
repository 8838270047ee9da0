//! Locality: tasks run on the nodes of their objects, and nodes that fetch an object pass it on.

use sandbar_testnet::{Net, print_line};

use crate::alone;
use crate::nodes::Nodes;

const OBJECTS: u64 = 100;
const ROWS: u64 = 500_000;

#[test]
fn objects_stay_where_they_are_and_tasks_come_to_them() {
    let _alone = alone();
    let nodes = Nodes::start(Net::switched(4), 3);
    nodes.meet();
    let before = moved(nodes.process(1));
    let (objects, rows) = (format!("objects={OBJECTS}"), format!("rows={ROWS}"));
    nodes.gives("tests/programs/objects", "visits", &[&objects, &rows, "place=node-1"], OBJECTS * ROWS);
    let (moved, all) = (moved(nodes.process(1)) - before, OBJECTS * ROWS * 8);
    let share = moved as f64 / all as f64 * 100.0;
    print_line(format_args!("{OBJECTS} tasks on objects of {all} bytes moved {moved} bytes, {share:.2}%, in all"));
    // On loopback, the counters include other processes of this machine.
    assert!(moved <= all / 100 || !nodes.net.is_real(), "{share}%");
}

#[test]
fn an_object_that_many_nodes_want_goes_from_one_to_the_next() {
    const OTHERS: u64 = 5;
    const ROWS: u64 = 32 << 20;
    let _alone = alone();
    let nodes = Nodes::start(Net::switched(OTHERS as usize + 2), OTHERS as usize + 1);
    nodes.meet();
    let before = sent(nodes.process(1));
    let (rows, others) = (format!("rows={ROWS}"), format!("nodes={OTHERS}"));
    nodes.gives("tests/programs/objects", "spreads", &[&rows, &others], OTHERS);
    let (sent, bytes) = (sent(nodes.process(1)) - before, ROWS / 4 * 8);
    let times = sent as f64 / bytes as f64;
    print_line(format_args!("{bytes} bytes went to {OTHERS} nodes: their first node sent them {times:.2} times"));
    assert!(times <= 2.5 || !nodes.net.is_real(), "{times} times");
}

/// Returns the bytes received and sent in a process's network namespace.
fn moved(process: u32) -> u64 {
    carried(process).iter().sum()
}

/// Returns the bytes sent in a process's network namespace.
fn sent(process: u32) -> u64 {
    carried(process)[1]
}

fn carried(process: u32) -> [u64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev")).expect("it can be read");
    let lines = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    let bytes = |numbers: &str| {
        let all: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        [all[0], all[8]]
    };
    lines.map(|(_, numbers)| bytes(numbers)).fold([0; 2], |sum, line| [sum[0] + line[0], sum[1] + line[1]])
}
