//! The seeded random source: the same job, seed and input draw the same numbers, on any machine and worker.

use std::cell::Cell;

use rand_xoshiro::rand_core::SeedableRng;
pub use rand_xoshiro::{Xoshiro256PlusPlus, rand_core};

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Returns a generator for the current call. Two generators of a call draw the same numbers.
pub fn rng() -> Xoshiro256PlusPlus {
    seeded(SEED.get())
}

/// Returns a generator from a seed, such as [`crate::Group::seed`].
pub fn seeded(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// The seed of the current call.
pub(crate) fn current_seed() -> u64 {
    SEED.get()
}

/// Sets the seed. Returns the previous one.
pub(crate) fn set_seed(seed: u64) -> u64 {
    SEED.replace(seed)
}
