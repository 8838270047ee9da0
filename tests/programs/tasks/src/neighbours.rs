//! A job that needs its workers, and jobs that would take them from it.

use std::time::Duration;

use sandbar_guest::dense::{Dtype, Tensor};
use sandbar_guest::prelude::*;

use super::computes;
use super::sleeps::sleeps;

const HOUR_MS: u64 = 3_600_000;
const TINY: Duration = Duration::from_millis(1);

/// Computes for long, several times, and waits in between. No attempt may fail.
#[task]
fn needs_its_worker(times: u64, steps: u64) -> Result<u64, TaskError> {
    for _ in 0..times {
        computes::options().max_retries(0).submit(steps).get()?;
        sleeps::options().max_retries(0).submit(1).get()?;
    }
    Ok(times)
}

/// Submits tasks for ever, each of which exceeds its time limit.
fn for_ever(submit: impl Fn() -> ObjectRef<u64>) -> u64 {
    let mut ended = 0;
    loop {
        let tasks = [submit(), submit()];
        ended += tasks.iter().filter(|task| task.get().is_err()).count() as u64;
        if ended == u64::MAX {
            return ended;
        }
    }
}

/// Tasks that sleep for as long as they may run.
#[task]
fn naps() -> u64 {
    for_ever(|| sleeps::options().timeout(TINY).max_retries(0).submit(1))
}

/// Tasks that sleep for much longer than they may run.
#[task]
fn dozes() -> u64 {
    for_ever(|| sleeps::options().timeout(20 * TINY).max_retries(0).submit(HOUR_MS))
}

/// Tasks that sleep without a limit.
#[task]
fn sleeps_on() -> Result<u64, TaskError> {
    let asleep = [sleeps::submit(HOUR_MS), sleeps::submit(HOUR_MS)];
    Ok(get_all(&asleep)?.iter().sum())
}

/// Multiplies large matrices.
#[task]
fn multiplies(side: u64) -> Result<u64, String> {
    let matrix = Tensor::zeros(Dtype::F64, &[side as usize, side as usize])?;
    matrix.dot(&matrix)?;
    Ok(side)
}

/// Tasks that multiply for much longer than they may run.
#[task]
fn multiplies_on() -> u64 {
    for_ever(|| multiplies::options().timeout(TINY).max_retries(0).submit(4000))
}

/// Multiplies for longer than the task may run. Returns the error.
#[task]
fn multiplies_too_long() -> String {
    let task = multiplies::options().timeout(50 * TINY).max_retries(0).submit(6000);
    task.get().map_or_else(|error| error.fault.code.as_str().to_owned(), |side| side.to_string())
}

/// A number of this tenant, under a name that others may want.
struct Kept(u64);

#[actor]
impl Kept {
    pub fn new(number: u64) -> Kept {
        Kept(number)
    }

    pub fn add(&mut self, number: u64) -> u64 {
        self.0 += number;
        self.0
    }
}

/// Number of the values of `honest`, and of the numbers in each.
const VALUES: u64 = 4;
const NUMBERS: u64 = 4096;
/// Factor of the values.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn pattern(seed: u64) -> Vec<u64> {
    (0..NUMBERS).map(|at| (seed << 16 ^ at).wrapping_mul(FACTOR)).collect()
}

#[task]
fn sums_up(numbers: Vec<u64>, steps: u64) -> u64 {
    computes(steps);
    numbers.iter().fold(0, |sum: u64, number| sum.wrapping_add(*number))
}

/// Computes, stores and passes values, and reads a number of an actor that outlives the job. The result depends on `seed`
/// alone.
#[task]
fn honest(seed: u64, steps: u64) -> Result<u64, TaskError> {
    let kept = Kept::options().name("honest").detached().get_if_exists().submit(7);
    let values: Vec<_> = (0..VALUES).map(|at| put(&pattern(seed + at))).collect();
    let sums: Vec<_> = values.iter().map(|value| sums_up::submit(value, steps)).collect();
    let sum = get_all(&sums)?.iter().fold(0, |sum: u64, part| sum.wrapping_add(*part));
    let is_intact = get_all(&values)?.into_iter().zip(0..).all(|(value, at)| value == pattern(seed + at));
    Ok(if is_intact { (sum >> 16) + kept.add(0).get()? } else { 0 })
}
