//! Simulation of whole nodes: engines with their schedulers and value stores, simulated workers, disks and a network, driven
//! by a seed. A seed replays exactly.
//!
//! Faults: workers and nodes crash, connections break, disks are slow and fail, stores are full, workers can't be started,
//! a node lies to the others.
//! Invariants: each consumer gets the value that its producer computes; a job has the expected result, or an error that the
//! faults explain; no reference is leaked; memory stays within its limit; the engines have no state of jobs that have ended;
//! each job ends once faults have ended.

mod checks;
mod driver;
mod leases;
mod liar;
mod network;
mod program;
mod worker;
mod world;

use std::collections::BTreeSet;

use sandbar_core::Seed;
use sandbar_seeds::{chosen_seed, for_each_seed, seeds_from};

pub(super) use self::world::idle_engine;
use self::world::{Faults, World};

/// Number of simulations, if `SANDBAR_SEEDS` does not set it.
const SEEDS: u64 = 300;

/// Runs simulations of the seeds from `first` on, or of `SANDBAR_SEED` only.
fn simulate(first: u64, faults: impl Fn(&mut Seed) -> Faults) {
    let print = chosen_seed().is_some();
    for_each_seed(seeds_from(first, SEEDS), |seed| {
        let mut random = Seed::new(seed);
        let faults = faults(&mut random);
        if let Err(violation) = World::new(random, faults, print).run() {
            panic!("{faults:?}: {violation}");
        }
    });
}

#[test]
fn one_node_without_faults() {
    simulate(0, |_| Faults { nodes: 1, ..Faults::default() });
}

#[test]
fn nodes_without_faults() {
    simulate(1_000_000, |random| Faults { nodes: 2 + random.below(2), ..Faults::default() });
}

#[test]
fn nodes_with_faults() {
    simulate(2_000_000, all_faults);
}

#[test]
fn nodes_with_a_liar() {
    simulate(3_000_000, |random| Faults { nodes: 2 + random.below(2), has_liar: true, ..Faults::default() });
}

fn all_faults(random: &mut Seed) -> Faults {
    Faults {
        nodes: 1 + random.below(3),
        worker_crashes: random.below(4),
        node_crashes: random.below(2),
        disconnects: random.below(3),
        disk_fails: random.below(2) * 20,
        start_fails: random.below(2) * 10,
        small_memory: random.below(2) == 0,
        has_liar: false,
    }
}

#[test]
fn a_seed_replays_exactly() {
    let run = |seed| {
        let mut random = Seed::new(seed);
        let faults = all_faults(&mut random);
        World::new(random, faults, false).run().unwrap()
    };
    let hashes: Vec<u64> = (2_000_000..2_000_030).map(run).collect();
    for (seed, hash) in (2_000_000..).zip(&hashes) {
        assert_eq!(run(seed), *hash, "seed {seed}");
    }
    let all: BTreeSet<&u64> = hashes.iter().collect();
    assert!(all.len() > 25, "{hashes:?}");
}
