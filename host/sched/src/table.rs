//! Tables by number. Nothing is decided by the order in which they are gone through.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by a number.
pub(crate) type Table<K, T> = HashMap<K, T, BuildHasherDefault<Mix>>;

/// Eight numbers in a row lie beside each other, and each eight anywhere: whoever gives out numbers counts up, and what
/// comes together is asked for together.
#[derive(Debug, Default)]
pub(crate) struct Mix(u64);

const ROW_BITS: u32 = 3;

impl Hasher for Mix {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let row = (number >> ROW_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let within = number & ((1 << ROW_BITS) - 1);
        // The table looks at the lowest bits and at the seven highest.
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
