use std::hint::select_unpredictable;

use serde::{Deserialize, Serialize};

use super::TreeError;

/// Maximum number of cells per block that is laid out by row: the rows of a block stay in the cache while trees read
/// them.
const BLOCK_CELLS_MAX: usize = 1 << 16;

/// Number of rows that descend a tree concurrently, so that their memory accesses overlap.
const LANES: usize = 8;

/// A fitted regression tree: predicts the mean target of the training rows that share a leaf.
///
/// Serialised as its width and its nodes in pre-order. A node consists of its split feature plus one (zero for a leaf)
/// and its threshold (for a leaf, the prediction). Children follow from the order and are not stored, so that no
/// serialised tree has a loop or a child out of bounds. Everything else is checked on deserialisation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTree", into = "RawTree")]
pub struct RegressionTree {
    width: u32,
    /// Nodes in pre-order: a left child follows its parent. Never empty.
    pub(super) nodes: Vec<Node>,
}

/// A split, or a leaf.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Node {
    /// The threshold, or the prediction of a leaf.
    pub(super) split: f64,
    /// Less than the tree's width; zero for a leaf.
    pub(super) feature: u32,
    /// A later node; for a leaf, this one.
    pub(super) right: u32,
}

impl Node {
    pub(super) fn leaf(index: u32, prediction: f64) -> Self {
        Self { split: prediction, feature: 0, right: index }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTree {
    width: u32,
    features: Vec<u32>,
    splits: Vec<f64>,
}

impl RegressionTree {
    pub(super) fn from_nodes(width: u32, nodes: &[Node]) -> Self {
        Self { width, nodes: nodes.to_vec() }
    }

    /// Predicts one target per row. `columns` are the features of the training data, in the same order. A row goes left
    /// if its value is at most the threshold, so a NaN goes right.
    ///
    /// # Errors
    /// [`TreeError::Width`], [`TreeError::Ragged`].
    pub fn predict_columns(&self, columns: &[&[f64]]) -> Result<Vec<f64>, TreeError> {
        let mut predictions = vec![0.0; check_columns(columns, self.features())?];
        self.predict_into(columns, &mut predictions);
        Ok(predictions)
    }

    /// Like [`RegressionTree::predict_columns`], into `out`.
    ///
    /// # Panics
    /// Panics if the number of columns differs from the number of features, or a column is shorter than `out`.
    pub fn predict_into(&self, columns: &[&[f64]], out: &mut [f64]) {
        assert_eq!(columns.len(), self.features(), "a column for each feature");
        out.fill(0.0);
        blocks(out, self.features(), |row, feature| columns[feature][row], |block| self.add_to(block));
    }

    /// Number of features, at least 1.
    pub fn features(&self) -> usize {
        self.width as usize
    }

    /// Number of splits on the longest path from the root to a leaf; zero for a single leaf.
    pub fn depth(&self) -> usize {
        let mut depths = vec![0; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            if !self.is_leaf(index) {
                depths[index + 1] = depths[index] + 1;
                depths[node.right as usize] = depths[index] + 1;
            }
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// Number of leaves, at least 1.
    pub fn leaves(&self) -> usize {
        self.nodes.len().div_ceil(2)
    }

    /// Adds the tree's prediction to each row of a block.
    pub(crate) fn add_to(&self, block: &mut Block<'_>) {
        // Laying out the leaves costs about as much as walking several rows.
        if self.features() == 1 && block.sums.len() >= self.nodes.len() / 4 {
            StepFunction::from_tree(self).add_to(block);
        } else {
            self.walk(block);
        }
    }

    pub(super) fn walk(&self, block: &mut Block<'_>) {
        let width = self.features();
        let rows = block.cells.chunks(LANES * width);
        for (cells, sums) in rows.zip(block.sums.chunks_mut(LANES)) {
            let mut at = [0; LANES];
            let lanes = &mut at[..sums.len()];
            loop {
                let mut moved = false;
                for (at, row) in lanes.iter_mut().zip(cells.chunks_exact(width)) {
                    let node = self.nodes[*at];
                    let right = node.right as usize;
                    let goes_left = (row[node.feature as usize] <= node.split) & (right != *at);
                    let next = if goes_left { *at + 1 } else { right };
                    moved |= next != *at;
                    *at = next;
                }
                if !moved {
                    break;
                }
            }
            for (sum, &at) in sums.iter_mut().zip(lanes.iter()) {
                *sum += self.nodes[at].split;
            }
        }
    }

    fn is_leaf(&self, index: usize) -> bool {
        self.nodes[index].right as usize == index
    }
}

/// A tree of one feature as a step function, constant between thresholds. Finding a value's step takes the logarithm of
/// the number of leaves; a walk takes the tree's depth, which is at least twice as much.
pub(super) struct StepFunction {
    /// The largest value of each step, ascending; the last is infinity.
    ends: Vec<f64>,
    predictions: Vec<f64>,
}

impl StepFunction {
    pub(super) fn from_tree(tree: &RegressionTree) -> StepFunction {
        let mut steps = StepFunction { ends: Vec::new(), predictions: Vec::new() };
        // A node and the range of its values: above the first bound, up to the second.
        let mut open = vec![(0, f64::NEG_INFINITY, f64::INFINITY)];
        while let Some((at, above, to)) = open.pop() {
            let Node { split, right, .. } = tree.nodes[at];
            if tree.is_leaf(at) {
                steps.ends.push(to);
                steps.predictions.push(split);
                continue;
            }
            // A stored tree may have unreachable leaves.
            if split < to {
                open.push((right as usize, above.max(split), to));
            }
            if split > above {
                open.push((at + 1, above, to.min(split)));
            }
        }
        steps
    }

    /// Like [`RegressionTree::add_to`]. A NaN belongs to the last step, because it goes right at every node.
    pub(super) fn add_to(&self, block: &mut Block<'_>) {
        let (values, last_values) = block.cells.as_chunks::<LANES>();
        let (sums, last_sums) = block.sums.as_chunks_mut::<LANES>();
        values.iter().zip(sums).for_each(|(values, sums)| self.add(values, sums));
        last_values.iter().zip(last_sums).for_each(|(value, sum)| self.add(&[*value], std::array::from_mut(sum)));
    }

    fn add<const N: usize>(&self, values: &[f64; N], sums: &mut [f64; N]) {
        let mut at = [0; N];
        let mut left = self.ends.len();
        while left > 1 {
            let half = left / 2;
            for i in 0..N {
                let is_before = values[i] <= self.ends[at[i] + half - 1];
                at[i] += select_unpredictable(is_before, 0, half);
            }
            left -= half;
        }
        for i in 0..N {
            sums[i] += self.predictions[at[i]];
        }
    }
}

impl From<RegressionTree> for RawTree {
    fn from(tree: RegressionTree) -> Self {
        let feature = |(index, node): (usize, &Node)| {
            if tree.is_leaf(index) { 0 } else { node.feature + 1 }
        };
        Self {
            width: tree.width,
            features: tree.nodes.iter().enumerate().map(feature).collect(),
            splits: tree.nodes.iter().map(|node| node.split).collect(),
        }
    }
}

impl TryFrom<RawTree> for RegressionTree {
    type Error = TreeError;

    fn try_from(raw: RawTree) -> Result<Self, TreeError> {
        let RawTree { width, features, splits } = raw;
        if width == 0 {
            return Err(TreeError::Malformed("a tree without features"));
        }
        if features.len() != splits.len() {
            return Err(TreeError::Malformed("a tree with different numbers of features and thresholds"));
        }
        if u32::try_from(features.len()).is_err() {
            return Err(TreeError::Malformed("a tree with too many nodes"));
        }
        if splits.iter().any(|split| !split.is_finite()) {
            return Err(TreeError::Malformed("a threshold or a prediction that is not finite"));
        }
        if features.iter().any(|&feature| feature > width) {
            return Err(TreeError::Malformed("a split on a feature that the tree does not have"));
        }
        Ok(Self { width, nodes: link(&features, &splits)? })
    }
}

/// Determines the right children of nodes in pre-order.
fn link(features: &[u32], splits: &[f64]) -> Result<Vec<Node>, TreeError> {
    let mut nodes: Vec<Node> = Vec::with_capacity(features.len());
    let mut open = Vec::new();
    let mut after_leaf = false;
    for (index, (&feature, &split)) in features.iter().zip(splits).enumerate() {
        if after_leaf {
            let parent: usize = open.pop().ok_or(TreeError::Malformed("nodes after the end of the tree"))?;
            nodes[parent].right = index as u32;
        }
        after_leaf = feature == 0;
        nodes.push(Node::leaf(index as u32, split));
        if feature > 0 {
            nodes[index].feature = feature - 1;
            open.push(index);
        }
    }
    match after_leaf && open.is_empty() {
        true => Ok(nodes),
        false => Err(TreeError::Malformed("a tree that ends before its last leaf")),
    }
}

/// Consecutive rows of a batch, and their sums.
pub(crate) struct Block<'a> {
    cells: &'a [f64],
    sums: &'a mut [f64],
}

/// Lays out a batch block by block, given a function of (row, feature), and calls `visit` for each block.
pub(crate) fn blocks(
    sums: &mut [f64],
    width: usize,
    cell: impl Fn(usize, usize) -> f64,
    mut visit: impl FnMut(&mut Block<'_>),
) {
    let rows_max = (BLOCK_CELLS_MAX / width).max(LANES);
    let mut cells = Vec::new();
    for (index, sums) in sums.chunks_mut(rows_max).enumerate() {
        let first = index * rows_max;
        cells.clear();
        cells.resize(sums.len() * width, 0.0);
        for feature in 0..width {
            for (row, place) in cells[feature..].iter_mut().step_by(width).enumerate() {
                *place = cell(first + row, feature);
            }
        }
        visit(&mut Block { cells: &cells, sums });
    }
}

/// Returns the number of rows of a batch for a model of `width` features.
pub(crate) fn check_columns(columns: &[&[f64]], width: usize) -> Result<usize, TreeError> {
    if columns.len() != width {
        return Err(TreeError::Width { expected: width, found: columns.len() });
    }
    let expected = columns.first().map_or(0, |column| column.len());
    match columns.iter().position(|column| column.len() != expected) {
        Some(index) => {
            Err(TreeError::Ragged { column: format!("feature {index}"), expected, found: columns[index].len() })
        }
        None => Ok(expected),
    }
}
