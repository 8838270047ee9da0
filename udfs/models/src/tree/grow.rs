use std::ops::Range;

use super::data::{SortedFeature, TrainingSet};
use super::model::Node;
use super::params::Limits;
use super::split::{Candidates, Cut, Key, Sample};
use super::{Draws, RegressionTree, RegressionTreeParams, Splitter, TreeError};

/// Maximum variance of a pure node (scikit-learn's `EPSILON`).
const VARIANCE_MIN: f64 = f64::EPSILON;

/// Marks a row that the tree does not use, and a missing parent.
const NONE: u32 = u32::MAX;

/// Grows trees from a training set, and reuses its buffers.
///
/// Invariant: for every feature not known to be constant in a node, positions `start..end` of the node's buffer hold
/// the node's rows in the order of the feature.
pub(crate) struct Grower<'a> {
    set: &'a TrainingSet,
    limits: Limits,
    /// Number of rows of this tree. If rows with equal features are bundled, the bundles take the place of rows, here
    /// and below.
    rows: usize,
    /// By row.
    samples: Vec<Sample>,
    /// By row; empty if rows are bundled.
    targets: Vec<f64>,
    /// By row; empty unless rows are bundled.
    bundles: Vec<Bundle>,
    /// The rows of each feature in order. Children's rows are written to the buffer that their parent does not use.
    keys: [Vec<Key>; 2],
    /// By row: whether the current node sends it left.
    goes_left: Vec<bool>,
    /// A permutation of the features: those known to be constant in the current node come first.
    features: Vec<u32>,
    pending: Vec<PendingNode>,
    nodes: Vec<Node>,
}

/// A node that was not split yet.
struct PendingNode {
    start: usize,
    end: usize,
    depth: u32,
    /// The node whose right child this is, or [`NONE`].
    right_of: u32,
    /// Index of the buffer with its rows.
    buffer: usize,
    /// Number of features known to be constant.
    constants: usize,
    summary: Summary,
}

/// Accumulates a bundle.
#[derive(Clone, Copy)]
struct Sums {
    weight: f64,
    mean: f64,
    bundle: Bundle,
}

/// The weighted targets of rows with equal features.
#[derive(Clone, Copy)]
struct Bundle {
    /// Weighted sum.
    weighted: f64,
    /// Weighted sum of squares around the mean.
    squares: f64,
    low: f64,
    high: f64,
}

impl Bundle {
    const EMPTY: Bundle = Bundle { weighted: 0.0, squares: 0.0, low: f64::INFINITY, high: f64::NEG_INFINITY };
}

/// Statistics of a node's targets.
#[derive(Clone, Copy)]
struct Summary {
    /// Sum of weights.
    weight: f64,
    /// Sum of weighted targets.
    weighted: f64,
    low: f64,
    high: f64,
    leaf: bool,
}

impl Summary {
    fn value(&self) -> f64 {
        // The mean of equal targets does not always equal them, because of rounding.
        if self.low == self.high { self.low } else { self.weighted / self.weight }
    }
}

impl RegressionTreeParams {
    /// Grows one tree on `columns` (one per feature, each as long as the target) and `target`.
    ///
    /// # Errors
    /// The errors of [`TrainingSet::new`], and [`TreeError::Parameter`].
    pub fn fit_columns(&self, columns: &[&[f64]], target: &[f64]) -> Result<RegressionTree, TreeError> {
        self.fit_set(&TrainingSet::new(columns, target)?)
    }

    /// Grows one tree on every row of `set`.
    ///
    /// # Errors
    /// [`TreeError::Parameter`].
    pub fn fit_set(&self, set: &TrainingSet) -> Result<RegressionTree, TreeError> {
        let mut grower = Grower::new(set, self.limits(set)?);
        Ok(grower.grow(&vec![1; set.rows()], &mut Draws::stream(self.seed.unwrap_or(0), 0)))
    }
}

impl<'a> Grower<'a> {
    pub(crate) fn new(set: &'a TrainingSet, limits: Limits) -> Self {
        Self {
            set,
            limits,
            rows: 0,
            samples: Vec::new(),
            targets: Vec::new(),
            bundles: Vec::new(),
            keys: [Vec::new(), Vec::new()],
            goes_left: Vec::new(),
            features: Vec::new(),
            pending: Vec::new(),
            nodes: Vec::new(),
        }
    }

    /// Grows a tree on the rows with a count above zero; at least one row has one. `counts` has an entry per row of the
    /// set.
    pub(crate) fn grow(&mut self, counts: &[u32], draws: &mut Draws) -> RegressionTree {
        self.plant(counts);
        while let Some(node) = self.pending.pop() {
            let index = self.nodes.len();
            if node.right_of != NONE {
                self.nodes[node.right_of as usize].right = index as u32;
            }
            let found = if node.summary.leaf { None } else { self.search(&node, draws) };
            let Some((cut, feature, constants)) = found else {
                self.nodes.push(Node::leaf(index as u32, node.summary.value()));
                continue;
            };
            let midpoint = || self.candidates(&node, feature).midpoint(cut.left_rows);
            let split = cut.threshold.unwrap_or_else(midpoint);
            self.nodes.push(Node { split, feature, right: NONE });
            self.divide(&node, &cut, feature, constants, index as u32);
        }
        RegressionTree::from_nodes(self.set.features() as u32, &self.nodes)
    }

