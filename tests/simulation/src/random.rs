//! Random numbers from a seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Creates a generator for a purpose. Different purposes get independent numbers from the same seed.
    pub fn new(seed: u64, purpose: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    /// Returns a number from `min` to `max`, both included.
    pub fn within(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    /// Returns true in `count` of `among` cases.
    pub fn chance(&mut self, count: u64, among: u64) -> bool {
        self.below(among) < count
    }

    /// Returns one of the items.
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }

    /// Returns 32 bytes.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
