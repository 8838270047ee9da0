use super::data::{SortedFeature, separated};
use super::{Draws, Splitter};

/// A row in the order of one feature: the rank of its value, and its number.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Key(u64);

impl Key {
    #[inline(always)]
    pub(super) fn new(rank: u32, row: u32) -> Self {
        Self(u64::from(rank) << 32 | u64::from(row))
    }

    #[inline(always)]
    pub(super) fn rank(self) -> usize {
        (self.0 >> 32) as usize
    }

    #[inline(always)]
    pub(super) fn row(self) -> usize {
        self.0 as u32 as usize
    }
}

/// The contribution of a row to the sums of its node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Number of draws of the row.
    pub(super) weight: f64,
    /// The weight, times the difference between the target and the mean of its node, times the weight of the node
    /// (which keeps sums of integers exact).
    pub(super) excess: f64,
}

impl Sample {
    #[inline(always)]
    pub(super) fn add(&mut self, other: Self) {
        self.weight += other.weight;
        self.excess += other.excess;
    }
}

/// A division of a node's rows in the order of one feature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// The reduction of the squared error, up to a factor and a summand that are constant within a node.
    ///
    /// With sums s and weights n of the left, the right and the whole, scikit-learn's proxy is sₗ²/nₗ + sᵣ²/nᵣ, which is
    /// (sₗ·n − s·nₗ)² / (nₗ·nᵣ·n) + s²/n. The bracket is the sum of the left rows' excesses.
    pub(super) score: f64,
    /// Number of rows that go left, from the first on.
    pub(super) left_rows: usize,
    /// None for the midpoint.
    pub(super) threshold: Option<f64>,
}

/// The input of the search for a node's split.
pub(super) struct Candidates<'a> {
    /// The node's rows in the order of one feature.
    pub(super) keys: &'a [Key],
    pub(super) feature: &'a SortedFeature,
    pub(super) samples: &'a [Sample],
    pub(super) weight: f64,
    pub(super) leaf_rows_min: usize,
}

impl Candidates<'_> {
    /// Returns whether no split can divide the node on this feature.
    pub(super) fn constant(&self) -> bool {
        let (low, high) = (self.keys[0], self.keys[self.keys.len() - 1]);
        low.rank() == high.rank() || self.feature.crowded && !separated(self.value(low), self.value(high))
    }

    /// Returns the best split on this feature if its score exceeds `bound`.
    #[inline(always)]
    pub(super) fn search(&self, splitter: Splitter, draws: &mut Draws, bound: f64) -> Option<Cut> {
        match (splitter, self.feature.crowded) {
            (Splitter::Random, _) => self.draw(draws, bound),
            (Splitter::Best, true) => self.best::<true>(bound),
            (Splitter::Best, false) => self.best::<false>(bound),
        }
    }

    /// The threshold between row `left_rows - 1` and the next row: at least the value before it and less than the value
    /// after it, in spite of rounding, so that predictions divide the rows as growth did.
    pub(super) fn midpoint(&self, left_rows: usize) -> f64 {
        let (low, high) = (self.value(self.keys[left_rows - 1]), self.value(self.keys[left_rows]));
        let middle = low / 2.0 + high / 2.0;
        if middle < high && middle >= low { middle } else { low }
    }

    /// Finds the best threshold; `CROWDED` is the feature's `crowded`.
    fn best<const CROWDED: bool>(&self, bound: f64) -> Option<Cut> {
        let margin = self.leaf_rows_min;
        let mut left = Sample::default();
        for key in &self.keys[..margin - 1] {
            left.add(self.samples[key.row()]);
        }
        let (mut score, mut left_rows) = (bound, 0);
        for (index, pair) in self.keys[margin - 1..=self.keys.len() - margin].windows(2).enumerate() {
            left.add(self.samples[pair[0].row()]);
            let (square, weights) = self.terms(left);
            // The order of the conditions matters: new maxima are rare, so that the processor predicts them, while
            // neighbours are unpredictably apart.
            if square > score * weights && square / weights > score && self.apart::<CROWDED>(pair[0], pair[1]) {
                (score, left_rows) = (square / weights, index + margin);
            }
        }
        (left_rows > 0).then_some(Cut { score, left_rows, threshold: None })
    }

    /// The numerator and the denominator of a score.
    #[inline(always)]
    fn terms(&self, left: Sample) -> (f64, f64) {
        (left.excess * left.excess, left.weight * (self.weight - left.weight))
    }

    /// Returns whether a threshold fits between two neighbours.
    #[inline(always)]
    fn apart<const CROWDED: bool>(&self, low: Key, high: Key) -> bool {
        match CROWDED {
            true => separated(self.value(low), self.value(high)),
            false => low.rank() != high.rank(),
        }
    }

    /// Draws a random threshold.
    fn draw(&self, draws: &mut Draws, bound: f64) -> Option<Cut> {
        let (low, high) = (self.value(self.keys[0]), self.value(self.keys[self.keys.len() - 1]));
        let unit = draws.unit();
        let drawn = (low * (1.0 - unit) + high * unit).clamp(low, high);
        let threshold = if drawn < high { drawn } else { low };
        let left_rows = self.keys.partition_point(|&key| self.value(key) <= threshold);
        if left_rows < self.leaf_rows_min || self.keys.len() - left_rows < self.leaf_rows_min {
            return None;
        }
        let mut left = Sample::default();
        for key in &self.keys[..left_rows] {
            left.add(self.samples[key.row()]);
        }
        let (square, weights) = self.terms(left);
        let score = square / weights;
        (score > bound).then_some(Cut { score, left_rows, threshold: Some(threshold) })
    }

    fn value(&self, key: Key) -> f64 {
        self.feature.values[key.rank()]
    }
}