    /// Lays out the rows of a new tree, and its root.
    fn plant(&mut self, counts: &[u32]) {
        self.samples.clear();
        self.targets.clear();
        self.bundles.clear();
        match self.set.features.as_slice() {
            [only] if self.limits.counts_no_rows() && only.values.len() <= counts.len() / 2 => {
                self.lay_bundles(only, counts)
            }
            _ => self.lay_rows(counts),
        }
        self.goes_left.resize(self.rows, false);
        self.features.clear();
        self.features.extend(0..self.set.features() as u32);
        self.nodes.clear();
        let summary = self.summarise(0..self.rows, 0);
        self.pending.push(PendingNode {
            start: 0,
            end: self.rows,
            depth: 0,
            right_of: NONE,
            buffer: 0,
            constants: 0,
            summary,
        });
    }

    fn lay_rows(&mut self, counts: &[u32]) {
        let mut numbers = vec![NONE; counts.len()];
        for (row, &count) in counts.iter().enumerate() {
            if count > 0 {
                numbers[row] = self.targets.len() as u32;
                self.samples.push(Sample { weight: f64::from(count), excess: 0.0 });
                self.targets.push(self.set.target[row]);
            }
        }
        self.rows = self.targets.len();
        let cells = self.rows * self.set.features();
        for keys in &mut self.keys {
            keys.resize(cells + 1, Key::default());
        }
        let mut at = 0;
        for feature in &self.set.features {
            for &entry in &*feature.order() {
                let number = numbers[entry as u32 as usize];
                // Branchless: the next row overwrites the entry of a row that is left out.
                self.keys[0][at] = Key::new((entry >> 32) as u32, number);
                at += usize::from(number != NONE);
            }
        }
    }

    /// Bundles the rows of each value of the only feature: no split can separate them.
    fn lay_bundles(&mut self, feature: &SortedFeature, counts: &[u32]) {
        let ranks = feature.ranks();
        let rows = || {
            let rows = counts.iter().zip(&self.set.target).zip(&*ranks).filter(|((count, _), _)| **count > 0);
            rows.map(|((count, target), rank)| (f64::from(*count), *target, *rank as usize))
        };
        let empty = Sums { weight: 0.0, mean: 0.0, bundle: Bundle::EMPTY };
        let mut all = vec![empty; feature.values.len()];
        for (weight, target, rank) in rows() {
            let Sums { weight: sum, bundle, .. } = &mut all[rank];
            *sum += weight;
            bundle.weighted += weight * target;
            bundle.low = if target < bundle.low { target } else { bundle.low };
            bundle.high = if target > bundle.high { target } else { bundle.high };
        }
        all.iter_mut().for_each(|sums| sums.mean = sums.bundle.weighted / sums.weight);
        for (weight, target, rank) in rows() {
            let Sums { mean, bundle, .. } = &mut all[rank];
            bundle.squares += weight * (target - *mean) * (target - *mean);
        }
        self.keys[0].clear();
        for (rank, sums) in (0..).zip(all).filter(|(_, sums)| sums.weight > 0.0) {
            self.keys[0].push(Key::new(rank, self.bundles.len() as u32));
            self.samples.push(Sample { weight: sums.weight, excess: 0.0 });
            self.bundles.push(sums.bundle);
        }
        self.rows = self.bundles.len();
        self.keys[0].push(Key::default());
        self.keys[1].resize(self.rows + 1, Key::default());
    }

    /// Returns the best split among the drawn features, its feature, and the number of features now known to be
    /// constant.
    ///
    /// As in scikit-learn, features known to be constant take part in the draw, but are not examined.
    fn search(&mut self, node: &PendingNode, draws: &mut Draws) -> Option<(Cut, u32, usize)> {
        let mut constants = node.constants;
        let mut known = node.constants;
        let mut unseen_end = self.features.len();
        let mut visits = 0;
        let mut best = None;
        let mut bound = -1.0;
        // All splits of two rows are equivalent: the first feature that separates them is used.
        let any_split = node.end - node.start == 2 && self.limits.splitter == Splitter::Best;
        if !any_split {
            self.centre(node);
        }
        while constants < unseen_end && (visits < self.limits.features_max || unseen_end == self.features.len()) {
            visits += 1;
            let drawn = draws.below((known + unseen_end - constants) as u32) as usize;
            if drawn < known {
                known -= 1;
                continue;
            }
            let place = constants + drawn - known;
            let feature = self.features[place];
            let candidates = self.candidates(node, feature);
            if candidates.constant() {
                self.features.swap(place, constants);
                constants += 1;
                continue;
            }
            if any_split {
                return Some((Cut { score: bound, left_rows: 1, threshold: None }, feature, constants));
            }
            if let Some(cut) = candidates.search(self.limits.splitter, draws, bound) {
                bound = cut.score;
                best = Some((cut, feature));
            }
            unseen_end -= 1;
            self.features.swap(place, unseen_end);
        }
        best.map(|(cut, feature)| (cut, feature, constants))
    }

