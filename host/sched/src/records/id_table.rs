//! Hash tables by id. No decision may depend on their iteration order.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash table with ids as keys.
pub(crate) type IdTable<K, T> = HashMap<K, T, BuildHasherDefault<IdHasher>>;

/// Hasher for ids. It keeps eight consecutive ids adjacent and scatters the groups of eight: ids count up, and tasks
/// that were submitted together are accessed together.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

const ROW_BITS: u32 = 3;

impl Hasher for IdHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let row = (number >> ROW_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let within = number & ((1 << ROW_BITS) - 1);
        // hashbrown uses the lowest bits and the seven highest ones.
        self.0 = ((row ^ (row >> 32)) << ROW_BITS | within) ^ within << 57;
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
