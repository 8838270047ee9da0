//! Histories of nodes over a simulated network. The guarantees of `host/wire` are checked at every step of each
//! history.
//!
//! `cd tests/simulation && SANDBAR_SEED=7 cargo test --release -- --nocapture` replays one history and prints it;
//! `SANDBAR_SEEDS` sets how many are tried otherwise.

#[cfg(not(tokio_unstable))]
compile_error!("build in tests/simulation: its .cargo/config.toml makes tokio use a seed");

mod command;
mod fetches;
mod history;
mod identities;
mod liar;
mod member;
mod plan;
mod requests;
mod scenario;
mod store;
mod world;

use history::History;
use sandbar_seeds::{chosen_seed, for_each_seed_in_parallel, seeds};

const SEEDS: u64 = 1_500;

#[test]
fn invariants_hold_in_every_history() {
    let print = chosen_seed().is_some();
    for_each_seed_in_parallel(seeds(SEEDS), |seed| {
        let history = History::new(seed, print);
        let _printed = print.then(|| PrintOnDrop(history.net()));
        history.run();
    });
}

/// Compares every datagram: its sender, time, length and delivery.
#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..30 {
        let [first, second] = [(); 2].map(|()| History::new(seed, true).run());
        let differ = first.lines().iter().zip(second.lines()).position(|(a, b)| *a != b);
        assert_eq!(differ.map(|at| (first.lines()[at].clone(), second.lines()[at].clone())), None, "seed {seed}");
        assert_eq!(first.fingerprint(), second.fingerprint(), "seed {seed}");
    }
}

/// Histories must cover all kinds of events, or the checks mean nothing.
#[test]
fn a_bit_of_everything_happens() {
    let lines: Vec<String> = (0..200).flat_map(|seed| History::new(seed, true).run().lines()).collect();
    let rare = [
        ("joins: ok", 50),
        ("joins with a bad token: token-expired", 5),
        ("joins with a bad token: token-other-role", 5),
        ("joins with a bad token: untrusted", 5),
        ("renews: ok", 20),
        ("Crash(", 50),
        ("Partition(", 10),
        ("PartitionOneWay(", 5),
        ("Hold(", 5),
        (": silent", 20),
        (": unreachable", 20),
        (": stopping", 1),
        (": restarted", 5),
        (": replaced", 3),
        ("Damaged(", 30),
        ("Truncated(", 8),
        ("Duplicated(", 200),
        ("Lost", 500),
        ("failed: []", 300),
        ("OtherRoot", 10),
        ("OtherLength", 10),
        ("BadChunk", 5),
        ("BadNodes", 3),
        ("Protocol(", 3),
        ("Stalled {", 3),
        ("Lost(", 3),
        ("does not have the object", 20),
        ("fetches wait for memory already", 3),
        ("bytes, at most", 3),
        ("its prefetch released its memory", 1),
        ("has an answer", 1_000),
        ("is down", 300),
    ];
    let rare = rare.map(|(event_text, at_least)| {
        (event_text, lines.iter().filter(|line| line.contains(event_text)).count(), at_least)
    });
    let rare: Vec<_> = rare.into_iter().filter(|(_, count, at_least)| count < at_least).collect();
    assert!(rare.is_empty(), "what occurs so often, and should so often, in {} lines: {rare:?}", lines.len());
}

/// Prints the events when dropped, also on panic.
struct PrintOnDrop(sandbar_simulation::Net);

impl Drop for PrintOnDrop {
    fn drop(&mut self) {
        self.0.lines().iter().for_each(|line| eprintln!("{line}"));
    }
}
