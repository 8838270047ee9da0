use serde::{Deserialize, Serialize};

use super::{TrainingSet, TreeError};

/// The choice of a node's threshold on a feature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Splitter {
    /// The threshold that reduces the squared error most.
    #[default]
    Best,
    /// A threshold drawn uniformly between the node's smallest and largest value.
    Random,
}

/// Hyperparameters of a [`RegressionTree`](super::RegressionTree). The defaults are scikit-learn's and grow the tree fully.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegressionTreeParams {
    /// The choice of thresholds.
    pub splitter: Splitter,
    /// Maximum number of splits between the root and a leaf, at least 1; absent for no limit.
    pub max_depth: Option<u32>,
    /// Minimum number of rows of a node that is split, at least 2.
    pub min_samples_split: u32,
    /// Minimum number of rows on each side of a split, at least 1.
    pub min_samples_leaf: u32,
    /// Number of features that compete for a split, drawn for every node, at least 1; all features if absent or larger
    /// than their number. As in scikit-learn, the draw continues beyond this number until it finds a feature that is
    /// not constant.
    pub max_features: Option<usize>,
    /// Seed of the order of features (and of ties between them), of the drawn features and of random thresholds; zero
    /// if absent (a trainer uses its group's seed).
    pub seed: Option<u64>,
}

impl Default for RegressionTreeParams {
    fn default() -> Self {
        Self {
            splitter: Splitter::Best,
            max_depth: None,
            min_samples_split: 2,
            min_samples_leaf: 1,
            max_features: None,
            seed: None,
        }
    }
}

impl RegressionTreeParams {
    pub(crate) fn limits(&self, set: &TrainingSet) -> Result<Limits, TreeError> {
        let at_least = |name, value: u64, bound: u64, range| match value >= bound {
            true => Ok(()),
            false => Err(TreeError::Parameter { name, value: value.to_string(), range }),
        };
        at_least("min_samples_split", self.min_samples_split.into(), 2, "at least 2")?;
        at_least("min_samples_leaf", self.min_samples_leaf.into(), 1, "at least 1")?;
        at_least("max_depth", self.max_depth.unwrap_or(1).into(), 1, "at least 1")?;
        at_least("max_features", self.max_features.unwrap_or(1) as u64, 1, "at least 1")?;
        Ok(Limits {
            splitter: self.splitter,
            depth_max: self.max_depth.unwrap_or(u32::MAX),
            split_rows_min: (self.min_samples_split as usize).max(2),
            leaf_rows_min: self.min_samples_leaf as usize,
            features_max: self.max_features.map_or(set.features(), |max| max.min(set.features())) as u32,
        })
    }
}

/// Checked parameters for one training set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(super) splitter: Splitter,
    pub(super) depth_max: u32,
    pub(super) split_rows_min: usize,
    pub(super) leaf_rows_min: usize,
    pub(super) features_max: u32,
}

impl Limits {
    /// Whether the number of rows of a node, as opposed to their weight, is irrelevant.
    pub(super) fn counts_no_rows(&self) -> bool {
        self.split_rows_min <= 2 && self.leaf_rows_min <= 1
    }
}
