//! Seeds of random tests. `SANDBAR_SEED` selects the only seed of a test, `SANDBAR_SEEDS` the number of seeds otherwise.
//! A failed test prints its seed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the number in an environment variable, or `None` if the variable is not set.
///
/// # Panics
/// Panics if the variable is not a number.
pub fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Returns the seed that `SANDBAR_SEED` selects.
pub fn chosen_seed() -> Option<u64> {
    number_from_env("SANDBAR_SEED")
}

/// Returns the seed of a test that runs only one, and prints it.
pub fn one_seed(default: u64) -> u64 {
    let seed = chosen_seed().unwrap_or(default);
    eprintln!("SANDBAR_SEED={seed} repeats this run");
    seed
}

/// Returns the time in nanoseconds, as a seed that differs between runs.
pub fn seed_of_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Returns the seeds of a test, `count` by default.
pub fn seeds(count: u64) -> Range<u64> {
    seeds_from(0, count)
}

/// Like [`seeds`], with another first seed.
pub fn seeds_from(first: u64, count: u64) -> Range<u64> {
    match chosen_seed() {
        Some(seed) => seed..seed + 1,
        None => first..first + number_from_env("SANDBAR_SEEDS").unwrap_or(count),
    }
}

/// Runs a test of each seed, one after another.
pub fn for_each_seed(seeds: Range<u64>, mut run: impl FnMut(u64)) {
    for seed in seeds {
        let _printed = PrintSeedOnPanic(seed);
        run(seed);
    }
}

/// Runs a test of each seed, on all processors.
///
/// # Panics
/// Panics with a seed whose test panics.
pub fn for_each_seed_in_parallel(seeds: Range<u64>, run: impl Fn(u64) + Sync) {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX));
    let run_some = || {
        while failed.load(Relaxed) == u64::MAX {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                break;
            }
            if catch_unwind(AssertUnwindSafe(|| run(seed))).is_err() {
                failed.fetch_min(seed, Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run_some))));
    let failed = failed.into_inner();
    assert!(failed == u64::MAX, "SANDBAR_SEED={failed} replays it");
}

/// Prints a seed if the thread panics while this value exists.
#[derive(Debug)]
pub struct PrintSeedOnPanic(pub u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SANDBAR_SEED={} replays it", self.0);
        }
    }
}
