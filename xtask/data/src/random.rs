//! Random numbers from a seed, equal on every machine and in every version.

/// Returns one step of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): a bijection
/// that decorrelates close inputs.
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Derives a seed from numbers that identify its use.
pub fn seed_of(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |seed, part| mix(seed ^ part))
}

/// xoshiro256++ 1.0 (Blackman and Vigna, public domain).
pub struct Random([u64; 4]);

impl Random {
    /// Creates the generator of `seed`. Different seeds give independent streams.
    pub fn new(seed: u64) -> Self {
        let [a, b, c] = [mix(seed), mix(mix(seed)), mix(mix(mix(seed)))];
        Self([seed, a, b, c | 1])
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a uniform number in [0, 1), in steps of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// Returns a uniform number in 0..n, with a bias of at most n in 2⁶⁴.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns true once in `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a nearly normal number: mean 0, deviation 1, within ±3.5.
    pub fn normal(&mut self) -> f64 {
        normal(self.bits())
    }
}

/// Returns the 53 upper bits as a number in [0, 1).
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Returns the scaled sum of four uniform numbers of 16 bits (Irwin–Hall), which approximates a normal number without a
/// logarithm.
pub fn normal(bits: u64) -> f64 {
    const MEAN: f64 = 4.0 * 65_535.0 / 2.0;
    // Square root of four times the variance of one number, (2³² − 1)/12.
    const DEVIATION: f64 = 37_837.227;
    let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
    (sum as f64 - MEAN) / DEVIATION
}

/// Weighted distribution of indices, drawn in constant time (Walker's alias method, in Vose's form).
pub struct WeightedAliasIndex {
    /// Probability of staying in a cell, times 2⁵³.
    threshold: Vec<f64>,
    alias: Vec<u32>,
}

impl WeightedAliasIndex {
    /// Prepares the distribution. `weights` are positive and need not sum to one.
    pub fn new(weights: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();
        let count = weights.len();
        let mut threshold: Vec<f64> = weights.iter().map(|weight| weight * count as f64 / total).collect();
        let mut alias: Vec<u32> = (0..count as u32).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..count).partition(|&cell| threshold[cell] < 1.0);
        while let (Some(poor), Some(&rich)) = (small.pop(), large.last()) {
            alias[poor] = rich as u32;
            threshold[rich] -= 1.0 - threshold[poor];
            if threshold[rich] < 1.0 {
                small.extend(large.pop());
            }
        }
        Self { threshold, alias }
    }

    /// Draws an index into the weights.
    pub fn draw(&self, random: &mut Random) -> usize {
        let bits = random.bits();
        // The upper 32 bits choose the cell, the lower 32 whether to stay in it.
        let cell = (((bits >> 32) * self.threshold.len() as u64) >> 32) as usize;
        let coin = (bits & 0xffff_ffff) as f64 / (1_u64 << 32) as f64;
        if coin < self.threshold[cell] { cell } else { self.alias[cell] as usize }
    }
}

/// A permutation of 0..n, computed index by index: a Feistel network over the next power of four, applied until its output
/// is in range (Black and Rogaway: "Ciphers with arbitrary finite domains", 2002).
pub struct Shuffle {
    n: u64,
    half_bits: u32,
    key: u64,
}

impl Shuffle {
    /// Creates the permutation of 0..`n` with this key; `n` is at least 1 and below 2⁶².
    pub fn new(n: u64, key: u64) -> Self {
        let bits = u64::BITS - (n - 1).leading_zeros();
        Self { n, half_bits: bits.div_ceil(2).max(1), key }
    }

    /// Returns the new position of `index`, which is below n.
    pub fn at(&self, index: u64) -> u64 {
        let mut x = self.round_trip(index);
        while x >= self.n {
            x = self.round_trip(x);
        }
        x
    }

    fn round_trip(&self, x: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(self.key ^ (round << 60) ^ right) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_never_changes() {
        // Outputs of the authors' C programs.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        let mut random = Random([1, 2, 3, 4]);
        let first: Vec<u64> = (0..4).map(|_| random.bits()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut random = Random::new(7);
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn weighted_draws_follow_their_weights() {
        let weighted = WeightedAliasIndex::new(&[1.0, 2.0, 5.0]);
        let mut random = Random::new(3);
        let mut counts = [0_u32; 3];
        for _ in 0..80_000 {
            counts[weighted.draw(&mut random)] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000_i64, 20_000, 50_000]) {
            assert!((i64::from(count) - expected).abs() < 600, "{counts:?}");
        }
    }

    #[test]
    fn a_shuffle_hits_every_index_once() {
        for n in [1, 2, 3, 5, 64, 1_000] {
            let shuffle = Shuffle::new(n, 42);
            let mut seen: Vec<u64> = (0..n).map(|index| shuffle.at(index)).collect();
            assert!(n < 5 || seen.windows(2).any(|pair| pair[0] > pair[1]), "{n} is not shuffled");
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }
}
