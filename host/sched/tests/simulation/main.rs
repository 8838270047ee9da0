//! Random histories of clusters: after each event, the scheduler's state and actions are compared with a simple model.
//!
//! `SANDBAR_SEED=7 cargo test --release -p sandbar-sched --test simulation -- --nocapture` replays one history and
//! prints it. `SANDBAR_SEEDS` sets the number of histories otherwise.

mod actors;
mod borrow;
mod check;
mod cluster;
mod groups;
mod lineage;
mod model;
mod peers;
mod reservations;
mod settle;
mod streams;
mod tasks;
mod work;

use cluster::History;
use sandbar_seeds::{chosen_seed, for_each_seed_in_parallel, seeds};

const SEEDS: u64 = 10_000;

#[test]
fn histories_match_the_model() {
    let print = chosen_seed().is_some();
    for_each_seed_in_parallel(seeds(SEEDS), |seed| History::new(seed, print).run());
}

#[test]
fn the_same_seed_gives_the_same_actions() {
    for seed in 0..100 {
        assert_eq!(History::trace(seed), History::trace(seed), "seed {seed}");
    }
}

/// Checks that the histories cover every kind of event and action.
#[test]
fn a_bit_of_everything_happens() {
    let lines: Vec<String> = (0..500).flat_map(History::trace).collect();
    for (event_text, at_least) in [
        ("attempt: Attempt(2)", 5),
        ("Recall {", 50),
        ("Recalled {", 50),
        ("Interrupt {", 200),
        ("Deliver {", 500),
        ("Refuse {", 100),
        ("Drop {", 1000),
        ("Withdraw {", 10),
        ("StartWorker {", 50),
        ("DeadlockDetected {", 50),
        ("Checkpointed {", 20),
        ("ObjectLost {", 300),
        ("is reconstructed", 50),
        ("is unrecoverable", 20),
        ("rerun: true", 40),
        ("Yielded {", 200),
        ("DeliverItem {", 100),
        ("Credit {", 50),
        ("Promised {", 50),
        ("value: Ok", 50),
        ("value: Err", 10),
        ("GroupCreated {", 50),
        ("GroupRemoved {", 20),
        ("strategy: Group {", 100),
        ("local_only: true", 20),
        ("NodeLoad {", 200),
        ("ReserveBundles {", 100),
        ("ReserveReply {", 100),
        ("granted: true", 50),
        ("granted: false", 20),
        ("ReleaseBundles {", 50),
        ("result: Ok", 50),
        ("result: Err", 20),
        ("remote: true", 100),
        ("ProxyTaskStarted {", 200),
        ("Borrowed {", 200),
        ("ActorBorrowed {", 100),
        ("BorrowResolved {", 100),
        ("FetchBorrowed {", 100),
        ("ReleaseBorrow {", 100),
        ("its node was lost", 10),
        ("LeaseRequested {", 200),
    ] {
        let count = lines.iter().filter(|line| line.contains(event_text)).count();
        assert!(count >= at_least, "`{event_text}` occurs {count} times, of {} lines", lines.len());
    }
}
