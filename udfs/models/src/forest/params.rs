use linfa::dataset::{AsSingleTargets, DatasetBase};
use linfa::traits::Fit;
use ndarray::{ArrayBase, Data, Ix2};
use serde::{Deserialize, Serialize};

use super::RandomForest;
use crate::tree::{Draws, Grower, RegressionTreeParams, Splitter, TrainingSet, TreeError};

/// Hyperparameters of a [`RandomForest`]; the defaults are scikit-learn's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomForestParams {
    /// Number of trees, at least 1.
    pub n_estimators: u32,
    /// Whether each tree is grown on a sample with replacement, instead of on all rows.
    pub bootstrap: bool,
    /// Size of the sample as a share of the rows, in (0, 1]; absent for as many draws as rows.
    pub max_samples: Option<f64>,
    /// See [`RegressionTreeParams::splitter`].
    pub splitter: Splitter,
    /// See [`RegressionTreeParams::max_depth`].
    pub max_depth: Option<u32>,
    /// See [`RegressionTreeParams::min_samples_split`]; a row drawn several times counts once.
    pub min_samples_split: u32,
    /// See [`RegressionTreeParams::min_samples_leaf`]; a row drawn several times counts once.
    pub min_samples_leaf: u32,
    /// See [`RegressionTreeParams::max_features`].
    pub max_features: Option<usize>,
    /// Seed of the samples, and of everything that [`RegressionTreeParams::seed`] determines.
    pub seed: Option<u64>,
}

impl Default for RandomForestParams {
    fn default() -> Self {
        let tree = RegressionTreeParams::default();
        Self {
            n_estimators: 100,
            bootstrap: true,
            max_samples: None,
            splitter: tree.splitter,
            max_depth: tree.max_depth,
            min_samples_split: tree.min_samples_split,
            min_samples_leaf: tree.min_samples_leaf,
            max_features: tree.max_features,
            seed: tree.seed,
        }
    }
}

impl RandomForestParams {
    /// Grows a forest on `columns` (one per feature, each as long as the target) and `target`.
    ///
    /// # Errors
    /// The errors of [`TrainingSet::new`], and [`TreeError::Parameter`].
    pub fn fit_columns(&self, columns: &[&[f64]], target: &[f64]) -> Result<RandomForest, TreeError> {
        self.fit_set(&TrainingSet::new(columns, target)?)
    }

    /// Grows a forest on `set`.
    ///
    /// # Errors
    /// [`TreeError::Parameter`].
    pub fn fit_set(&self, set: &TrainingSet) -> Result<RandomForest, TreeError> {
        if self.n_estimators == 0 {
            return Err(TreeError::Parameter { name: "n_estimators", value: "0".to_owned(), range: "at least 1" });
        }
        let sample_rows = self.sample_rows(set.rows())?;
        let mut grower = Grower::new(set, self.tree().limits(set)?);
        let mut counts = vec![1; set.rows()];
        let mut trees = Vec::new();
        for index in 0..u64::from(self.n_estimators) {
            let mut draws = Draws::stream(self.seed.unwrap_or(0), index);
            if self.bootstrap {
                draw_sample(&mut counts, sample_rows, &mut draws);
            }
            trees.push(grower.grow(&counts, &mut draws));
        }
        Ok(RandomForest::new(trees))
    }

    fn tree(&self) -> RegressionTreeParams {
        RegressionTreeParams {
            splitter: self.splitter,
            max_depth: self.max_depth,
            min_samples_split: self.min_samples_split,
            min_samples_leaf: self.min_samples_leaf,
            max_features: self.max_features,
            seed: self.seed,
        }
    }

    /// Number of draws per tree: the share of the rows, rounded half to even as in Python, but at least one.
    fn sample_rows(&self, rows: usize) -> Result<usize, TreeError> {
        let wrong = |value, range| Err(TreeError::Parameter { name: "max_samples", value, range });
        match self.max_samples {
            None => Ok(rows),
            Some(share) if !self.bootstrap => wrong(share.to_string(), "absent where bootstrap is false"),
            Some(share) if share > 0.0 && share <= 1.0 => Ok(((rows as f64 * share).round_ties_even() as usize).max(1)),
            Some(share) => wrong(share.to_string(), "more than 0 and at most 1"),
        }
    }
}

/// Counts the draws of each row.
fn draw_sample(counts: &mut [u32], sample_rows: usize, draws: &mut Draws) {
    counts.fill(0);
    for _ in 0..sample_rows {
        counts[draws.below(counts.len() as u32) as usize] += 1;
    }
}

impl<D, T> Fit<ArrayBase<D, Ix2>, T, TreeError> for RandomForestParams
where
    D: Data<Elem = f64>,
    T: AsSingleTargets<Elem = f64>,
{
    type Object = RandomForest;

    fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<RandomForest, TreeError> {
        self.fit_set(&TrainingSet::from_dataset(dataset)?)
    }
}
