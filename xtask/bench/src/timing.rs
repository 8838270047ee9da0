//! Sizes of workloads, and measurement of durations.

use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Sizes of the workloads.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Duration of each measurement of operations that take microseconds.
    pub time: Duration,
    /// Rounds of calls in fresh sandboxes.
    pub rounds: usize,
    /// Calls of each round.
    pub calls: u64,
    /// Runs of a job after the one that warms the caches.
    pub runs: usize,
    /// Pause before each run of a job.
    pub pause: Duration,
    /// Rows of each month of `training`.
    pub rows: u64,
    /// Groups of `small-models`.
    pub groups: u64,
    /// Number of forests, of 8, 12, … trees.
    pub forests: usize,
    /// Groups of least squares.
    pub fits: usize,
    /// Tasks of a program, or calls of an actor.
    pub tasks: u64,
    /// Child tasks of each of two parents.
    pub children: u64,
    /// Children of each task of a cancelled tree, two levels deep.
    pub width: u64,
    /// Tasks that wait at once.
    pub queued: u64,
    /// Live actors.
    pub actors: u64,
    /// Bytes of a stored object.
    pub object_bytes: u64,
    /// Number of times that the object is stored.
    pub puts: u64,
    /// Tasks that read a few pages of the object.
    pub readers: u64,
    /// Bytes of the object that moves between processes.
    pub moved_bytes: u64,
    /// Bytes of the object that goes to many processes.
    pub broadcast_bytes: u64,
    /// Jobs of a tenant beside others, and tasks of each.
    pub victim_jobs: usize,
    pub victim_tasks: u64,
    /// Tenants that share a node, and the time for which their shares are measured.
    pub tenants: usize,
    pub shared: Duration,
    /// Whether to measure many sandboxes that each copy one large object, which takes 3 GiB.
    pub many_copies: bool,
}

impl Effort {
    /// Returns tiny workloads, which show only that the benchmarks work.
    pub fn brief() -> Effort {
        Effort {
            time: Duration::from_millis(5),
            rounds: 1,
            calls: 5_000,
            runs: 1,
            pause: Duration::ZERO,
            rows: 20_000,
            groups: 1_000,
            forests: 1,
            fits: 100,
            tasks: 1_000,
            children: 100,
            width: 5,
            queued: 2_000,
            actors: 50,
            object_bytes: 4 << 20,
            puts: 4,
            readers: 400,
            moved_bytes: 16 << 20,
            broadcast_bytes: 4 << 20,
            victim_jobs: 2,
            victim_tasks: 10,
            tenants: 3,
            shared: Duration::from_millis(300),
            many_copies: false,
        }
    }
}

/// Calls `f` for `time`, with at most a few hundred calls between two reads of the clock, and returns the minimum seconds
/// of a call: its cost without other load.
pub fn least(time: Duration, mut f: impl FnMut()) -> f64 {
    f();
    let started = Instant::now();
    f();
    let calls = (Duration::from_millis(2).as_nanos() / started.elapsed().as_nanos().max(1)).clamp(1, 500) as u32;
    let mut least = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed() < time {
        let started = Instant::now();
        (0..calls).for_each(|_| f());
        least = least.min(started.elapsed().as_secs_f64() / f64::from(calls));
    }
    least
}

/// Like [`least`] for several functions to compare: each runs for `time` in total, in short alternating rounds, so that other
/// load affects all.
pub fn least_alternating<const N: usize>(time: Duration, mut all: [&mut dyn FnMut(); N]) -> [f64; N] {
    const ROUNDS: u32 = 20;
    let mut seconds = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (seconds, f) in seconds.iter_mut().zip(&mut all) {
            *seconds = seconds.min(least(time / ROUNDS, f));
        }
    }
    seconds
}

/// Returns the seconds of `f`.
///
/// # Errors
/// Those of `f`.
pub fn seconds(f: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let started = Instant::now();
    f()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Returns the minimum; infinity if `seconds` is empty.
pub fn fastest(seconds: Vec<f64>) -> f64 {
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}

/// Returns the median.
///
/// # Panics
/// Panics if `values` is empty.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
