//! What is drawn from a seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Of a seed, and of what they are for: those of another purpose are others.
    pub fn new(seed: u64, purpose: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// From zero to before the end, which is no zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    /// From the one to the other, both included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True in so many of so many cases.
    pub fn chance(&mut self, of: u64, among: u64) -> bool {
        self.below(among) < of
    }

    /// One of some.
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }

    /// 32 bytes.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
