use linfa::traits::PredictInplace;
use ndarray::{Array1, ArrayBase, ArrayView1, Data, Ix2};
use serde::{Deserialize, Serialize};

use crate::tree::{Block, RegressionTree, TreeError, blocks, check_columns, predict_records};

/// A fitted random forest: predicts the mean of its trees.
///
/// Serialised as its trees. A deserialised forest has at least one tree, and all trees have the same number of
/// features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawForest")]
pub struct RandomForest {
    trees: Vec<RegressionTree>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawForest {
    trees: Vec<RegressionTree>,
}

impl RandomForest {
    /// Builds a forest of at least one tree; all trees have the same width.
    pub(super) fn new(trees: Vec<RegressionTree>) -> Self {
        Self { trees }
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

    /// Like [`RandomForest::predict_columns`], into `out`.
    ///
    /// # Panics
    /// Panics if the number of columns differs from the number of features, or a column is shorter than `out`.
    pub fn predict_into(&self, columns: &[&[f64]], out: &mut [f64]) {
        assert_eq!(columns.len(), self.features(), "a column for each feature");
        out.fill(0.0);
        let add = |block: &mut Block<'_>| self.trees.iter().for_each(|tree| tree.add_to(block));
        blocks(out, self.features(), |row, feature| columns[feature][row], add);
        out.iter_mut().for_each(|sum| *sum /= self.trees.len() as f64);
    }

    /// The trees in the order of growth, at least one.
    pub fn trees(&self) -> &[RegressionTree] {
        &self.trees
    }

    /// Number of features, at least 1.
    pub fn features(&self) -> usize {
        self.trees[0].features()
    }
}

impl TryFrom<RawForest> for RandomForest {
    type Error = TreeError;

    fn try_from(raw: RawForest) -> Result<Self, TreeError> {
        let first = raw.trees.first().ok_or(TreeError::Malformed("a forest without trees"))?;
        match raw.trees.iter().all(|tree| tree.features() == first.features()) {
            true => Ok(Self { trees: raw.trees }),
            false => Err(TreeError::Malformed("a forest of trees with different numbers of features")),
        }
    }
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for RandomForest {
    /// # Panics
    /// Like linfa's models, panics if the shapes disagree: if `x` has another number of columns than the training data,
    /// or another number of rows than `y`. [`RandomForest::predict_columns`] returns an error instead.
    fn predict_inplace(&self, x: &ArrayBase<D, Ix2>, y: &mut Array1<f64>) {
        let sums = predict_records(x, self.features(), y.len(), |block| {
            self.trees.iter().for_each(|tree| tree.add_to(block));
        });
        y.assign(&(ArrayView1::from(&sums).mapv(|sum| sum / self.trees.len() as f64)));
    }

    fn default_target(&self, x: &ArrayBase<D, Ix2>) -> Array1<f64> {
        Array1::zeros(x.nrows())
    }
}
