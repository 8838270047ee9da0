//! The seeded random source: the same job, seed and input draw the same numbers,
//! whatever machine or worker runs them.

use std::cell::Cell;

use rand_xoshiro::rand_core::SeedableRng;
pub use rand_xoshiro::{Xoshiro256PlusPlus, rand_core};

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// A generator for the call at hand; two of them draw the same numbers.
pub fn rng() -> Xoshiro256PlusPlus {
    seeded(SEED.get())
}

/// A generator from a seed, such as [`crate::Group::seed`].
pub fn seeded(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// The seed of the call at hand.
pub(crate) fn at_hand() -> u64 {
    SEED.get()
}

/// Sets the seed; gives the one before.
pub(crate) fn seed(seed: u64) -> u64 {
    SEED.replace(seed)
}
