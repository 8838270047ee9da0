//! Seeds, and the split into rows to train on and rows to test on. Both depend on their arguments alone, so that a job
//! produces the same models with any number of workers, batches and partitions.

/// A generator of 64-bit numbers: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// Creates a generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Seed(seed)
    }

    /// Derives a seed from this one and `bytes`.
    pub fn with(self, bytes: &[u8]) -> Self {
        let mut state = self.0 ^ (bytes.len() as u64).wrapping_mul(GOLDEN);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            state = mix(state ^ u64::from_le_bytes(word)).wrapping_add(GOLDEN);
        }
        Seed(mix(state))
    }

    /// Returns the seed as a number.
    pub fn value(self) -> u64 {
        self.0
    }

    /// Returns the next number of the stream.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number below `bound`, by multiply and shift (Lemire 2019, without rejection: the bias is below 2⁻³²
    /// for bounds of 32 bits).
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from((self.next_u64() >> 32) as u32) * u64::from(bound)) >> 32) as u32
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Yields for each row of a group, in order, whether it is a test row. Selects an exact number of rows, each set of
/// them equally likely (selection sampling: Knuth, The Art of Computer Programming 3.4.2, algorithm S).
#[derive(Debug, Clone, Copy)]
pub struct Split {
    seed: Seed,
    /// Rows left to yield, and the number of test rows among them.
    rows: u32,
    test: u32,
}

impl Split {
    /// Creates a split of `rows` rows with `test` test rows, or all rows if there are fewer.
    pub fn new(seed: Seed, rows: u32, test: u32) -> Split {
        Split { seed, rows, test: test.min(rows) }
    }
}

impl Iterator for Split {
    type Item = bool;

    #[inline]
    fn next(&mut self) -> Option<bool> {
        let remaining = self.rows.checked_sub(1)?;
        let is_test = self.test > 0 && self.seed.below(self.rows) < self.test;
        self.test -= u32::from(is_test);
        self.rows = remaining;
        Some(is_test)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(seed: u64, rows: u32, test: u32) -> Vec<u32> {
        let split = Split::new(Seed::new(seed), rows, test);
        assert_eq!(split.count(), rows as usize);
        (0..).zip(split).filter_map(|(row, is_test)| is_test.then_some(row)).collect()
    }

    #[test]
    fn exactly_as_many_rows_are_for_testing() {
        for (rows, test) in [(0, 0), (1, 0), (1, 1), (4, 1), (10, 3), (1000, 250), (5, 9)] {
            for seed in 0..20 {
                assert_eq!(
                    chosen(seed, rows, test).len(),
                    test.min(rows) as usize,
                    "{rows} rows, {test} for testing, seed {seed}"
                );
            }
        }
    }

    /// Each count is binomial: 20,000 ± 122. The bounds are five standard deviations wide.
    #[test]
    fn each_row_is_as_likely_as_another() {
        let mut counts = [0u32; 8];
        (100_000..180_000).for_each(|seed| chosen(seed, 8, 2).iter().for_each(|row| counts[*row as usize] += 1));
        assert!(counts.iter().all(|c| (19_390..20_610).contains(c)), "{counts:?}");
    }

    #[test]
    fn seeds_differ_by_their_bytes() {
        let with = |bytes: &[u8]| Seed::new(201).with(bytes).value();
        assert_ne!(with(b"a"), with(b"a\0"));
        assert_ne!(with(b"ab"), with(b"ba"));
        assert_eq!(with(b"ab"), with(b"ab"));
    }
}
