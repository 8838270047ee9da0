//! Tasks go to where their objects are.

use sandbar_testnet::{Net, say};

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
    say(format_args!("{OBJECTS} tasks on objects of {all} bytes moved {moved} bytes, {share:.2}%, in all"));
    // On loopback others of this machine send, too.
    assert!(moved <= all / 100 || !nodes.net.is_real(), "{share}%");
}

/// Bytes that came to and went from where a process is.
fn moved(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev")).expect("it can be read");
    let lines = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    let bytes = |numbers: &str| {
        let all: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        all[0] + all[8]
    };
    lines.map(|(_, numbers)| bytes(numbers)).sum()
}
