//! A node whose link is slow.

use std::time::{Duration, Instant};

use sandbar_testnet::{Net, Rate, component, print_line};

use crate::alone;
use crate::nodes::{Nodes, until};

const SLOW: usize = 1;
/// A node without a job has about 30 MB of private memory, and QUIC may buffer 64 MiB for each peer.
const OWN_BYTES_MAX: u64 = 512 << 20;

/// Returns the private (anonymous) memory of a process, in bytes.
fn own_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_slow_link_delays_only_its_own_transfers() {
    let _alone = alone();
    let nodes = Nodes::start(Net::switched(4), 3);
    nodes.meet();
    nodes.net.rate(SLOW, Rate::Bits(1_000_000)).unwrap();
    // Several megabytes have to leave the slow node, which takes minutes.
    let mut job = nodes.begin(&component("tests/programs/objects"), "passes", &["objects=60", "rows=200000"]);
    let (since, mut longest, mut own) = (Instant::now(), Duration::ZERO, 0);
    while since.elapsed() < Duration::from_secs(5) {
        for node in 0..3 {
            let requested_at = Instant::now();
            // The slow node answers from the founder's list, over the link that the objects use.
            assert!(nodes.known(node).iter().filter(|member| member["slots"] != 0).count() >= 3, "{node}");
            longest = longest.max(requested_at.elapsed());
            own = own.max(own_bytes(nodes.process(node)));
        }
    }
    print_line(format_args!("beside a link of 1 Mbit/s nodes answered within {longest:?}, and had {} MiB", own >> 20));
    assert!(longest < Duration::from_secs(10) && own < OWN_BYTES_MAX, "{longest:?}, {own}");
    assert!(!job.has_ended() || !nodes.net.is_real(), "nothing went over the slow link");
    drop(job);
    nodes.net.rate(SLOW, Rate::Full).unwrap();
    until("the submitter has left the cluster", || nodes.known(0).len() == 3);
    (0..3).for_each(|node| nodes.works(node));
    nodes.gives("tests/programs/objects", "passes", &["objects=20", "rows=200000"], 20);
}