    fn candidates(&self, node: &PendingNode, feature: u32) -> Candidates<'_> {
        Candidates {
            keys: &self.keys[node.buffer][self.range(feature, node.start, node.end)],
            feature: &self.set.features[feature as usize],
            samples: &self.samples,
            weight: node.summary.weight,
            leaf_rows_min: self.limits.leaf_rows_min,
        }
    }

    /// Sets each sample's excess over the mean of `node`.
    fn centre(&mut self, node: &PendingNode) {
        let Some(&feature) = self.features.get(node.constants) else {
            return;
        };
        let range = self.range(feature, node.start, node.end);
        let Summary { weight, weighted, .. } = node.summary;
        for key in &self.keys[node.buffer][range] {
            let sample = &mut self.samples[key.row()];
            sample.excess = match self.bundles.get(key.row()) {
                None => sample.weight * (self.targets[key.row()] * weight - weighted),
                Some(bundle) => bundle.weighted * weight - sample.weight * weighted,
            };
        }
    }

    /// Creates the children of `node`, which has this `index`.
    fn divide(&mut self, node: &PendingNode, cut: &Cut, feature: u32, constants: usize, index: u32) {
        let middle = node.start + cut.left_rows;
        let depth = node.depth + 1;
        let [left, right] = [(node.start, middle, NONE), (middle, node.end, index)].map(|(start, end, right_of)| {
            let keys = &self.keys[node.buffer][self.range(feature, start, end)];
            let summary = self.summarise(keys.iter().map(|key| key.row()), depth);
            PendingNode { start, end, depth, right_of, buffer: 1 - node.buffer, constants, summary }
        });
        if !(left.summary.leaf && right.summary.leaf) {
            for (start, end, goes_left) in [(node.start, middle, true), (middle, node.end, false)] {
                for key in &self.keys[node.buffer][self.range(feature, start, end)] {
                    self.goes_left[key.row()] = goes_left;
                }
            }
            self.partition(node, constants, middle);
        }
        self.pending.extend([right, left]);
    }

    /// Partitions the rows of every feature not known to be constant, preserving their order.
    fn partition(&mut self, node: &PendingNode, constants: usize, middle: usize) {
        let left_rows = middle - node.start;
        for index in constants..self.features.len() {
            let range = self.range(self.features[index], node.start, node.end);
            let [first, second] = &mut self.keys;
            let (from, to) = if node.buffer == 0 { (first, second) } else { (second, first) };
            let (from, to) = (&from[range.clone()], &mut to[range]);
            let mut left = 0;
            for (place, &key) in from.iter().enumerate() {
                let goes_left = self.goes_left[key.row()];
                to[if goes_left { left } else { left_rows + place - left }] = key;
                left += usize::from(goes_left);
            }
        }
    }

    /// Position of rows `start..end` in the order of `feature`.
    fn range(&self, feature: u32, start: usize, end: usize) -> Range<usize> {
        let first = feature as usize * self.rows;
        first + start..first + end
    }

    fn summarise(&self, rows: impl ExactSizeIterator<Item = usize> + Clone, depth: u32) -> Summary {
        let count = rows.len();
        let (mut weight, mut weighted) = (0.0, 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        if self.bundles.is_empty() {
            for row in rows.clone() {
                let target = self.targets[row];
                weight += self.samples[row].weight;
                weighted += self.samples[row].weight * target;
                low = if target < low { target } else { low };
                high = if target > high { target } else { high };
            }
        } else {
            for row in rows.clone() {
                let bundle = &self.bundles[row];
                weight += self.samples[row].weight;
                weighted += bundle.weighted;
                low = low.min(bundle.low);
                high = high.max(bundle.high);
            }
        }
        let range = high - low;
        // Two targets that far apart contribute at least range² / 2 to the sum of squares by themselves.
        let pure = range * range <= 2.0 * VARIANCE_MIN * weight
            && (range == 0.0 || self.squares(rows, weighted / weight) <= VARIANCE_MIN * weight);
        let leaf = pure
            || count < self.limits.split_rows_min
            || count / 2 < self.limits.leaf_rows_min
            || depth >= self.limits.depth_max;
        Summary { weight, weighted, low, high, leaf }
    }

    /// The weighted sum of squares around `mean`.
    fn squares(&self, rows: impl Iterator<Item = usize>, mean: f64) -> f64 {
        let around = |row: usize| {
            let weight = self.samples[row].weight;
            match self.bundles.get(row) {
                None => weight * (self.targets[row] - mean) * (self.targets[row] - mean),
                Some(bundle) => bundle.squares + weight * (bundle.weighted / weight - mean).powi(2),
            }
        };
        rows.map(around).sum()
    }
}
