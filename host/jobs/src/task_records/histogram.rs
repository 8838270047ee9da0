//! Histogram with logarithmic buckets, whose quantiles are exact to one eighth.

/// Binary logarithm of [`SUB_BUCKETS`].
const SUB_BUCKET_BITS: u32 = 3;
/// Buckets of equal width between two powers of two.
const SUB_BUCKETS: u64 = 1 << SUB_BUCKET_BITS;

/// Counts of values by magnitude, with their exact sum, minimum and maximum.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// Values of each bucket, up to the largest bucket that has any.
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Vec::new(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Returns whether no value was counted.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the smallest value, or 0 if there is none.
    pub fn min(&self) -> u64 {
        self.min.min(self.max)
    }

    /// Returns the largest value, or 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean, rounded down, or 0 if there are no values.
    pub fn mean(&self) -> u64 {
        self.sum / self.count.max(1)
    }

    /// Returns the value that `fraction` (0 to 1) of all values do not exceed, exact to one eighth, or 0 if there are none.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let rank = (fraction * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return midpoint(bucket).clamp(self.min(), self.max);
            }
        }
        self.max
    }
}

fn bucket(value: u64) -> usize {
    if value < SUB_BUCKETS {
        return value as usize;
    }
    let power = u64::BITS - 1 - value.leading_zeros();
    let sub_bucket = value >> (power - SUB_BUCKET_BITS) & (SUB_BUCKETS - 1);
    ((u64::from(power - SUB_BUCKET_BITS + 1) << SUB_BUCKET_BITS) | sub_bucket) as usize
}

/// Returns the value in the middle of a bucket.
fn midpoint(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB_BUCKETS {
        return bucket;
    }
    let shift = (bucket >> SUB_BUCKET_BITS) - 1;
    ((SUB_BUCKETS | bucket & (SUB_BUCKETS - 1)) << shift) + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_values_within_an_eighth_of_its_middle() {
        let powers = (0..64).map(|power| 1u64 << power);
        let values = powers.flat_map(|value| [value - 1, value, value + value / 3, value + (value - 1)]);
        for value in values.chain([0, 7, 8, 9, 1_000_003, u64::MAX]) {
            let midpoint = midpoint(bucket(value));
            assert!(midpoint.abs_diff(value) <= value / 8, "{value} becomes {midpoint}");
        }
        let buckets: Vec<_> = (0..2000u64).map(bucket).collect();
        assert!(buckets.is_sorted() && bucket(u64::MAX) < 496);
    }

    #[test]
    fn quantiles_cover_all_values() {
        for (values, fraction, expected) in [
            (vec![], 0.5, 0),
            (vec![1000], 0.5, 1000),
            (vec![1000], 1.0, 1000),
            ((1..=100).collect(), 0.5, 50),
            ((1..=100).collect(), 0.0, 1),
            ((1..=100).collect(), 1.0, 100),
            ([vec![5; 99], vec![1 << 40]].concat(), 0.95, 5),
            ([vec![5; 99], vec![1 << 40]].concat(), 1.0, 1 << 40),
            (vec![u64::MAX, u64::MAX], 0.9, u64::MAX),
        ] {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.add(*value));
            let actual = histogram.quantile(fraction);
            assert!(actual.abs_diff(expected) <= expected / 8, "{fraction} of {values:?}: {actual}");
        }
    }
}
