//! Damages valid input of each boundary at random. Failures that longer fuzzing found have table tests in the crates at
//! fault.
//!
//! `SANDBAR_SEED` repeats a run; `SANDBAR_BOUNDARY` selects one boundary, `SANDBAR_TIMES` sets the number of damaged
//! copies of each seed.

use std::path::Path;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use sandbar_fuzz::{NAMES, run, seeds};
use sandbar_seeds::{number_from_env, one_seed, seed_of_clock};

/// Returns the number of damaged copies of each seed. Files are slow to read, histories have hundreds of steps, and runtimes
/// start threads.
fn copies(name: &str) -> usize {
    match name {
        "file" | "events" | "request" | "text" => 150,
        "message" => 300,
        "peer" => 1_000,
        _ => 5_000,
    }
}

#[test]
fn each_boundary_has_a_target() {
    let folder = Path::new(env!("SANDBAR_MANIFEST")).with_file_name("tests/fuzz/targets");
    let targets = std::fs::read_dir(folder).expect("the folder of targets").flatten();
    let mut targets: Vec<_> = targets.map(|target| target.file_name().to_string_lossy().into_owned()).collect();
    targets.sort();
    assert_eq!(targets, NAMES.map(|name| format!("{name}.rs")));
}

#[test]
fn most_seeds_are_accepted() {
    for name in NAMES {
        let seeds = seeds(name);
        let accepted = seeds.iter().filter(|seed| run(name, seed)).count();
        // Some seeds are invalid on purpose, and some random histories run no task.
        let is_most = accepted + 2 >= seeds.len() || accepted * 4 >= seeds.len() * 3;
        assert!(accepted > 1 && is_most, "{name}: {accepted} of {} seeds are accepted", seeds.len());
    }
}

#[test]
fn damaged_input_is_rejected_or_harmless() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(one_seed(seed_of_clock()));
    let only = std::env::var("SANDBAR_BOUNDARY").ok();
    for name in NAMES.iter().filter(|name| only.as_deref().is_none_or(|only| only == **name)) {
        let seeds = seeds(name);
        for bytes in &seeds {
            for _ in 0..number_from_env("SANDBAR_TIMES").map_or(copies(name), |copies| copies as usize) {
                let mut damaged = bytes.clone();
                for _ in 0..1 + random.next_u32() % 4 {
                    damage(&mut damaged, &seeds, &mut random);
                }
                run(name, &damaged);
            }
        }
    }
}

fn damage(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Xoshiro256PlusPlus) {
    let mut below = |bound: usize| (random.next_u64() % bound.max(1) as u64) as usize;
    let at = below(bytes.len());
    match below(8) {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_within(at..),
        2 => {
            let other = &seeds[below(seeds.len())];
            let from = below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        3 => {
            let value = [0, 1, 0x7f, 0x80, 0xff][below(5)];
            let end = (at + 1 + below(8)).min(bytes.len());
            bytes.get_mut(at..end).into_iter().for_each(|bytes| bytes.fill(value));
        }
        _ => {
            let (bit, value) = (1 << below(8), below(256) as u8);
            let replaces_byte = below(2) == 0;
            bytes.get_mut(at).into_iter().for_each(|byte| *byte = if replaces_byte { value } else { *byte ^ bit });
        }
    }
}
