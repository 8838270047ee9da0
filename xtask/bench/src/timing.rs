//! How long something takes.

use std::time::{Duration, Instant};

use crate::Failure;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// For each figure of what takes microseconds.
    pub time: Duration,
    /// Rounds of calls of fresh sandboxes, and the calls of each.
    pub rounds: usize,
    pub calls: u64,
    /// Runs of a job, beside the one that warms the caches.
    pub runs: usize,
    /// Before each run of a job.
    pub pause: Duration,
    /// Rows of each month of `training`.
    pub rows: u64,
    /// Groups of `small-models`.
    pub groups: u64,
    /// Forests, of 8, 12, … trees.
    pub forests: usize,
    /// Groups of least squares.
    pub fits: usize,
    /// Tasks of a program, or calls of an actor, those of each of two parents, and those that wait at once.
    pub tasks: u64,
    pub children: u64,
    /// Children of each task of a tree that is cancelled, two deep.
    pub width: u64,
    pub queued: u64,
    /// Actors that are alive at once.
    pub actors: u64,
    /// Bytes of an object, how often it is stored, and tasks that read a little of it.
    pub object_bytes: u64,
    pub puts: u64,
    pub readers: u64,
    /// Bytes of the object that is moved between processes, and of the one that goes to many.
    pub moved_bytes: u64,
    pub broadcast_bytes: u64,
    /// Whether many sandboxes copy one large object each, which takes 3 GiB.
    pub many_copies: bool,
}

impl Effort {
    /// Enough to show that the benchmarks work, and not how fast anything is.
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
            many_copies: false,
        }
    }
}

/// Calls `f` until `time` is over, a few hundred times at most in a row between looks at the clock, and gives the
/// least seconds that a call took: what it takes when nothing else is in the way.
pub fn least(time: Duration, mut f: impl FnMut()) -> f64 {
    f();
    let started = Instant::now();
    f();
    let calls = (Duration::from_millis(2).as_nanos() / started.elapsed().as_nanos().max(1)).clamp(1, 500) as u32;
    let mut least = f64::INFINITY;
    let begun = Instant::now();
    while begun.elapsed() < time {
        let started = Instant::now();
        (0..calls).for_each(|_| f());
        least = least.min(started.elapsed().as_secs_f64() / f64::from(calls));
    }
    least
}

/// As [`least`], of several that are compared: for `time` each, a little of one after the other again and again, so
/// that all see the same machine.
pub fn least_in_turn<const N: usize>(time: Duration, mut all: [&mut dyn FnMut(); N]) -> [f64; N] {
    const ROUNDS: u32 = 20;
    let mut seconds = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (seconds, f) in seconds.iter_mut().zip(&mut all) {
            *seconds = seconds.min(least(time / ROUNDS, f));
        }
    }
    seconds
}

/// The seconds that `f` takes.
///
/// # Errors
/// Those of `f`.
pub fn seconds(f: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let started = Instant::now();
    f()?;
    Ok(started.elapsed().as_secs_f64())
}

/// The least of them; infinite when there is none.
pub fn fastest(seconds: Vec<f64>) -> f64 {
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}

/// The middle one.
///
/// # Panics
/// When there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
